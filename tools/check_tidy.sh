#!/usr/bin/env bash
# Runs clang-tidy-16 on the sources that have changed since the commit in tools/tidy_passed_commit, and for
# each header that has changed on one source that includes it; with --whole on every source. With --note or
# --whole, if that passes and all is committed, it writes the new commit to that file. What passed on this
# machine is remembered in build/tidy and not looked at again. Tests are left out: the compiler's warnings
# and their running must do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
passed=build/tidy
build=build/release

# The second use of this script, by xargs below: --one SOURCE STAMP.
if [ "${1:-}" = --one ]; then
  if output=$(clang-tidy-16 -p "$passed" --quiet --extra-arg=-Wno-unknown-warning-option "$2" 2>&1); then
    touch "$passed/$3"
  else
    printf '%s\n' "$output" | grep -v 'warnings\? \(generated\|treated\)'
    exit 1
  fi
  exit
fi

source scripts/prepare.sh
whole=no
note=no
case "${1:-}" in
  --whole) whole=yes note=yes ;;
  --note) note=yes ;;
esac
command -v clang-tidy-16 >/dev/null || fail "clang-tidy-16 is not installed" "scripts/check.sh installs it."
# How each source is compiled by itself in $build, from which it also has what is generated.
mkdir -p "$passed"
cmake --preset release -B "$passed/one_by_one" -DCONVENE_UNITY=OFF >"$passed/configure.log" 2>&1 ||
  fail "cmake could not configure the preset release" "$passed/configure.log says why."
sed -i "s#$passed/one_by_one#$build#g" "$passed/one_by_one/compile_commands.json"
# The compiler's own precompiled headers cannot be read by another one.
sed -E 's/ -Winvalid-pch| -include [^ ]*cmake_pch\.hxx//g' "$passed/one_by_one/compile_commands.json" \
  >"$passed/compile_commands.json"

# clang-tidy goes on with checks of its own if it cannot read its configuration. So the configuration
# is verified, and a source with a known fault must fail.
[ -e .clang-tidy ] || fail ".clang-tidy is missing" "It says which checks there are."
echo 'int* Fault() { return 0; }' >"$passed/fault.cc"
problems=$(clang-tidy-16 --verify-config "$passed/fault.cc" -- 2>&1 | grep -E 'warning:|error:|Error' || true)
[ -z "$problems" ] || fail ".clang-tidy is not as clang-tidy-16 wants it" "$(head -n 5 <<<"$problems")"
fault=$(clang-tidy-16 --quiet "$passed/fault.cc" -- 2>&1) &&
  fail "clang-tidy-16 passes a source with a fault" ".clang-tidy must make modernize-use-nullptr an error."
[[ $fault == *modernize-use-nullptr* ]] || fail "clang-tidy-16 cannot be run" "$(head -n 5 <<<"$fault")"

# All sources and headers, and of each source the files it consists of.
mapfile -t files < <(find src tests fuzz bench -name '*.cc' -o -name '*.h' | LC_ALL=C sort)
[ ${#files[@]} -gt 0 ] || fail "no source was found below src, tests, fuzz and bench"
declare -A closure_of
while read -r source closure; do
  case "$source" in
    *_test.cc) continue ;;
    src/*/cuda/*.cc | bench/onednn_baseline.cc) # without their libraries there is no header to read
      grep -q "$source" "$passed/compile_commands.json" || continue
      ;;
  esac
  closure_of[$source]="$source $closure"
done < <(awk -f tools/include_closure.awk "${files[@]}")
[ ${#closure_of[@]} -gt 0 ] || fail "no source was found for clang-tidy to look at"
mapfile -t sources < <(printf '%s\n' "${!closure_of[@]}" | LC_ALL=C sort)

# What results depend on besides the sources: the checks, how clang-tidy is called (--one, above), and the
# compiler's options of each source.
rules=(.clang-tidy)
options_from=(CMakeLists.txt CMakePresets.json cmake/* */CMakeLists.txt)
call_of() { grep -oE "clang-tidy-16 [-]p.*|s/ [-]Winvalid-pch[^']*"; }

# The compiler's options of a source, as cmake writes them: "SOURCE<tab>COMMAND" for each, of the tree and the
# compile_commands.json that are named, without their places and the precompiled headers.
commands_of() {
  awk -v root="$1/" -v pch=' -Winvalid[-]pch| -include [^ ]*cmake_pch.hxx' '
    /^ *"command": / { command = $0; gsub(root, "", command); gsub(pch, "", command) }
    /^ *"file": / { split($0, quoted, "\""); print substr(quoted[4], length(root) + 1) "\t" command }
  ' "$2"
}

# A tree of compare_commands, and git's notes of it.
remove_tree() {
  git worktree remove --force "$1" 2>/dev/null || {
    rm -rf "$1"
    git worktree prune
  }
}

# Sets differs_of to the sources that another command compiles here than at the commit $1.
compare_commands() {
  local tree source
  tree=$(mktemp -d)
  # For Ctrl-C while cmake runs.
  # shellcheck disable=SC2064
  trap "remove_tree ${tree@Q}" EXIT
  differs_of=()
  git worktree add --quiet --detach "$tree" "$1" && (cd "$tree" && cmake --preset release -DCONVENE_UNITY=OFF >configure.log 2>&1) || {
    remove_tree "$tree"
    trap - EXIT
    return 1
  }
  while read -r source; do differs_of[$source]=1; done < <(
    comm -13 <(commands_of "$tree" "$tree/build/release/compile_commands.json" | LC_ALL=C sort) \
      <(commands_of "$PWD" "$passed/compile_commands.json" | LC_ALL=C sort) | cut -f 1
  )
  remove_tree "$tree"
  trap - EXIT
}

