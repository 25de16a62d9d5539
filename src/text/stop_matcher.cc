#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace nib {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_in_output, int min_tokens)
    : include_in_output_(include_in_output), min_tokens_(min_tokens) {
  for (std::string& stop : stops) {
    NIB_CHECK(!stop.empty());
    std::vector<size_t> border(stop.size() + 1, 0);
    for (size_t i = 1, k = 0; i < stop.size(); ++i) {
      while (k > 0 && stop[i] != stop[k]) k = border[k];
      if (stop[i] == stop[k]) ++k;
      border[i + 1] = k;
    }
    patterns_.push_back({std::move(stop), std::move(border)});
  }
}

// Knuth-Morris-Pratt; true if the byte completes the pattern.
bool StopMatcher::advance(Pattern& p, char byte) const {
  if (p.matched == p.text.size()) p.matched = p.border[p.matched];
  while (p.matched > 0 && p.text[p.matched] != byte) p.matched = p.border[p.matched];
  if (p.text[p.matched] == byte) ++p.matched;
  return p.matched == p.text.size();
}

std::string StopMatcher::take_match(const Pattern& pattern, int token_number) {
  match_ = {pattern.text, token_number};
  std::string out = std::exchange(held_, {});
  if (!include_in_output_) out.resize(out.size() - pattern.text.size());
  return out;
}

std::string StopMatcher::push(std::string_view text, int token_number) {
  if (match_) return {};
  if (patterns_.empty()) return std::string(text);
  for (char byte : text) {
    held_ += byte;
    const Pattern* completed = nullptr;
    for (Pattern& pattern : patterns_)
      if (advance(pattern, byte) && completed == nullptr) completed = &pattern;
    if (completed != nullptr && token_number > min_tokens_) return take_match(*completed, token_number);
  }
  size_t hold = 0;  // a whole pattern that came too early is no longer held for itself
  for (const Pattern& p : patterns_)
    hold = std::max(hold, p.matched == p.text.size() ? p.border[p.matched] : p.matched);
  std::string out = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return out;
}

std::string StopMatcher::flush() {
  for (Pattern& pattern : patterns_) pattern.matched = 0;
  return std::exchange(held_, {});
}

}  // namespace nib
