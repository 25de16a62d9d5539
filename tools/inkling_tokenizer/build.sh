#!/bin/sh
# Builds the real Inkling tokenizer into build/inkling-tokenizer (or into the folder given). Needs node 18 and npm.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
(cd "$here" && npm ci --no-audit --no-fund --silent)
exec node "$here/make.mjs" "${1:-$here/../../build/inkling-tokenizer}"
