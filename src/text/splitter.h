// Cuts text into the pieces that are merged apart from each other, by the tokenizer's own regular expression.
//   Result<Splitter> splitter = Splitter::compile(pattern);
//   splitter->split(text, [&](std::string_view piece) { ... });
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

struct pcre2_real_code_8;

namespace nib {

// Immutable after compile, so any thread may use it.
class Splitter {
 public:
  // A Unicode regular expression in the dialect of tokenizer.json.
  static Result<Splitter> compile(const std::string& pattern);

  // Calls visit for each match and for each gap between matches, in order. REQUIRES: text is valid UTF-8.
  // A match that breaks the match limits ends the use of the expression: what is left is cut into pieces of at
  // most kBlindPieceBytes, so that hostile text costs linear time too.
  void split(std::string_view text, const std::function<void(std::string_view)>& visit) const;

  static constexpr size_t kBlindPieceBytes = 256;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  explicit Splitter(pcre2_real_code_8* code) : code_(code) {}
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

}  // namespace nib
