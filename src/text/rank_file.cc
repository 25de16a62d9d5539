// Reads a tiktoken rank file: one token a line, `base64 rank`; the rank is the id and the order of merging.
#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "text/vocabulary.h"

namespace nib {

namespace {

int sextet(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool decode_base64(std::string_view text, std::string& bytes) {
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  uint32_t bits = 0;
  int num_bits = 0;
  for (char c : text) {
    const int value = sextet(c);
    if (value < 0) return false;
    bits = bits << 6 | uint32_t(value);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += char(bits >> num_bits & 0xFF);
  }
  return num_bits < 6;
}

bool read_line(std::string_view line, std::string& bytes, TokenId& id) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || !decode_base64(line.substr(0, space), bytes)) return false;
  const char* end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data() + space + 1, end, id);
  return error == std::errc() && stop == end && id >= 0 && id <= kMaxTokenId && !bytes.empty() &&
         bytes.size() <= kMaxTokenBytes;
}

Status read_lines(std::string_view text, std::vector<std::string>& tokens) {
  for (size_t at = 0, number = 1; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    std::string bytes;
    TokenId id = 0;
    if (!read_line(line, bytes, id)) return invalid("line {} is no `base64 rank` of a token", number);
    if (size_t(id) >= tokens.size()) tokens.resize(id + 1);
    if (!tokens[id].empty()) return invalid("line {}: rank {} is there twice", number, id);
    tokens[id] = std::move(bytes);
  }
  return {};
}

bool is_spelled_as_control(std::string_view token) {
  return token.size() > 4 && token.starts_with("<|") && token.ends_with("|>");
}

// Any two tokens whose bytes together are a token merge, with the rank of that token.
void derive_merges(Vocabulary& out) {
  std::unordered_map<std::string_view, TokenId> ids;
  ids.reserve(out.tokens.size());
  for (size_t id = 0; id < out.tokens.size(); ++id)
    if (!out.tokens[id].empty()) ids.emplace(out.tokens[id], TokenId(id));
  for (size_t id = 0; id < out.tokens.size(); ++id) {
    const std::string_view token = out.tokens[id];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(token.substr(cut));
      if (right != ids.end()) out.merges.push_back({left->second, right->second, TokenId(id), uint32_t(id)});
    }
  }
}

}  // namespace

Result<Vocabulary> parse_rank_file(std::string_view text, AddedTokens added) {
  Vocabulary out;
  NIB_TRY(read_lines(text, out.tokens));
  if (out.tokens.empty()) return invalid("the rank file holds no token");
  for (size_t id = 0; added.empty() && id < out.tokens.size(); ++id)
    if (is_spelled_as_control(out.tokens[id])) out.added.emplace_back(id, out.tokens[id]);
  if (!added.empty()) out.added = std::move(added);
  for (const auto& [id, spelling] : out.added)
    if (size_t(id) < out.tokens.size()) out.tokens[id].clear();
  derive_merges(out);
  out.pattern = kO200kPattern;
  for (const auto& [id, spelling] : out.added) {
    if (size_t(id) >= out.tokens.size()) out.tokens.resize(id + 1);
    out.tokens[id] = spelling;
  }
  return out;
}

}  // namespace nib
