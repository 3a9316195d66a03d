#!/usr/bin/env bash
# The checks that need a second compiler or much time: format, include directions, clang-tidy, the
# tests under sanitizers, and each fuzz target for some seconds. Quick where nothing has changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/prepare.sh

install_packages "${build_packages[@]}" clang-format-16 clang-tidy-16 clang-16 libclang-rt-16-dev
require_recent_tools

# quietly LOG COMMAND...: keeps the output in LOG and shows it only if the command fails.
quietly() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 || {
    cat "$log"
    return 1
  }
}

say "Format"
tools/check_format.sh || fail "sources are not as clang-format writes them" "tools/check_format.sh --fix"

say "Include directions"
tools/check_includes.sh || fail "a folder includes what it may not" "The lines are above."

build release
say "clang-tidy"
tools/check_tidy.sh || fail "clang-tidy found something" "The lines are above; the checks: .clang-tidy"

build debug-asan
say "The tests again, with the address and undefined-behaviour sanitizers"
quietly build/debug-asan/test.log \
  ctest --test-dir build/debug-asan --parallel "$(nproc)" --output-on-failure ||
  fail "tests failed under the sanitizers" "One of them again: ctest --test-dir build/debug-asan -R NAME"

build fuzz fuzz_targets
say "Fuzzing, each target for 15 seconds"
quietly build/fuzz/test.log ctest --test-dir build/fuzz --output-on-failure ||
  fail "fuzzing found an input that fails" \
    "Run the target on the file that its output names, and add the file to fuzz/corpus."

say "All checks passed."
