#!/usr/bin/env bash
# Installs the Debian 12 packages that are missing, found by probing for what they provide.
#   tools/ci/install.sh build        what `make build` and `make demo` need
#   tools/ci/install.sh test node    what `make test` needs besides
# Installs nothing where nothing is missing; asks for sudo only where it installs and is not root.
set -euo pipefail

# probe | package. A probe is a command on PATH, a file, or FILE=TEXT: the file holds the text.
# Node.js and npm are probed one by one: other distributors' nodejs brings its own npm, and Debian's package npm would
# pull Debian's nodejs over it.
build_packages() {
  cat <<'LIST'
g++                                                           | g++
cmake                                                         | cmake
ninja                                                         | ninja-build
pkg-config                                                    | pkg-config
curl                                                          | curl
/usr/include/boost/version.hpp="1_81"                         | libboost1.81-dev
/usr/include/nlohmann/json.hpp                                | nlohmann-json3-dev
/usr/include/CLI/CLI.hpp                                      | libcli11-dev
/usr/include/fmt/format.h                                     | libfmt-dev
/usr/include/spdlog/spdlog.h                                  | libspdlog-dev
/usr/include/pcre2.h                                          | libpcre2-dev
/usr/include/prometheus/registry.h                            | prometheus-cpp-dev
/usr/include/openssl/ssl.h                                    | libssl-dev
/usr/include/gtest/gtest.h                                    | libgtest-dev
/usr/include/gmock/gmock.h                                    | libgmock-dev
/usr/include/benchmark/benchmark.h                            | libbenchmark-dev
/usr/include/oneapi/dnnl/dnnl.hpp                             | libdnnl-dev
LIST
}

test_packages() {
  cat <<'LIST'
clang++-16                                                    | clang-16
/usr/lib/llvm-16/lib/clang/16/lib/linux/libclang_rt.fuzzer-x86_64.a | libclang-rt-16-dev
clang-format-14                                               | clang-format-14
git                                                           | git
python3                                                       | python3
LIST
}

node_packages() {
  cat <<'LIST'
node                                                          | nodejs
npm                                                           | npm
LIST
}

present() {
  local probe=$1
  case "$probe" in
    *=*) grep -qsF "${probe#*=}" "${probe%%=*}" ;;
    /*) [ -e "$probe" ] ;;
    *) command -v "$probe" >/dev/null ;;
  esac
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Mirrors fail now and then; three tries, then the error stands.
retry() {
  local attempt
  for attempt in 1 2 3; do
    "$@" && return 0
    echo "install: attempt $attempt failed: $*" >&2
    sleep $((attempt * 5))
  done
  return 1
}

missing=()
for group in "$@"; do
  while IFS='|' read -r probe package; do
    read -r probe <<<"$probe"
    read -r package <<<"$package"
    present "$probe" || missing+=("$package")
  done < <("${group}_packages")
done

if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi
echo "install: missing ${missing[*]}"
if ! command -v apt-get >/dev/null; then
  echo "install: no apt-get here; install what provides these Debian 12 packages, then run make again" >&2
  exit 1
fi
retry as_root apt-get update -q
retry as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
