#include "text/detokenizer.h"

namespace nib {

std::string Detokenizer::push(TokenId id) {
  if (skip_special_ && tokenizer_.is_special(id)) return {};
  return repair_.push(tokenizer_.bytes(id));
}

}  // namespace nib
