// The flags of `nib serve`: those of `vllm serve`, each implemented, refused with a reason, or without effect here.
//   ServeOptions options;
//   Status s = parse_serve_flags(args, options);      // not ok: bad usage, one sentence
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "engine/engine.h"
#include "server/server.h"

namespace nib::cli {

struct ServeOptions {
  std::string model, tokenizer;  // tokenizer empty: the model's
  ServerConfig server;
  EngineConfig engine;
  bool f32 = false;
  int64_t kv_block_size = 16;
  std::string cpu_isa;                     // empty: the best of this machine
  std::string generation_config = "auto";  // the model's; "vllm": none; else a folder
  Json override_generation_config = Json::object();
  std::vector<std::string> notes;  // one line for each flag that has no effect here
};

Status parse_serve_flags(std::span<const std::string> args, ServeOptions& options);
std::string serve_help();

}  // namespace nib::cli
