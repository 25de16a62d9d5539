// Turns sampled ids into text while they arrive; an incomplete character waits for its last byte.
//   Detokenizer d(tokenizer, /*skip_special=*/true);
//   for (TokenId id : sampled) out += d.push(id);
//   out += d.finish();
#pragma once

#include <string>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace nib {

class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, bool skip_special) : tokenizer_(tokenizer), skip_special_(skip_special) {}

  std::string push(TokenId id);
  std::string finish() { return repair_.finish(); }

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  Utf8Repair repair_;
};

}  // namespace nib
