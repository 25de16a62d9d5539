// Reads the tokenizer.json of Hugging Face tokenizers: byte-level BPE with one Split pattern.
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "text/vocabulary.h"

namespace nib {

namespace {

using nlohmann::json;  // sorted maps: keys are found fast among 200,000

// GPT-2's pattern, which a ByteLevel pre-tokenizer with use_regex stands for.
constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Byte-level vocabularies spell each byte as one printable character: itself, if it is one, else the next
// unused from U+0100 on.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    byte_of_.fill(-1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
      byte_of_[printable ? byte : next++] = int16_t(byte);
    }
  }

  // The bytes of a spelling; false if it holds a character outside the alphabet.
  bool decode(std::string_view spelling, std::string& bytes) const {
    for (size_t i = 0; i < spelling.size(); ++i) {
      uint32_t c = uint8_t(spelling[i]);
      if (c >= 0x80) {  // all characters of the alphabet take at most two bytes of UTF-8
        if ((c & 0xE0) != 0xC0 || i + 1 == spelling.size()) return false;
        c = (c & 0x1F) << 6 | (uint8_t(spelling[++i]) & 0x3F);
      }
      if (c >= byte_of_.size() || byte_of_[c] < 0) return false;
      bytes += char(byte_of_[c]);
    }
    return true;
  }

 private:
  std::array<int16_t, 0x200> byte_of_;
};

using Ids = std::unordered_map<std::string_view, TokenId>;

const json& member(const json& object, const char* key) {
  static const json null;
  const auto it = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && it != object.end() ? *it : null;
}

bool is_string(const json& object, const char* key, std::string_view value) {
  const json& m = member(object, key);
  return m.is_string() && m.get_ref<const std::string&>() == value;
}

// A value for an error message; dumping a deeply nested one could exhaust the stack.
std::string shown(const json& value) { return value.is_structured() ? value.type_name() : value.dump(); }

Result<TokenId> read_id(const json& value, std::string_view spelling) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t(kMaxTokenId))
    return invalid("token \"{}\" has the id {}, ids are integers from 0 to {}", spelling, shown(value), kMaxTokenId);
  return value.get<TokenId>();
}

void put(std::vector<std::string>& tokens, TokenId id, std::string bytes) {
  if (size_t(id) >= tokens.size()) tokens.resize(id + 1);
  tokens[id] = std::move(bytes);
}

Status read_added(const json& list, Vocabulary& out) {
  if (!list.is_array() && !list.is_null()) return invalid("\"added_tokens\" is no list");
  for (const json& token : list) {
    const json& content = member(token, "content");
    if (!content.is_string() || content.get_ref<const std::string&>().empty())
      return invalid("an entry of \"added_tokens\" has no \"content\"");
    const std::string& spelling = content.get_ref<const std::string&>();
    NIB_ASSIGN(const TokenId id, read_id(member(token, "id"), spelling));
    out.added.emplace_back(id, spelling);
  }
  return {};
}

Status read_tokens(const json& vocab, const Ids& added, Vocabulary& out, Ids& ids) {
  if (!vocab.is_object() || vocab.empty()) return invalid("\"model\" has no \"vocab\"");
  const ByteAlphabet alphabet;
  ids.reserve(vocab.size());
  for (const auto& [spelling, value] : vocab.items()) {
    NIB_ASSIGN(const TokenId id, read_id(value, spelling));
    ids.emplace(spelling, id);
    if (added.contains(spelling)) continue;
    std::string bytes;
    if (spelling.empty() || !alphabet.decode(spelling, bytes))
      return invalid("token {} is not spelled in the byte-level alphabet", id);
    if (size_t(id) < out.tokens.size() && !out.tokens[id].empty()) return invalid("two tokens have the id {}", id);
    put(out.tokens, id, std::move(bytes));
  }
  return {};
}

// "a b" or ["a", "b"].
bool read_pair(const json& entry, std::string_view& left, std::string_view& right) {
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
    left = entry[0].get_ref<const std::string&>();
    right = entry[1].get_ref<const std::string&>();
    return true;
  }
  if (!entry.is_string()) return false;
  const std::string_view pair = entry.get_ref<const std::string&>();
  const size_t space = pair.find(' ');
  if (space == std::string_view::npos) return false;
  left = pair.substr(0, space);
  right = pair.substr(space + 1);
  return true;
}

