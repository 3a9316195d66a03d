#!/usr/bin/env bash
# Clients of others against `convene serve`: tests/clients/run.sh CONVENE [BODIES [SECONDS]]
# Installs the package openai from PyPI into build/clients, where it is not there, runs its tests, and
# then sends BODIES (20000) changed bodies, for at most SECONDS (60).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

binary=$(realpath "$1")
bodies=${2:-20000}
seconds=${3:-60}
environment=build/clients
requirements=tests/clients/requirements.txt

if ! cmp --silent "$requirements" "$environment/installed"; then
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check --requirement "$requirements"
  cp "$requirements" "$environment/installed"
fi
timeout 300 "$environment/bin/python" tests/clients/openai_client_test.py "$binary"
timeout $((seconds + 120)) "$environment/bin/python" tests/clients/fuzz_bodies.py "$binary" "$bodies" "$seconds"
