#include "server/auth.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cctype>

namespace nib {

namespace {

constexpr std::string_view kGuarded[] = {"/v1", "/v2", "/inference", "/tokenize", "/detokenize"};

bool is_guarded(std::string_view path) {
  return std::any_of(std::begin(kGuarded), std::end(kGuarded), [&](std::string_view p) { return path.starts_with(p); });
}

// "Bearer KEY", the scheme in any case.
std::string_view bearer(std::string_view header) {
  constexpr std::string_view kScheme = "bearer ";
  if (header.size() < kScheme.size()) return {};
  for (size_t i = 0; i < kScheme.size(); ++i)
    if (std::tolower(static_cast<unsigned char>(header[i])) != kScheme[i]) return {};
  header.remove_prefix(kScheme.size());
  while (header.starts_with(' ')) header.remove_prefix(1);
  return header;
}

}  // namespace

KeyRing::Digest KeyRing::digest(std::string_view key) {
  Digest out;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), out.data());
  return out;
}

KeyRing::KeyRing(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) digests_.push_back(digest(key));
}

bool KeyRing::admits(const HttpRequest& request) const {
  if (digests_.empty() || request.method == "OPTIONS" || !is_guarded(request.path)) return true;
  const Digest given = digest(bearer(request.header("authorization")));
  bool known = false;  // looks at every key, so that time does not tell which one matched
  for (const Digest& d : digests_) known |= CRYPTO_memcmp(d.data(), given.data(), given.size()) == 0;
  return known;
}

}  // namespace nib
