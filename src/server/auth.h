// API keys, compared by digest in constant time.
//   KeyRing keys({"secret"});
//   if (!keys.admits(request)) return 401;
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_message.h"

namespace nib {

class KeyRing {
 public:
  explicit KeyRing(const std::vector<std::string>& keys);  // none: everybody is admitted
  // Open paths (health, metrics, ...) and OPTIONS need no key.
  bool admits(const HttpRequest& request) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest(std::string_view key);
  std::vector<Digest> digests_;
};

}  // namespace nib
