#include "server/text_stage.h"

namespace nib {

namespace {
std::vector<Delta> as_content(std::string text) {
  if (text.empty()) return {};
  Delta delta;
  delta.content = std::move(text);
  return {std::move(delta)};
}
}  // namespace

std::vector<Delta> PlainStage::push(std::span<const TokenId> ids) {
  std::string text;
  for (const TokenId id : ids) {
    if (stops_.match()) break;
    ++num_tokens_;
    text += stops_.push(detokenizer_.push(id), num_tokens_);
  }
  return as_content(std::move(text));
}

std::vector<Delta> PlainStage::finish(FinishCause) {
  if (stops_.match()) return {};
  std::string text = stops_.push(detokenizer_.finish(), num_tokens_);
  if (!stops_.match()) text += stops_.flush();
  return as_content(std::move(text));
}

std::optional<std::string> PlainStage::stopped() const {
  if (!stops_.match()) return std::nullopt;
  return stops_.match()->stop;
}

}  // namespace nib