# In `is_changed`, puts one source that includes it in the place of each header: its own, else the one that
# includes the fewest files. What clang-tidy says of a header, it says wherever that is included.
narrow_headers() {
  local header source best fewest closure
  for header in "${!is_changed[@]}"; do
    [[ $header == *.h ]] || continue
    best=${header%.h}.cc
    if [ -z "${closure_of[$best]:-}" ]; then
      best=
      fewest=
      for source in "${sources[@]}"; do
        closure=" ${closure_of[$source]} "
        if [[ $closure == *" $header "* ]] && [ "${#closure}" -lt "${fewest:-1000000}" ]; then
          best=$source
          fewest=${#closure}
        fi
      done
    fi
    unset "is_changed[$header]"
    if [ -n "$best" ]; then is_changed[$best]=1; fi
  done
}

# Sets `selected` to the sources that must be looked at.
select_changed() {
  local passed_commit changed path source
  local -A differs_of=()
  selected=("${sources[@]}")
  passed_commit=$(cat tools/tidy_passed_commit 2>/dev/null) || passed_commit=
  if [ "$whole" = yes ]; then return; fi
  if ! git merge-base --is-ancestor "${passed_commit:-none}" HEAD 2>/dev/null; then
    say "'$passed_commit' (tools/tidy_passed_commit) is no ancestor of this commit: every source."
    return
  fi
  changed=$(git diff --name-only "$passed_commit" && git ls-files --others --exclude-standard)
  local -A is_changed=()
  while read -r path; do
    if [ -n "$path" ]; then is_changed[$path]=1; fi
  done <<<"$changed"
  for path in "${rules[@]}"; do
    if [ -n "${is_changed[$path]:-}" ]; then
      say "$path has changed since ${passed_commit:0:10}: every source."
      return
    fi
  done
  if [ "$(git show "$passed_commit:tools/check_tidy.sh" | call_of)" != "$(call_of <tools/check_tidy.sh)" ]; then
    say "clang-tidy was called otherwise at ${passed_commit:0:10}: every source."
    return
  fi
  for path in "${options_from[@]}"; do
    if [ -n "${is_changed[$path]:-}" ]; then
      if ! compare_commands "$passed_commit"; then
        say "$path has changed since ${passed_commit:0:10}, and that one cannot be configured: every source."
        return
      fi
      break
    fi
  done

  selected=()
  narrow_headers
  for source in "${sources[@]}"; do
    if [ -n "${differs_of[$source]:-}" ]; then
      selected+=("$source")
      continue
    fi
    for path in ${closure_of[$source]}; do
      if [ -n "${is_changed[$path]:-}" ]; then
        selected+=("$source")
        break
      fi
    done
  done
  [ ${#selected[@]} -eq 0 ] || return 0
  # Then only documents, tests and what they share may have changed.
  for path in "${files[@]}"; do
    case "$path" in *_test.cc | *_test.h | tests/* | src/*/cuda/*) continue ;; esac
    ! grep -qxF "$path" <<<"$changed" ||
      fail "$path has changed, and no source that clang-tidy looks at has it" \
        "Include it, delete it, or rename it *_test.h if it is for tests only."
  done
  say "Since ${passed_commit:0:10} no source has changed that clang-tidy looks at."
}

# A line per file: its hash and its path.
declare -A hash_of
while read -r hash path; do hash_of[$path]=$hash; done < <(sha256sum "${files[@]}")
declare -A command_of
while IFS=$'\t' read -r path command; do command_of[$path]=$command; done < <(
  commands_of "$PWD" "$passed/compile_commands.json"
)
[ ${#command_of[@]} -gt 0 ] || fail "$passed/compile_commands.json names no source" "rm -r $passed"
tool_and_checks=$(cat .clang-tidy <(call_of <tools/check_tidy.sh) <(clang-tidy-16 --version) | sha256sum)

select_changed
pending=()
for source in "${selected[@]}"; do
  contents="$tool_and_checks ${command_of[$source]:-}"
  for path in ${closure_of[$source]}; do contents+=" $path ${hash_of[$path]}"; done
  stamp=$(sha256sum <<<"$contents")
  stamp=${stamp:0:32}
  if [ ! -e "$passed/$stamp" ]; then pending+=("$source $stamp"); fi
done

say "clang-tidy: ${#selected[@]} of ${#sources[@]} sources, ${#pending[@]} of which have not passed here before."
if [ ${#pending[@]} -gt 0 ]; then
  printf '%s\n' "${pending[@]}" |
    xargs --max-lines=1 --max-procs="$(build_jobs)" tools/check_tidy.sh --one ||
    fail "clang-tidy has findings" "The lines are above; the checks: .clang-tidy"
fi

if [ "$note" = yes ]; then
  if [ -n "$(git status --porcelain -- src tests fuzz bench "${rules[@]}" "${options_from[@]}")" ]; then
    say "All passed, as they are here: commit, and run this again to have the commit noted."
  else
    git rev-parse HEAD >tools/tidy_passed_commit
    say "All passed; tools/tidy_passed_commit names this commit now: commit that file."
  fi
fi
