#include "server/logprobs_json.h"

#include <algorithm>

#include "text/utf8.h"

namespace nib {

namespace {

// -inf has no JSON: the API writes -9999.
double finite(float logprob) { return std::max(static_cast<double>(logprob), -9999.0); }

Json entry(const TokenNames& names, const TokenLogprob& t) {
  return {{"token", names.name(t.id)}, {"logprob", finite(t.logprob)}, {"bytes", names.bytes(t.id)}};
}

int64_t num_characters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace

std::string TokenNames::text(int32_t id) const { return repair_utf8(tokenizer_.bytes(id)); }

std::string TokenNames::name(int32_t id) const { return as_ids_ ? fmt::format("token_id:{}", id) : text(id); }

Json TokenNames::bytes(int32_t id) const {
  Json out = Json::array();
  for (char c : tokenizer_.bytes(id)) out.push_back(static_cast<unsigned char>(c));
  return out;
}

Json chat_logprob(const TokenNames& names, const Logprobs& position) {
  Json out = entry(names, position.chosen);
  out["top_logprobs"] = Json::array();
  for (const TokenLogprob& t : position.top) out["top_logprobs"].push_back(entry(names, t));
  return out;
}

void CompletionLogprobs::add_token(int32_t id) {
  const std::string name = names_.name(id);
  offsets_.push_back(offset_);
  offset_ += num_characters(name);
  tokens_.push_back(name);
}

void CompletionLogprobs::add(const Logprobs& position) {
  add_token(position.chosen.id);
  token_logprobs_.push_back(finite(position.chosen.logprob));
  Json top = Json::object();
  top[names_.name(position.chosen.id)] = finite(position.chosen.logprob);
  for (const TokenLogprob& t : position.top) top[names_.name(t.id)] = finite(t.logprob);
  top_.push_back(std::move(top));
}

void CompletionLogprobs::add_unknown(int32_t id) {
  add_token(id);
  token_logprobs_.push_back(nullptr);
  top_.push_back(nullptr);
}

Json CompletionLogprobs::take() {
  Json out = {{"text_offset", std::move(offsets_)},
              {"token_logprobs", std::move(token_logprobs_)},
              {"tokens", std::move(tokens_)},
              {"top_logprobs", std::move(top_)}};
  offsets_ = token_logprobs_ = tokens_ = top_ = Json::array();
  return out;
}

Json prompt_logprobs_json(const TokenNames& names, const std::vector<std::optional<Logprobs>>& positions) {
  Json out = Json::array();
  for (const std::optional<Logprobs>& p : positions) {
    if (!p) {
      out.push_back(nullptr);
      continue;
    }
    Json at = Json::object();
    const auto add = [&](const TokenLogprob& t) {
      at[std::to_string(t.id)] = {
          {"logprob", finite(t.logprob)}, {"rank", t.rank}, {"decoded_token", names.text(t.id)}};
    };
    add(p->chosen);
    for (const TokenLogprob& t : p->top) add(t);
    out.push_back(std::move(at));
  }
  return out;
}

}  // namespace nib
