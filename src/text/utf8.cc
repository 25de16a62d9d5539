#include "text/utf8.h"

#include <cstdint>
#include <cstring>
#include <utility>

namespace nib {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Lead {
  int length;               // of the whole character; 0 if no character starts so
  uint8_t lowest, highest;  // range of the second byte
};

// Table 3-7 of the Unicode standard.
Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte < 0xF0) return {3, uint8_t(byte == 0xE0 ? 0xA0 : 0x80), uint8_t(byte == 0xED ? 0x9F : 0xBF)};
  if (byte < 0xF5) return {4, uint8_t(byte == 0xF0 ? 0x90 : 0x80), uint8_t(byte == 0xF4 ? 0x8F : 0xBF)};
  return {0, 0, 0};
}

enum class Kind { kCharacter, kInvalid, kIncomplete };
struct Part {
  Kind kind;
  size_t length;
};

// The character, or the maximal invalid part, that begins at text[at].
Part next_part(std::string_view text, size_t at) {
  const Lead lead = lead_of(text[at]);
  if (lead.length == 0) return {Kind::kInvalid, 1};
  for (int i = 1; i < lead.length; ++i) {
    if (at + i == text.size()) return {Kind::kIncomplete, size_t(i)};
    const uint8_t byte = text[at + i];
    const bool fits = i == 1 ? lead.lowest <= byte && byte <= lead.highest : (byte & 0xC0) == 0x80;
    if (!fits) return {Kind::kInvalid, size_t(i)};
  }
  return {Kind::kCharacter, size_t(lead.length)};
}

// Position of the first byte at or after `at` that is not ASCII.
size_t skip_ascii(std::string_view text, size_t at) {
  for (uint64_t word; at + 8 <= text.size(); at += 8) {
    std::memcpy(&word, text.data() + at, 8);
    if (word & 0x8080808080808080u) break;
  }
  while (at < text.size() && uint8_t(text[at]) < 0x80) ++at;
  return at;
}

// Length of the valid text at the start.
size_t valid_prefix(std::string_view text, size_t at) {
  while ((at = skip_ascii(text, at)) < text.size()) {
    const Part part = next_part(text, at);
    if (part.kind != Kind::kCharacter) break;
    at += part.length;
  }
  return at;
}

}  // namespace

std::string Utf8Repair::push(std::string_view bytes) {
  std::string joined;
  if (!held_.empty()) {
    joined = std::exchange(held_, {});
    joined += bytes;
    bytes = joined;
  }
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = valid_prefix(bytes, at);
    out += bytes.substr(at, end - at);
    if (end == bytes.size()) break;
    const Part part = next_part(bytes, end);
    if (part.kind == Kind::kIncomplete)
      held_ = bytes.substr(end);
    else
      out += kReplacement;
    at = end + part.length;
  }
  return out;
}

std::string Utf8Repair::finish() {
  return std::exchange(held_, {}).empty() ? std::string() : std::string(kReplacement);
}

bool is_valid_utf8(std::string_view text) { return valid_prefix(text, 0) == text.size(); }

std::string repair_utf8(std::string_view text) {
  Utf8Repair repair;
  std::string out = repair.push(text);
  return out += repair.finish();
}

}  // namespace nib
