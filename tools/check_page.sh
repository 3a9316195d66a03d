#!/usr/bin/env bash
# Tests the page of `convene serve` in a headless Chromium, and leaves pictures of it in build/page.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/prepare.sh

build release convene
# Debian's Python, to which its packages belong.
/usr/bin/python3 tests/page/page_test.py build/release/convene build/page ||
  fail "the page does not do what its tests want" \
    "They are named above. One again: /usr/bin/python3 tests/page/page_test.py build/release/convene build/page PageTest.test_NAME"
