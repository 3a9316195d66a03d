#!/usr/bin/env bash
# Checks that every C++ source is as clang-format-16 writes it. With --fix, writes it so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t sources < <(
  find src tests fuzz bench -name '*.cc' -o -name '*.h' -o -name '*.cu' | LC_ALL=C sort
)
if [ "${1:-}" = --fix ]; then
  clang-format-16 -i "${sources[@]}"
elif ! clang-format-16 --dry-run -Werror "${sources[@]}"; then
  echo "Run tools/check_format.sh --fix."
  exit 1
fi
echo "${#sources[@]} sources are formatted."
