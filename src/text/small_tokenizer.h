// A tokenizer of 300 tokens for tests: bytes, a few words, and control tokens under ids unlike those of any model.
//   auto tokenizer = small_tokenizer();
//   std::vector<TokenId> ids = small_ids(*tokenizer, {T, "a plan", E, M, X, "4", E, S});
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace nib {

inline const std::vector<std::string>& small_control_tokens() {
  static const std::vector<std::string> spellings = {"<|end_message|>",
                                                     "<|content_text|>",
                                                     "<|content_thinking|>",
                                                     "<|content_invoke_tool_json|>",
                                                     "<|message_model|>",
                                                     "<|message_user|>",
                                                     "<|message_system|>",
                                                     "<|message_tool|>",
                                                     "<|content_xml|>",
                                                     "<|endoftext|>",
                                                     "<|content_model_end_sampling|>",
                                                     "<|content_image|>",
                                                     "<|unused_200054|>",
                                                     "<|content_invoke_tool_text|>",
                                                     "<|content_tool_error|>",
                                                     "<|begin_of_text|>"};
  return spellings;
}

// Ids: 0 to 15 the control tokens, 20 to 275 the bytes, the highest first, then merged tokens.
// `left_out` is a control token that the file shall lack.
inline Json small_tokenizer_json(std::string_view left_out = {}) {
  Json vocab, merges = Json::array(), added = Json::array();
  const auto spell = [](int byte) {  // the byte-level alphabet
    int next = 0x100, c = byte;
    for (int b = 0; b <= byte; ++b) {
      const bool printable = (b > 0x20 && b < 0x7F) || (b > 0xA0 && b != 0xAD);
      if (!printable)
        c = next++;
      else
        c = b;
    }
    std::string out;
    if (c < 0x80) return out += char(c);
    out += char(0xC0 | c >> 6);
    return out += char(0x80 | (c & 0x3F));
  };
  for (int byte = 0; byte < 256; ++byte) vocab[spell(byte)] = 275 - byte;
  int id = 276;
  for (const auto& [left, right] : std::initializer_list<std::pair<std::string, std::string>>{{"l", "l"},
                                                                                              {"h", "e"},
                                                                                              {"ll", "o"},
                                                                                              {"he", "llo"},
                                                                                              {"\u0120", "hello"},
                                                                                              {"a", "a"},
                                                                                              {"aa", "aa"},
                                                                                              {"p", "l"},
                                                                                              {"pl", "a"},
                                                                                              {"pla", "n"},
                                                                                              {"n", "a"},
                                                                                              {"na", "m"},
                                                                                              {"nam", "e"},
                                                                                              {"e", "n"},
                                                                                              {"en", "d"}}) {
    merges.push_back(left + ' ' + right);
    vocab[left + right] = id++;
  }
  const std::vector<std::string>& controls = small_control_tokens();
  for (size_t i = 0; i < controls.size(); ++i)
    if (controls[i] != left_out) added.push_back({{"id", i}, {"content", controls[i]}, {"special", true}});
  const Json split = {{"type", "Split"}, {"pattern", {{"Regex", kO200kPattern}}}, {"behavior", "Isolated"}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {{"added_tokens", added},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

inline std::shared_ptr<const Tokenizer> small_tokenizer() { return *Tokenizer::parse(small_tokenizer_json().dump()); }

// The control tokens as they are called in the tables of the tests; the values are the ids.
enum Control : TokenId { E, X, T, J, M, USER, SYSTEM, TOOL, XML, EOT, S, IMAGE, PATCH, TOOL_TEXT, TOOL_ERROR, OTHER };

struct Piece {
  Piece(Control c) : control(c) {}                                     // NOLINT: implicit
  Piece(const char* t) : control(E), text(t), is_text(true) {}         // NOLINT: implicit
  Piece(const std::string& t) : control(E), text(t), is_text(true) {}  // NOLINT: implicit
  Control control;
  std::string text;
  bool is_text = false;
};

inline std::vector<TokenId> small_ids(const Tokenizer& tokenizer, const std::vector<Piece>& pieces) {
  std::vector<TokenId> ids;
  for (const Piece& piece : pieces) {
    if (!piece.is_text) {
      ids.push_back(piece.control);
      continue;
    }
    const std::vector<TokenId> text = tokenizer.encode(piece.text, Tokenizer::Special::kText);
    ids.insert(ids.end(), text.begin(), text.end());
  }
  return ids;
}

}  // namespace nib
