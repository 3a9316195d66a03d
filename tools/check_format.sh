#!/usr/bin/env bash
# Checks that every C++ source is as clang-format-16 writes it. With --fix, writes it so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v clang-format-16 >/dev/null ||
  { echo "clang-format-16 is not installed; scripts/check.sh installs it." >&2; exit 1; }
mapfile -t sources < <(
  find src tests fuzz bench -name '*.cc' -o -name '*.h' -o -name '*.cu' | LC_ALL=C sort
)
if [ "${1:-}" = --fix ]; then
  clang-format-16 -i "${sources[@]}"
fi
mapfile -t unformatted < <(
  clang-format-16 --dry-run "${sources[@]}" 2>&1 | awk -F: '/ warning: / && !seen[$1]++ { print $1 }'
)
if [ ${#unformatted[@]} -gt 0 ]; then
  printf '%s\n' "${unformatted[@]}"
  echo "${#unformatted[@]} sources are not formatted; run tools/check_format.sh --fix."
  exit 1
fi
echo "${#sources[@]} sources are formatted."
