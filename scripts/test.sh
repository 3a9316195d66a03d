#!/usr/bin/env bash
# Installs what is missing, builds convene and runs all its tests. Arguments go to ctest: -R Tokenizer
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/prepare.sh

install_packages "${build_packages[@]}"
require_recent_tools
build release

say "Running the tests"
if ! ctest --test-dir build/release --parallel "$(nproc)" --output-on-failure --no-tests=error "$@"; then
  # Once more, where a reader of a long log looks first.
  awk '/^[0-9]+\/[0-9]+ Test(ing)?: / { text = "" } { text = text $0 "\n" } /^Test Failed/ { printf "%s", text }' \
    build/release/Testing/Temporary/LastTest.log | tail -n 300
  fail "tests failed; ctest lists them above" "One of them again: ./scripts/test.sh -R NAME"
fi
