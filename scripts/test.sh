#!/usr/bin/env bash
# Installs what is missing, builds convene and runs all its tests. Arguments go to ctest: -R Tokenizer
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/prepare.sh

install_packages "${build_packages[@]}"
require_recent_tools
build release

say "Running the tests"
ctest --test-dir build/release --parallel "$(nproc)" --output-on-failure --no-tests=error "$@" ||
  fail "tests failed; ctest lists them above" "One of them again: ./scripts/test.sh -R NAME"
