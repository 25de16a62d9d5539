// Log-probabilities in the three shapes of the API.
//   TokenNames names(tokenizer, tokens_as_ids);
//   content.push_back(chat_logprob(names, logprobs));
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "text/tokenizer.h"

namespace nib {

// How tokens are spelled in logprobs: their text, or token_id:N.
class TokenNames {
 public:
  TokenNames(const Tokenizer& tokenizer, bool as_ids) : tokenizer_(tokenizer), as_ids_(as_ids) {}
  std::string name(int32_t id) const;
  std::string text(int32_t id) const;  // valid UTF-8
  Json bytes(int32_t id) const;

 private:
  const Tokenizer& tokenizer_;
  bool as_ids_;
};

// {"token","logprob","bytes","top_logprobs":[...]}
Json chat_logprob(const TokenNames& names, const Logprobs& position);

// {"tokens","token_logprobs","top_logprobs","text_offset"}, grown position by position.
class CompletionLogprobs {
 public:
  explicit CompletionLogprobs(const TokenNames& names) : names_(names) {}
  void add(const Logprobs& position);
  void add_unknown(int32_t id);  // the first token of a prompt has none
  // What was added since the last call.
  Json take();

 private:
  void add_token(int32_t id);
  TokenNames names_;
  Json tokens_ = Json::array(), token_logprobs_ = Json::array(), top_ = Json::array(), offsets_ = Json::array();
  int64_t offset_ = 0;  // characters
};

// [null, {"id": {"logprob","rank","decoded_token"}}, ...]
Json prompt_logprobs_json(const TokenNames& names, const std::vector<std::optional<Logprobs>>& positions);

}  // namespace nib
