#!/usr/bin/env bash
# Shows that .ci/run turns red: tools/check_ci.sh [FAULT...]. In a scratch copy of the last commit it
# makes one fault after the other, each of which the part of .ci/run that is there for it must find and
# name. Without arguments all are made (40 minutes on two cores, less with a warm ccache):
#   blocks           every part in turn ends with an error, and .ci/run must end with one, too
#   format, include, shell, tidy, failing-test, leak, overflow, race, fuzz
#                    a fault in a source of the kind that the name says
#   no-format-file, broken-format-file, no-tidy-file, broken-tidy-file, no-sources
#                    a check that cannot look at anything
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

all=(blocks format include shell no-format-file broken-format-file no-tidy-file broken-tidy-file no-sources
  tidy failing-test leak overflow race fuzz)
faults=("$@")
[ ${#faults[@]} -gt 0 ] || faults=("${all[@]}")

# Its builds lie in it as build/PRESET does here, so that ccache knows what is compiled.
scratch=$PWD/build/check_ci
log=$PWD/build/check_ci.log
num_missed=0

# The last commit, with the builds of earlier faults and nothing of their changes.
restore() {
  if [ -d "$scratch/.git" ]; then
    git -C "$scratch" fetch --quiet origin HEAD
    git -C "$scratch" reset --quiet --hard FETCH_HEAD
    git -C "$scratch" clean --quiet -d --force
  else
    rm -rf "$scratch"
    git clone --quiet . "$scratch"
  fi
  # Clang-tidy is to look at the fault, not at what this commit changes.
  git -C "$scratch" rev-parse HEAD >"$scratch/tools/tidy_passed_commit"
}

# demand FAULT TEXT COMMAND...: in the scratch copy the command ends with an error and prints TEXT.
demand() {
  local fault=$1 text=$2 start=$SECONDS status=0
  shift 2
  (cd "$scratch" && "$@") </dev/null >"$log" 2>&1 || status=$?
  if [ "$status" -eq 0 ]; then
    echo "NOT FOUND: $fault ($* passes)"
  elif ! grep --quiet --fixed-strings -e "$text" "$log"; then
    tail -n 20 "$log"
    echo "NOT NAMED: $fault ($* ends with $status, and '$text' is not in what it prints)"
  else
    echo "found in $((SECONDS - start)) s: $fault ($* ends with $status)"
    grep --max-count=1 --fixed-strings -e "$text" "$log" | cut -c 1-160 | sed 's/^/    /'
    return 0
  fi
  num_missed=$((num_missed + 1))
}

# Every script that .ci/run calls does nothing but one, which fails.
try_blocks() {
  local parts part failing
  parts=(scripts/test.sh tools/check_{format,includes,shell,tidy,sanitizers,fuzz,clients,page}.sh)
  for failing in "${parts[@]}"; do
    for part in "${parts[@]}"; do
      if [ "$part" = "$failing" ]; then
        printf '#!/bin/sh\necho "planted in %s"; exit 7\n' "$part" >"$scratch/$part"
      else
        printf '#!/bin/sh\n' >"$scratch/$part"
      fi
    done
    demand "$failing fails" "planted in $failing" .ci/run
  done
  git -C "$scratch" checkout --quiet .
  for part in "${parts[@]}"; do printf '#!/bin/sh\n' >"$scratch/$part"; done
  (cd "$scratch" && .ci/run) </dev/null >"$log" 2>&1 ||
    { tail -n 20 "$log"; echo ".ci/run fails though every part passes"; num_missed=$((num_missed + 1)); }
}

# plant_test FILE NAME BODY: one more test at the end of a file of tests.
plant_test() {
  printf '\nTEST(Planted, %s) { %s }\n' "$2" "$3" >>"$scratch/$1"
}

try() {
  case "$1" in
    blocks) try_blocks ;;
    format)
      echo 'namespace  convene { }' >>"$scratch/src/base/units.cc"
      demand "$1" src/base/units.cc scripts/check.sh format
      ;;
    include)
      sed -i '1i #include "engine/engine.h"' "$scratch/src/base/units.cc"
      demand "$1" "base may not include engine/engine.h" scripts/check.sh includes
      ;;
    shell)
      # shellcheck disable=SC2016
      echo 'cd $1; rm -r "$2"/*' >>"$scratch/scripts/demo.sh"
      demand "$1" "SC2115" scripts/check.sh shell
      ;;
    no-format-file)
      rm "$scratch/.clang-format"
      demand "$1" ".clang-format is missing" scripts/check.sh format
      ;;
    broken-format-file)
      echo 'NoSuchOption: 3' >>"$scratch/.clang-format"
      demand "$1" "NoSuchOption" scripts/check.sh format
      ;;
    no-tidy-file)
      rm "$scratch/.clang-tidy"
      demand "$1" ".clang-tidy is missing" scripts/check.sh tidy
      ;;
    broken-tidy-file)
      echo 'NoSuchOption: 3' >>"$scratch/.clang-tidy"
      demand "$1" ".clang-tidy is not as clang-tidy-16 wants it" scripts/check.sh tidy
      ;;
    no-sources)
      rm -r "$scratch"/{src,tests,fuzz,bench}
      demand "$1 (format)" "no source was found" scripts/check.sh format
      demand "$1 (includes)" "no source was found" scripts/check.sh includes
      ;;
    tidy)
      echo 'namespace convene { int* planted = 0; }  // NULL' >>"$scratch/src/base/units.cc"
      demand "$1" "modernize-use-nullptr" scripts/check.sh tidy
      ;;
    failing-test)
      plant_test src/base/quote_test.cc FailingTest 'EXPECT_EQ(1, 2);'
      demand "$1" "Planted.FailingTest" scripts/test.sh -R 'Planted'
      ;;
    leak)
      plant_test src/base/quote_test.cc Leak 'volatile auto* lost = new int[3]; lost[0] = 1; lost = nullptr;'
      demand "$1" "LeakSanitizer: detected memory leaks" scripts/check.sh address
      ;;
    overflow)
      plant_test src/base/quote_test.cc Overflow \
        'std::vector<int> three(3); volatile int past = 3; EXPECT_EQ(*(three.data() + past), 0);'
      sed -i '1i #include <vector>' "$scratch/src/base/quote_test.cc"
      demand "$1" "heap-buffer-overflow" scripts/check.sh address
      ;;
    race)
      plant_test src/hardware/thread_pool_test.cc Race \
        'int counter = 0; { std::jthread other([&] { ++counter; }); ++counter; } EXPECT_GT(counter, 0);'
      sed -i '1i #include <thread>' "$scratch/src/hardware/thread_pool_test.cc"
      demand "$1" "ThreadSanitizer: data race" scripts/check.sh thread
      ;;
    fuzz)
      sed -i '/LLVMFuzzerTestOneInput/a \  if (size > 2 \&\& data[0] == 0x7b \&\& data[1] == 0x22) __builtin_trap();' \
        "$scratch/fuzz/plan_fuzz.cc"
      demand "$1" "libFuzzer: deadly signal" scripts/check.sh fuzz
      ;;
    *)
      echo "'$1' is no fault; the first lines of tools/check_ci.sh list them." >&2
      exit 1
      ;;
  esac
}

for fault in "${faults[@]}"; do
  restore
  try "$fault"
done
[ "$num_missed" -eq 0 ] || { echo "$num_missed faults were not found." >&2; exit 1; }
echo "Every fault was found."
