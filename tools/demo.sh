#!/usr/bin/env bash
# Serves a model on a free port, asks it one question through the OpenAI API and prints the answer as it streams.
#   tools/demo.sh [MODEL] [QUESTION]
set -euo pipefail
cd "$(dirname "$0")/.."
readonly model=${1:-models/nano}
readonly question=${2:-What is 47 + 85?}
readonly log=build/demo.log

# The first port from 8000 on that nobody listens on.
port=8000
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
readonly url=http://127.0.0.1:$port

build/cpu/nib serve "$model" --host 127.0.0.1 --port "$port" >"$log" 2>&1 &
readonly server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null || true' EXIT

for ((tries = 0; ; ++tries)); do
  curl -fsS "$url/health" >/dev/null 2>&1 && break
  if ! kill -0 "$server" 2>/dev/null || ((tries > 300)); then
    echo "demo: the server did not come up; its log:" >&2
    cat "$log" >&2
    exit 1
  fi
  sleep 0.1
done

echo "serving $model on $url; asking it: $question"
echo
build/cpu/nib chat --url "$url/v1" -q "$question"
echo
echo "the same server by hand: make serve, then"
echo "  curl -N http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\"
echo "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"$question\"}], \"stream\": true}'"
