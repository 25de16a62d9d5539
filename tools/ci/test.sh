#!/usr/bin/env bash
# Everything CI runs, stage by stage, with the minutes of each; stops at the first stage that fails and names it.
#   tools/ci/test.sh                  all of it
#   tools/ci/test.sh check unit       some of it, in the order given
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly JOBS=${JOBS:-$(nproc)}
readonly FUZZ_SECONDS=${FUZZ_SECONDS:-60}
readonly ALL_STAGES=(install check build tokenizer unit e2e asan tsan fuzz)

stage_install() { tools/ci/install.sh build test node; }

stage_check() {
  python3 tools/check_includes_test.py
  python3 tools/check_includes.py
  git ls-files '*.cc' '*.h' | xargs clang-format-14 --dry-run -Werror
}

stage_build() {
  cmake --preset cpu
  cmake --build --preset cpu -j "$JOBS"
}

# The real tokenizer, from npm's ranks: the unit tests hold it to its reference ids.
stage_tokenizer() { tools/inkling_tokenizer/build.sh; }

# Every unit and property test of the release build.
stage_unit() { ctest --test-dir build/cpu --output-on-failure -j "$JOBS"; }

# Real clients against the real binary.
stage_e2e() {
  (cd tests/e2e && npm ci --no-audit --no-fund && npm test)
}

# The unit tests again, with every bad access, leak and undefined operation an error.
stage_asan() {
  cmake --preset asan
  cmake --build --preset asan -j "$JOBS" --target unit_tests
  UBSAN_OPTIONS=print_stacktrace=1 ctest --test-dir build/asan --output-on-failure -j "$JOBS"
}

# The parts with threads of their own: queues and pool, and the engine with its thread.
stage_tsan() {
  cmake --preset tsan
  cmake --build --preset tsan -j "$JOBS" --target base_test engine_test soak
  ctest --test-dir build/tsan --output-on-failure -R '^(base|engine)' -j "$JOBS"
}

# Every fuzz target at once, each for FUZZ_SECONDS from its committed corpus.
stage_fuzz() {
  cmake --preset fuzz
  cmake --build --preset fuzz -j "$JOBS" --target fuzz_targets
  tools/ci/fuzz.sh "$FUZZ_SECONDS"
}

report=()
current=
finish() {
  local status=$?
  printf '\n%-10s %9s %12s\n' stage minutes cpu-minutes
  printf '%s\n' "${report[@]}"
  [ "$status" = 0 ] || echo "FAILED in stage $current"
}
trap finish EXIT

# Seconds of processor time that everything started from here has used.
cpu_seconds() {
  awk '{ for (i = 14; i <= 17; ++i) t += $i } END { printf "%d", t / '"$(getconf CLK_TCK)"' }' "/proc/$$/stat"
}

add_row() { report+=("$(awk -v n="$1" -v w="$2" -v c="$3" 'BEGIN { printf "%-10s %9.1f %12.1f", n, w / 60, c / 60 }')"); }

stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=("${ALL_STAGES[@]}")
for current in "${stages[@]}"; do
  declare -F "stage_$current" >/dev/null || { echo "no stage $current; there are: ${ALL_STAGES[*]}" >&2; exit 2; }
  printf '\n=== %s ===\n' "$current"
  start=$SECONDS start_cpu=$(cpu_seconds)
  "stage_$current"
  add_row "$current" $((SECONDS - start)) $(($(cpu_seconds) - start_cpu))
done
add_row total "$SECONDS" "$(cpu_seconds)"
