#include "text/vocabulary.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/file.h"

namespace nib {

namespace fs = std::filesystem;

const char* const kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

std::optional<TokenId> parse_id(std::string_view digits) {
  if (digits.empty() || digits.size() > 9) return {};
  TokenId id = 0;
  for (char c : digits) {
    if (c < '0' || c > '9') return {};
    id = id * 10 + (c - '0');
  }
  if (id > kMaxTokenId) return {};
  return id;
}

// HF's tokenizer_config.json {"added_tokens_decoder": {"7": {"content": "<|x|>"}}}, or a flat map {"7": "<|x|>"} or
// {"<|x|>": 7}.
AddedTokens parse_added_tokens(const nlohmann::json& json) {
  AddedTokens added;
  const bool decoder = json.contains("added_tokens_decoder");
  const nlohmann::json& map = decoder ? json["added_tokens_decoder"] : json;
  for (const auto& [key, value] : map.items()) {
    const std::optional<TokenId> id = parse_id(key);
    if (id && value.is_string())
      added.emplace_back(*id, value.get<std::string>());
    else if (id && value.is_object() && value.contains("content") && value["content"].is_string())
      added.emplace_back(*id, value["content"].get<std::string>());
    else if (!decoder && value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t(kMaxTokenId))
      added.emplace_back(value.get<TokenId>(), key);
  }
  return added;
}

// The list of added tokens that lies beside a rank file or one folder above; empty if there is none.
Result<AddedTokens> find_added_tokens(const fs::path& rank_file) {
  for (const fs::path& folder : {rank_file.parent_path(), rank_file.parent_path() / ".."}) {
    for (const char* name : {"added_tokens.json", "tokenizer_config.json"}) {
      if (!fs::exists(folder / name)) continue;
      NIB_ASSIGN(const std::string text, read_file(folder / name));
      const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (!json.is_object()) return invalid("{} does not hold a JSON object", (folder / name).string());
      if (AddedTokens added = parse_added_tokens(json); !added.empty()) return added;
    }
  }
  return AddedTokens{};
}

Result<fs::path> find_file(const fs::path& folder) {
  for (const char* name : {"tokenizer.json", "tiktoken/tokenizer.model", "tokenizer.model"})
    if (fs::is_regular_file(folder / name)) return folder / name;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".tiktoken") return entry.path();
  return Status(Code::kNotFound, fmt::format("{} holds neither tokenizer.json nor a tiktoken rank file "
                                             "(tiktoken/tokenizer.model or *.tiktoken)",
                                             folder.string()));
}

bool looks_like_json(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

}  // namespace

Result<Vocabulary> read_vocabulary(const fs::path& folder_or_file) {
  fs::path file = folder_or_file;
  std::error_code error;
  if (fs::is_directory(file, error)) {
    NIB_ASSIGN(file, find_file(folder_or_file));
  }
  NIB_ASSIGN(const std::string text, read_file(file));
  AddedTokens added;
  const bool json = looks_like_json(text);
  if (!json) {
    NIB_ASSIGN(added, find_added_tokens(file));
  }
  Result<Vocabulary> vocabulary = json ? parse_tokenizer_json(text) : parse_rank_file(text, std::move(added));
  if (!vocabulary.ok()) return Status(vocabulary.status().code(), file.string() + ": " + vocabulary.status().message());
  return vocabulary;
}

}  // namespace nib
