#!/usr/bin/env bash
# Checks that folders of src/ include only what their rows allow. Argument: the repository root to check.
set -euo pipefail
rules=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/check_includes.awk
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"

mapfile -t sources < <(find src -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | LC_ALL=C sort)
[ ${#sources[@]} -gt 0 ] || { echo "no source was found below src." >&2; exit 1; }
awk -f "$rules" src/CMakeLists.txt docs/architecture.md "${sources[@]}"
echo "${#sources[@]} sources include only what their folders' rows allow."
