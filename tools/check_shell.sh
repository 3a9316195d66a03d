#!/usr/bin/env bash
# Runs shellcheck on every shell script of the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v shellcheck >/dev/null ||
  { echo "shellcheck is not installed; scripts/check.sh installs it." >&2; exit 1; }
mapfile -t scripts < <(find .ci scripts tools tests bench fuzz -type f \( -name '*.sh' -o -path .ci/run -o -path 'bench/scenarios/*' \) | LC_ALL=C sort)
[ ${#scripts[@]} -gt 0 ] || { echo "no shell script was found." >&2; exit 1; }
shellcheck --severity=warning --external-sources --source-path=SCRIPTDIR/.. "${scripts[@]}"
echo "shellcheck finds nothing in ${#scripts[@]} scripts."
