// A hostile tokenizer.json: an error, or a vocabulary whose every id leads to a token and whose merges, which is what
// text becomes, never make a special one.
#include <unordered_set>

#include "base/check.h"
#include "text/vocabulary.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const nib::Result<nib::Vocabulary> v = nib::parse_tokenizer_json({reinterpret_cast<const char*>(data), size});
  if (!v.ok()) {
    NIB_CHECK(!v.status().message().empty());
    return 0;
  }
  const auto known = [&](nib::TokenId id) { return id >= 0 && static_cast<size_t>(id) < v->tokens.size(); };
  NIB_CHECK(v->tokens.size() <= static_cast<size_t>(nib::kMaxTokenId) + 1);
  for (const std::string& token : v->tokens) NIB_CHECK(token.size() <= nib::kMaxTokenBytes);
  std::unordered_set<nib::TokenId> special;
  for (const auto& [id, spelling] : v->added) {
    NIB_CHECK(known(id) && v->tokens[id] == spelling);
    special.insert(id);
  }
  for (const nib::Merge& m : v->merges) {
    NIB_CHECK(known(m.left) && known(m.right) && known(m.merged));
    NIB_CHECK(!special.contains(m.left) && !special.contains(m.right) && !special.contains(m.merged));
    NIB_CHECK(v->tokens[m.left] + v->tokens[m.right] == v->tokens[m.merged]);
  }
  return 0;
}
