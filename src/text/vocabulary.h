// What a tokenizer file holds, in plain data: tokens, merges, control tokens and the split pattern.
//   Result<Vocabulary> v = read_vocabulary("model_folder");
//   v->tokens[id];
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace nib {

using TokenId = int32_t;

// Two neighbours become one token. Lower ranks go first, at equal rank the leftmost.
struct Merge {
  TokenId left, right, merged;
  uint32_t rank;
};

using AddedTokens = std::vector<std::pair<TokenId, std::string>>;

struct Vocabulary {
  std::vector<std::string> tokens;  // bytes by id; empty where there is no token
  std::vector<Merge> merges;
  AddedTokens added;    // the special tokens; their spelling stands in tokens, too
  std::string pattern;  // of the splitter
};

inline constexpr TokenId kMaxTokenId = (1 << 21) - 1;
inline constexpr size_t kMaxTokenBytes = 4096;

// The pattern of o200k, for rank files, which do not carry theirs.
extern const char* const kO200kPattern;

// A folder (tokenizer.json, else a rank file), a tokenizer.json or a rank file.
Result<Vocabulary> read_vocabulary(const std::filesystem::path& folder_or_file);

Result<Vocabulary> parse_tokenizer_json(std::string_view text);

// Lines of `base64 rank`. Without a list of added tokens, entries spelled <|...|> are the added ones: no pre-token
// looks like that, so none of them was learnt from text.
Result<Vocabulary> parse_rank_file(std::string_view text, AddedTokens added);

}  // namespace nib
