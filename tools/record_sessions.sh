#!/usr/bin/env bash
# Runs the sessions shown in README.md and writes what they print into it; with --check it changes
# nothing and fails where README.md shows something else.
# Usage: tools/record_sessions.sh [--check] [CONVENE [FILE.md]]
#
# A session lies between two lines:
#   <!-- session exact -->      prints the same on every machine
#   <!-- session figures -->    numbers, units and names of machines are compared by their shape
#   <!-- end of session -->
# Its lines "    $ COMMAND" are run in the repository root, with CONVENE in the place of
# build/release/convene; the lines between them are what they print on both outputs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

is_check=false
if [ "${1:-}" = --check ]; then
  is_check=true
  shift
fi
convene=${1:-build/release/convene}
document=${2:-README.md}
export LC_ALL=C.UTF-8

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# Standard input without what differs between machines and runs: figures, and the remark on a machine whose caches hold
# the model.
shape() {
  sed -E -e '/^ *More than 100 % of /d' \
    -e 's/^( *).*, [0-9]+ threads?, [a-z0-9_]+, /\1MACHINE, N threads, ISA, /' \
    -e 's/[0-9][0-9.,]*/N/g' -e 's/N ([KMGT]i)?B\b/N BYTES/g' -e 's/ +/ /g'
}

# run_session KIND: the session's recorded lines are in $work/recorded.
run_session() {
  : >"$work/now"
  local line command status
  while IFS= read -r line; do
    case $line in
      '    $ '*) command=${line#'    $ '} ;;
      *) continue ;;
    esac
    printf '%s\n' "$line" >>"$work/now"
    status=0
    bash -o pipefail -c "${command//build\/release\/convene/"${convene@Q}"}" \
      </dev/null >"$work/output" 2>&1 || status=$?
    sed -e 's/^/    /' -e 's/ *$//' "$work/output" >>"$work/now"
    if [ "$status" != 0 ]; then
      printf '%s: "%s" fails with status %s:\n' "$document" "$command" "$status" >&2
      cat "$work/output" >&2
      failures=$((failures + 1))
    fi
  done <"$work/recorded"
  [ -s "$work/now" ] || {
    printf '%s: a session without a command\n' "$document" >&2
    failures=$((failures + 1))
  }
  $is_check || return 0
  cp "$work/recorded" "$work/a"
  cp "$work/now" "$work/b"
  if [ "$1" = figures ]; then
    shape <"$work/recorded" >"$work/a"
    shape <"$work/now" >"$work/b"
  fi
  diff -u --label "$document" --label "what is printed now" "$work/a" "$work/b" >&2 ||
    failures=$((failures + 1))
}

num_sessions=0
kind=
while IFS= read -r line || [ -n "$line" ]; do
  case $line in
    '<!-- session exact -->' | '<!-- session figures -->')
      [ -z "$kind" ] || { printf '%s: a session has no end\n' "$document" >&2 && exit 1; }
      kind=${line#'<!-- session '}
      kind=${kind%' -->'}
      : >"$work/recorded"
      num_sessions=$((num_sessions + 1))
      printf '%s\n' "$line" >>"$work/document"
      continue
      ;;
    '<!-- end of session -->')
      run_session "$kind"
      kind=
      cat "$work/now" >>"$work/document"
      ;;
  esac
  if [ -n "$kind" ]; then
    printf '%s\n' "$line" >>"$work/recorded"
  else
    printf '%s\n' "$line" >>"$work/document"
  fi
done <"$document"

[ -z "$kind" ] || { printf '%s: a session has no end\n' "$document" >&2 && exit 1; }
[ "$num_sessions" -gt 0 ] || { printf '%s: no sessions\n' "$document" >&2 && exit 1; }
if [ "$failures" != 0 ]; then
  printf 'FAILED: %s does not show what the commands print\n' "$document" >&2
  printf '        tools/record_sessions.sh records it anew\n' >&2
  exit 1
fi
if $is_check; then
  echo "$num_sessions sessions of $document are as recorded"
else
  cat "$work/document" >"$document"
  echo "$num_sessions sessions recorded in $document"
fi
