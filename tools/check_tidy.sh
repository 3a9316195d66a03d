#!/usr/bin/env bash
# Runs clang-tidy-16 on every source that a build folder (default: build/release) has compiled and
# that has changed, or includes something that has changed, since it last passed. What passed is
# remembered in build/tidy. Tests are left out: the compiler's warnings and their running must do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
passed=build/tidy

# The second use of this script, by xargs below: --one BUILD SOURCE STAMP.
if [ "${1:-}" = --one ]; then
  if output=$(clang-tidy-16 -p "$2" --quiet --extra-arg=-Wno-unknown-warning-option "$3" 2>&1); then
    touch "$passed/$4"
  else
    printf '%s\n' "$output" | grep -v 'warnings\? \(generated\|treated\)'
    exit 1
  fi
  exit
fi

build=${1:-build/release}
[ -e "$build/compile_commands.json" ] ||
  { echo "$build is not built; run ./scripts/test.sh first." >&2; exit 1; }
mkdir -p "$passed"

# What every result depends on: the checks, the tool, the compiler's options.
rules=$(cat .clang-tidy CMakeLists.txt CMakePresets.json cmake/* src/CMakeLists.txt <(clang-tidy-16 --version) |
  sha256sum)

# A line per source: its path, then the hashes of it and of all it includes from this repository.
sources_and_contents() {
  find "$PWD"/src "$PWD"/tests "$PWD"/fuzz -name '*.cc' -o -name '*.h' | xargs sha256sum >"$passed/hashes"
  ninja -C "$build" -t deps | awk '
    FNR == NR { hash_of[$2] = $1; next }
    /^[^ ]/ { if (source != "") print source, contents; source = contents = "" }
    /^ / {
      path = $1
      if (path in hash_of) {
        if (source == "") source = path
        contents = contents hash_of[path]
      }
    }
    END { if (source != "") print source, contents }' "$passed/hashes" -
}

num_sources=0
pending=()
while read -r source contents; do
  case "$source" in *_test.cc) continue ;; esac
  num_sources=$((num_sources + 1))
  stamp=$(printf '%s %s %s' "$rules" "$source" "$contents" | sha256sum | cut -c 1-32)
  [ -e "$passed/$stamp" ] || pending+=("$build $source $stamp")
done < <(sources_and_contents)

echo "clang-tidy: ${#pending[@]} of $num_sources sources have changed."
if [ ${#pending[@]} -gt 0 ]; then
  printf '%s\n' "${pending[@]}" |
    xargs --max-lines=1 --max-procs="$(nproc)" tools/check_tidy.sh --one ||
    { echo "clang-tidy has findings." >&2; exit 1; }
fi
