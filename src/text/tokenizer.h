// Text to token ids and back, exactly as the model was trained; immutable after load, so any thread may use it.
//   Result<std::shared_ptr<const Tokenizer>> t = Tokenizer::load("model_folder");
//   std::vector<TokenId> ids = (*t)->encode("Hello world", Tokenizer::Special::kText);
//   std::string text = (*t)->decode(ids, /*skip_special=*/false);
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace nib {

struct Vocabulary;

using TokenId = int32_t;

class Tokenizer {
 public:
  // A folder (tokenizer.json, else a tiktoken rank file), a tokenizer.json or a rank file.
  static Result<std::shared_ptr<const Tokenizer>> load(const std::filesystem::path& folder_or_file);
  // The text of a tokenizer.json.
  static Result<std::shared_ptr<const Tokenizer>> parse(std::string_view tokenizer_json);
  ~Tokenizer();

  // kText: the spelling of a special token is ordinary text, so no input whatsoever yields a special id.
  enum class Special { kText, kRecognise };

  // Each maximal invalid part of UTF-8 counts as U+FFFD. Time is near-linear for every input.
  std::vector<TokenId> encode(std::string_view text, Special special) const;

  // The raw bytes of a token; the spelling of a special one; empty if the id is unknown. Valid as long as *this.
  std::string_view bytes(TokenId id) const;
  bool is_special(TokenId id) const;                                // listed among the added tokens
  std::optional<TokenId> special(std::string_view spelling) const;  // the id of a special token
  int32_t size() const;                                             // largest id + 1

  // The bytes of all ids, with invalid UTF-8 repaired (U+FFFD).
  std::string decode(std::span<const TokenId> ids, bool skip_special) const;

 private:
  struct Impl;
  static Result<std::shared_ptr<const Tokenizer>> make(Vocabulary vocabulary);
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace nib
