#!/usr/bin/env bash
# Installs what is missing, builds convene and lets the model in models/demo write.
# Further arguments go to `convene run`: ./scripts/demo.sh --prompt "The captain" --seed 7
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/prepare.sh

case "${1:-}" in
  -h | --help)
    sed -n '2,3s/^# //p' "scripts/demo.sh"
    exit
    ;;
esac

# given OPTION ARGUMENT...: whether the arguments hold OPTION or OPTION=value.
given() {
  local option=$1 argument
  shift
  for argument in "$@"; do
    case "$argument" in "$option" | "$option"=*) return 0 ;; esac
  done
  return 1
}

install_packages "${build_packages[@]}"
require_recent_tools
build release convene

[ -e models/demo/config.json ] ||
  fail "models/demo holds no model" "Clone the repository again: the model is part of it."

options=("$@")
if ! given --prompt "$@" && ! given -p "$@" && ! given --prompt-file "$@"; then
  options+=(--prompt "It was a dark and stormy night, and the old house")
fi
given --max-tokens "$@" || given -n "$@" || options+=(--max-tokens 200)
given --seed "$@" || options+=(--seed 1)

say "convene run models/demo ${options[*]@Q}"
build/release/convene run models/demo "${options[@]}" ||
  fail "convene could not generate text (exit status $?)" "Its message is above."
