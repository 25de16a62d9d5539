// The table behind `nib serve`: each flag, how it is spelled, and what happens.
//   for (const Flag& f : serve_flags()) print(f.name, f.note);
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cli/serve_flags.h"

namespace nib::cli {

enum class Kind {
  kSwitch,  // --x, --no-x; also --x=true
  kValue,   // --x V, --x=V; the last one holds
  kList,    // --x A B ...; also repeated
  kObject,  // --x '{"key":...}'; also --x.key V
};

struct Flag;
using Apply = Status (*)(ServeOptions& o, const Flag& flag, const std::string& value);  // a switch: "true" or "false"

struct Flag {
  std::string_view name, short_name;
  Kind kind;
  Apply apply;
  std::string_view note;  // help, or why it is refused or without effect
};

std::span<const Flag> serve_flags();

// What is done with flags that ask for something that is not there, or that cannot matter here.
Status refuse(ServeOptions& o, const Flag& flag, const std::string& value);
Status ignore(ServeOptions& o, const Flag& flag, const std::string& value);

// A JSON object as the value of a flag.
Result<Json> object_value(std::string_view flag, const std::string& text);

}  // namespace nib::cli
