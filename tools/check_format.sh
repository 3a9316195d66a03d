#!/usr/bin/env bash
# Checks that every C++ source is as clang-format-16 writes it. With --fix, writes it so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# fail MESSAGE
fail() {
  echo "$1" >&2
  exit 1
}

command -v clang-format-16 >/dev/null ||
  fail "clang-format-16 is not installed; scripts/check.sh installs it."
[ -e .clang-format ] || fail ".clang-format is missing, which says how sources are formatted."
mapfile -t sources < <(
  find src tests fuzz bench -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | LC_ALL=C sort
)
[ ${#sources[@]} -gt 0 ] || fail "no source was found below src, tests, fuzz and bench."
if [ "${1:-}" = --fix ]; then
  clang-format-16 -i "${sources[@]}"
fi
# The status tells a broken configuration too: clang-format then names no source, only its error.
status=0
output=$(clang-format-16 --dry-run --Werror "${sources[@]}" 2>&1) || status=$?
mapfile -t unformatted < <(awk -F: '/ error: code should be/ && !seen[$1]++ { print $1 }' <<<"$output")
if [ ${#unformatted[@]} -gt 0 ]; then
  printf '%s\n' "${unformatted[@]}"
  fail "${#unformatted[@]} sources are not formatted; run tools/check_format.sh --fix."
fi
if [ "$status" -ne 0 ]; then
  head -n 4 <<<"$output" >&2  # it says the same for every source
  fail "clang-format-16 ended with status $status; its message is above."
fi
echo "${#sources[@]} sources are formatted."
