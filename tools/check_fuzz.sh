#!/usr/bin/env bash
# Builds the fuzz targets and lets each look for failing inputs for some seconds (fuzz/CMakeLists.txt).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/prepare.sh

build fuzz fuzz_targets
say "Fuzzing each target for some seconds"
ctest --test-dir build/fuzz --parallel "$(nproc)" --output-on-failure --no-tests=error --label-regex "^fuzz\$" \
  >build/fuzz/test.log 2>&1 || {
  tail -n 300 build/fuzz/test.log
  fail "fuzzing found an input that fails" \
    "Run the target on the file that its output names, and add the file to fuzz/corpus."
}
tail -n 4 build/fuzz/test.log