Status read_merges(const json& merges, const Ids& ids, const Ids& added, Vocabulary& out) {
  if (!merges.is_array()) return invalid("\"model\" has no \"merges\"");
  out.merges.reserve(merges.size());
  std::string joined;
  for (const json& entry : merges) {
    const uint32_t rank = out.merges.size();
    std::string_view left, right;
    if (!read_pair(entry, left, right)) return invalid("merge {} is no pair of tokens", rank);
    joined.assign(left).append(right);
    const auto l = ids.find(left), r = ids.find(right), merged = ids.find(joined);
    if (l == ids.end() || r == ids.end() || merged == ids.end())
      return invalid("merge {} names a token that is not in the vocabulary", rank);
    if (added.contains(left) || added.contains(right) || added.contains(joined))
      return invalid("merge {} names a special token, which text must never become", rank);
    out.merges.push_back({l->second, r->second, merged->second, rank});
  }
  return {};
}

Status put_added(Vocabulary& out) {
  for (const auto& [id, spelling] : out.added) {
    if (size_t(id) < out.tokens.size() && !out.tokens[id].empty() && out.tokens[id] != spelling)
      return invalid("the special token \"{}\" has the id {} of another token", spelling, id);
    put(out.tokens, id, spelling);
  }
  return {};
}

// Finds the split pattern among the pre-tokenizers, and refuses what would change the text in any other way.
Status read_pattern(const json& pre_tokenizer, Vocabulary& out) {
  if (is_string(pre_tokenizer, "type", "Sequence")) {
    for (const json& step : member(pre_tokenizer, "pretokenizers")) {
      if (is_string(step, "type", "Sequence")) return invalid("a pre-tokenizer Sequence holds another one");
      NIB_TRY(read_pattern(step, out));
    }
    return {};
  }
  std::string pattern;
  if (is_string(pre_tokenizer, "type", "ByteLevel")) {
    if (member(pre_tokenizer, "add_prefix_space") == true)
      return invalid("the pre-tokenizer adds a space in front, which is not supported");
    if (member(pre_tokenizer, "use_regex") == false) return {};
    pattern = kGpt2Pattern;
  } else if (is_string(pre_tokenizer, "type", "Split")) {
    const json& regex = member(member(pre_tokenizer, "pattern"), "Regex");
    const bool keeps_matches =
        is_string(pre_tokenizer, "behavior", "Isolated") ||
        (is_string(pre_tokenizer, "behavior", "Removed") && member(pre_tokenizer, "invert") == true);
    if (!regex.is_string() || !keeps_matches)
      return invalid("the Split pre-tokenizer is not a Regex with the behaviour Isolated");
    pattern = regex.get<std::string>();
  } else {
    return invalid("the pre-tokenizer {} is not supported, only Split and ByteLevel are",
                   shown(member(pre_tokenizer, "type")));
  }
  if (!out.pattern.empty()) return invalid("there are two split patterns, only one is supported");
  out.pattern = std::move(pattern);
  return {};
}

Result<Vocabulary> read_tokenizer(const json& root) {
  const json& model = member(root, "model");
  if (!is_string(model, "type", "BPE") && !member(model, "type").is_null())
    return invalid("the model is {}, only BPE is supported", shown(member(model, "type")));
  if (!member(root, "normalizer").is_null()) return invalid("the tokenizer has a normalizer, which is not supported");
  Vocabulary out;
  NIB_TRY(read_pattern(member(root, "pre_tokenizer"), out));
  if (out.pattern.empty()) return invalid("the tokenizer has no split pattern");
  NIB_TRY(read_added(member(root, "added_tokens"), out));
  Ids added, ids;
  for (const auto& [id, spelling] : out.added) added.emplace(spelling, id);
  NIB_TRY(read_tokens(member(model, "vocab"), added, out, ids));
  NIB_TRY(read_merges(member(model, "merges"), ids, added, out));
  NIB_TRY(put_added(out));
  return out;
}

}  // namespace

Result<Vocabulary> parse_tokenizer_json(std::string_view text) {
  try {
    return read_tokenizer(json::parse(text));
  } catch (const json::exception& e) {
    return invalid("invalid JSON: {}", e.what());
  }
}

}  // namespace nib
