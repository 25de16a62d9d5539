// The subcommands of nib, one function each in its own file; main.cc lists them.
//   CLI::App app;  add_debug_text_commands(*app.add_subcommand("debug"));
#pragma once

#include <CLI/CLI.hpp>

namespace nib::cli {

// Each registers its subcommands; a command's callback sets the exit code: 0 fine, 1 failed, 2 bad usage.
struct Exit {
  int code = 0;
};

}  // namespace nib::cli
