#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/splitter.h"

#include <pcre2.h>

#include "base/log.h"

namespace nib {

namespace {

using Visit = std::function<void(std::string_view)>;

// Under UCP, \s also matches U+180E, which the engines that trained the tokenizers do not count as white space.
std::string with_unicode_spaces(const std::string& pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool escape = pattern[i] == '\\' && i + 1 < pattern.size();
    if (!escape) {
      out += pattern[i];
      continue;
    }
    const char next = pattern[++i];
    if (next == 's')
      out += "\\p{White_Space}";
    else if (next == 'S')
      out += "\\P{White_Space}";
    else
      (out += '\\') += next;
  }
  return out;
}

std::string message_of(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

bool is_char_border(std::string_view text, size_t at) { return at == text.size() || (text[at] & 0xC0) != 0x80; }

void split_blind(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    size_t length = std::min(text.size(), Splitter::kBlindPieceBytes);
    while (!is_char_border(text, length)) --length;
    visit(text.substr(0, length));
    text.remove_prefix(length);
  }
}

struct MatchData {
  MatchData() : data(pcre2_match_data_create(1, nullptr)) {}
  ~MatchData() { pcre2_match_data_free(data); }
  pcre2_match_data* data;
};

// A short stack is enough for most expressions when compiled; the interpreter keeps its own on the heap.
int match_at(const pcre2_code* code, std::string_view text, size_t at, pcre2_match_data* data) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const uint32_t flags = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
  const int rc = pcre2_match(code, subject, text.size(), at, flags, data, nullptr);
  if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
  return pcre2_match(code, subject, text.size(), at, flags | PCRE2_NO_JIT, data, nullptr);
}

}  // namespace

void Splitter::Free::operator()(pcre2_code* code) const { pcre2_code_free(code); }

Result<Splitter> Splitter::compile(const std::string& pattern) {
  const std::string text = with_unicode_spaces(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr)
    return invalid("the split pattern is no valid regular expression at byte {}: {}", offset, message_of(error));
  if (const int rc = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); rc != 0)
    log::warn("the split pattern is not compiled to machine code, encoding is slower: {}", message_of(rc));
  return Splitter(code);
}

void Splitter::split(std::string_view text, const Visit& visit) const {
  MatchData match;
  size_t at = 0;
  while (at < text.size()) {
    const int rc = match_at(code_.get(), text, at, match.data);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) return split_blind(text.substr(at), visit);
    if (rc < 0) break;
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.data);
    if (range[0] > at) visit(text.substr(at, range[0] - at));
    visit(text.substr(range[0], range[1] - range[0]));
    at = range[1];
  }
  if (at < text.size()) visit(text.substr(at));
}

}  // namespace nib
