// Finds the first stop string in text that arrives in pieces, holding back what may still become one.
//   StopMatcher stops({"\n\n"}, /*include_in_output=*/false, /*min_tokens=*/0);
//   out += stops.push(text_of_token, token_number);    // number of sampled tokens so far, this one included
//   if (stops.match()) ... else out += stops.flush();
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nib {

class StopMatcher {
 public:
  struct Match {
    std::string stop;
    int token_number;  // of the token that completed it; usage ends here
  };

  // REQUIRES: no stop string is empty. A stop string completed by one of the first min_tokens tokens is no match.
  StopMatcher(std::vector<std::string> stops, bool include_in_output, int min_tokens);

  // Takes text (valid UTF-8) that this token completed and gives the text that is safe to show. Each byte costs
  // amortised constant time per stop string. After a match everything is swallowed.
  std::string push(std::string_view text, int token_number);
  // The text ends here (or a control token does): held text is safe, and no stop string reaches across.
  std::string flush();

  const std::optional<Match>& match() const { return match_; }

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> border;  // border[n]: the longest proper prefix of text that is a suffix of its first n bytes
    size_t matched = 0;          // length of the longest prefix of text that ends the input so far
  };
  bool advance(Pattern& pattern, char byte) const;
  std::string take_match(const Pattern& pattern, int token_number);

  std::vector<Pattern> patterns_;
  bool include_in_output_;
  int min_tokens_;
  std::string held_;
  std::optional<Match> match_;
};

}  // namespace nib
