#!/usr/bin/env bash
# The checks beside the tests, each of which blocks: scripts/check.sh [--whole] [PART...]
#   format, includes, shell   the form of sources and scripts
#   tidy                      clang-tidy, on what changed since tools/tidy_passed_commit
#   address, thread           tests under sanitizers, those of the folders where it matters most
#   fuzz                      each fuzz target for some seconds
#   clients                   OpenAI's Python package and 20,000 odd bodies against the server
#   page                      the page of convene serve, in a headless Chromium
# Without parts all are run, also after one has failed. --whole: clang-tidy on every source, and all
# tests under the sanitizers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/prepare.sh

whole=()
parts=()
for argument in "$@"; do
  case "$argument" in
    -h | --help)
      sed -n '2,10s/^# //p' scripts/check.sh
      exit
      ;;
    --whole) whole=(--whole) ;;
    format | includes | shell | tidy | address | thread | fuzz | clients | page) parts+=("$argument") ;;
    *) fail "'$argument' is no part of the checks" "scripts/check.sh --help lists them." ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=(format includes shell tidy address thread fuzz clients page)

install_packages "${build_packages[@]}" "${check_packages[@]}"
[[ " ${parts[*]} " != *" page "* ]] || install_packages "${browser_packages[@]}"
require_recent_tools

# run_part PART: what it prints is the tool's; its status says whether the part passed.
run_part() {
  case "$1" in
    format) tools/check_format.sh ;;
    includes) tools/check_includes.sh && tools/check_unity_names.py ;;
    shell) tools/check_shell.sh ;;
    tidy) tools/check_tidy.sh "${whole[@]}" ;;
    address | thread) tools/check_sanitizers.sh "$1" "${whole[@]}" ;;
    fuzz) tools/check_fuzz.sh ;;
    clients) tools/check_clients.sh ;;
    page) tools/check_page.sh ;;
  esac
}

results=()
failed=()
for part in "${parts[@]}"; do
  say "Check: $part"
  start=$SECONDS
  result=passed
  run_part "$part" </dev/null || {
    result=FAILED
    failed+=("$part")
  }
  results+=("$(printf '%-10s %s %5d s' "$part" "$result" $((SECONDS - start)))")
done

say "The checks, each with its time:"
printf '    %s\n' "${results[@]}"
[ ${#failed[@]} -eq 0 ] ||
  fail "these checks failed: ${failed[*]}" "What they say is above. One again: scripts/check.sh ${failed[0]}"
say "All checks passed."
