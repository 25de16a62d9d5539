#!/usr/bin/env bash
# Runs every fuzz target in parallel for the given seconds, from its committed corpus; fails if one of them crashes.
#   tools/ci/fuzz.sh 60
# What the run finds goes to build/fuzz/found/NAME; an input that crashes is kept there and its target's log is shown.
set -euo pipefail
cd "$(dirname "$0")/../.."
readonly seconds=${1:?seconds per target}

names=() pids=()
for source in fuzz/*_fuzz.cc; do
  name=$(basename "$source" .cc)
  corpus=fuzz/corpus/${name%_fuzz}
  found=build/fuzz/found/$name
  [ -d "$corpus" ] || { echo "fuzz: $name has no corpus in $corpus" >&2; exit 1; }
  mkdir -p "$found"
  "build/fuzz/fuzz/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
    -artifact_prefix="$found/crash-" -print_final_stats=1 "$found" "$corpus" >"build/fuzz/$name.log" 2>&1 &
  names+=("$name") pids+=($!)
done
[ ${#names[@]} -gt 0 ] || { echo "fuzz: no targets in fuzz/" >&2; exit 1; }

failed=0
for i in "${!names[@]}"; do
  log=build/fuzz/${names[i]}.log
  if wait "${pids[i]}"; then
    printf '%-20s ok, %s inputs\n' "${names[i]}" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
  else
    printf '%-20s FAILED\n' "${names[i]}"
    tail -n 60 "$log"
    failed=1
  fi
done
exit "$failed"
