// The process log, on standard error.
//   log::info("loaded {} tensors", n);
//   log::warn("...");
#pragma once

#include <spdlog/spdlog.h>

namespace nib::log {
using spdlog::debug;
using spdlog::error;
using spdlog::info;
using spdlog::warn;
}  // namespace nib::log
