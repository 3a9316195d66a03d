#!/usr/bin/env bash
# OpenAI's Python package, and bodies that make little sense, against the server (tests/clients/).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/prepare.sh

build release convene
say "Clients against convene serve"
tests/clients/run.sh build/release/convene ||
  fail "the server did not answer a client as it should" \
    "What was wrong is above. Again: tests/clients/run.sh build/release/convene"
