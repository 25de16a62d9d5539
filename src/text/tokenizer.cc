#include "text/tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include "text/bpe.h"
#include "text/detokenizer.h"
#include "text/splitter.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace nib {

namespace {

// The spellings of the special tokens, sorted, so that the longest one at a place is found by narrowing a range.
class SpecialTokens {
 public:
  explicit SpecialTokens(const AddedTokens& added) {
    for (const auto& [id, spelling] : added) sorted_.emplace_back(spelling, id);
    std::sort(sorted_.begin(), sorted_.end());
    for (const auto& [spelling, id] : sorted_)
      if (first_bytes_.empty() || first_bytes_.back() != spelling[0]) first_bytes_ += spelling[0];
  }

  std::optional<TokenId> find(std::string_view spelling) const {
    const auto it = std::lower_bound(sorted_.begin(), sorted_.end(), std::pair(std::string(spelling), TokenId(0)));
    if (it == sorted_.end() || it->first != spelling) return {};
    return it->second;
  }

  struct Found {
    size_t at, length;  // at: the size of the text if there is none
    TokenId id;
  };
  // The leftmost special token from `from` on; of several at one place the longest.
  Found next(std::string_view text, size_t from) const {
    for (size_t at = text.find_first_of(first_bytes_, from); at < text.size();
         at = text.find_first_of(first_bytes_, at + 1))
      if (const Found found = longest_at(text, at); found.length > 0) return found;
    return {text.size(), 0, 0};
  }

 private:
  Found longest_at(std::string_view text, size_t at) const {
    Found found{at, 0, 0};
    auto low = sorted_.begin(), high = sorted_.end();
    for (size_t depth = 0; at + depth < text.size() && low != high; ++depth) {
      const uint8_t byte = text[at + depth];
      low = std::partition_point(low, high, [&](const auto& s) { return byte_at(s.first, depth) < byte; });
      high = std::partition_point(low, high, [&](const auto& s) { return byte_at(s.first, depth) == byte; });
      if (low != high && low->first.size() == depth + 1) found = {at, depth + 1, low->second};
    }
    return found;
  }
  static int byte_at(const std::string& s, size_t i) { return i < s.size() ? uint8_t(s[i]) : -1; }

  std::vector<std::pair<std::string, TokenId>> sorted_;
  std::string first_bytes_;
};

}  // namespace

struct Tokenizer::Impl {
  Impl(Vocabulary v, Bpe b, Splitter s)
      : vocabulary(std::move(v)),
        bpe(std::move(b)),
        splitter(std::move(s)),
        special_tokens(vocabulary.added),
        special(vocabulary.tokens.size()) {
    for (const auto& [id, spelling] : vocabulary.added) special[id] = true;
    pieces.reserve(vocabulary.tokens.size());
    for (size_t id = 0; id < vocabulary.tokens.size(); ++id)
      if (!special[id] && !vocabulary.tokens[id].empty()) pieces.emplace(vocabulary.tokens[id], TokenId(id));
  }

  // A piece that is a token is that token, whatever the merges would make of it.
  void encode_piece(std::string_view piece, Bpe::Scratch& scratch, std::vector<TokenId>& ids) const {
    if (const auto it = pieces.find(piece); it != pieces.end())
      ids.push_back(it->second);
    else
      bpe.merge(piece, scratch, ids);
  }

  void encode_text(std::string_view text, Bpe::Scratch& scratch, std::vector<TokenId>& ids) const {
    splitter.split(text, [&](std::string_view piece) { encode_piece(piece, scratch, ids); });
  }

  bool knows(TokenId id) const { return id >= 0 && size_t(id) < vocabulary.tokens.size(); }

  Vocabulary vocabulary;
  Bpe bpe;
  Splitter splitter;
  SpecialTokens special_tokens;
  std::vector<bool> special;                             // by id
  std::unordered_map<std::string_view, TokenId> pieces;  // ordinary tokens only; views into vocabulary.tokens
};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::filesystem::path& folder_or_file) {
  NIB_ASSIGN(Vocabulary vocabulary, read_vocabulary(folder_or_file));
  Result<std::shared_ptr<const Tokenizer>> tokenizer = make(std::move(vocabulary));
  if (tokenizer.ok()) return tokenizer;
  return Status(tokenizer.status().code(), folder_or_file.string() + ": " + tokenizer.status().message());
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::parse(std::string_view tokenizer_json) {
  NIB_ASSIGN(Vocabulary vocabulary, parse_tokenizer_json(tokenizer_json));
  return make(std::move(vocabulary));
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::make(Vocabulary vocabulary) {
  NIB_ASSIGN(Bpe bpe, Bpe::make(vocabulary));
  NIB_ASSIGN(Splitter splitter, Splitter::compile(vocabulary.pattern));
  vocabulary.merges = {};
  auto impl = std::make_unique<const Impl>(std::move(vocabulary), std::move(bpe), std::move(splitter));
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, Special special) const {
  std::string repaired;
  if (!is_valid_utf8(text)) text = repaired = repair_utf8(text);
  Bpe::Scratch scratch;
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 4 + 1);
  if (special == Special::kText) {
    impl_->encode_text(text, scratch, ids);
    return ids;
  }
  for (size_t at = 0; at < text.size();) {
    const auto found = impl_->special_tokens.next(text, at);
    impl_->encode_text(text.substr(at, found.at - at), scratch, ids);
    if (found.length > 0) ids.push_back(found.id);
    at = found.at + found.length;
  }
  return ids;
}

std::string_view Tokenizer::bytes(TokenId id) const {
  return impl_->knows(id) ? std::string_view(impl_->vocabulary.tokens[id]) : std::string_view();
}

bool Tokenizer::is_special(TokenId id) const { return impl_->knows(id) && impl_->special[id]; }

std::optional<TokenId> Tokenizer::special(std::string_view spelling) const {
  return impl_->special_tokens.find(spelling);
}

int32_t Tokenizer::size() const { return int32_t(impl_->vocabulary.tokens.size()); }

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  Detokenizer detokenizer(*this, skip_special);
  std::string text;
  for (TokenId id : ids) text += detokenizer.push(id);
  return text += detokenizer.finish();
}

}  // namespace nib
