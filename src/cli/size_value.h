// Counts as people write them: 4096, 64k = 64,000, 64K = 65,536, 1.5M.
//   NIB_ASSIGN(int64_t tokens, size_value("--max-num-seqs", text, 1));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace nib::cli {

inline constexpr int64_t kMostSize = INT64_C(1) << 53;

// A whole number from least to most; else one sentence that names the flag.
Result<int64_t> size_value(std::string_view flag, const std::string& text, int64_t least, int64_t most = kMostSize);

// --max-model-len: such a number, or auto or -1, which is 0 here: the model's own limit.
Result<int64_t> model_len_value(std::string_view flag, const std::string& text);

}  // namespace nib::cli
