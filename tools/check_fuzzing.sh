#!/usr/bin/env bash
# Shows that fuzzing finds faults. In a scratch copy of the sources it makes three, one after the
# other: a check for zero is left out, a length is one too long, an offset is not checked. Each must
# be found within 60 seconds from the committed corpus, in every one of RUNS runs that differ in
# their randomness: tools/check_fuzzing.sh [RUNS] (default: 3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

runs=${1:-3}
seconds=60
scratch=$PWD/build/check_fuzzing
mkdir -p "$scratch/source"
git ls-files -z --cached --others --exclude-standard -- \
  CMakeLists.txt CMakePresets.json cmake src fuzz bench tools |
  tar --null --files-from=- --ignore-failed-read -cf - 2>/dev/null | tar -C "$scratch/source" -xf -
cmake -S "$scratch/source" --preset fuzz -B "$scratch/build" >"$scratch/configure.log" 2>&1 ||
  { cat "$scratch/configure.log"; exit 1; }

# Replaces the only place of `correct` in a file of the scratch copy.
plant() {
  local file=$scratch/source/$1 correct=$2 wrong=$3 content
  content=$(cat "$file"; printf .)
  local rest=${content#*"$correct"}
  if [ "$rest" = "$content" ] || [ "${rest#*"$correct"}" != "$rest" ]; then
    echo "$1 has not exactly one '$correct'; choose another fault in tools/check_fuzzing.sh." >&2
    exit 1
  fi
  printf %s "${content%%"$correct"*}$wrong${rest%.}" >"$file"
}

num_missed=0
# try NAME WHAT FILE CORRECT WRONG: makes the fault, fuzzes target NAME, and takes the fault back.
try() {
  local name=$1 what=$2 file=$3 run begin log
  plant "$file" "$4" "$5"
  cmake --build "$scratch/build" --target "${name}_fuzz" >"$scratch/build.log" 2>&1 ||
    { tail -n 30 "$scratch/build.log"; exit 1; }
  for ((run = 1; run <= runs; ++run)); do
    rm -rf "$scratch/build/fuzz/found/$name"
    log=$scratch/$name-$run.log
    begin=$EPOCHREALTIME
    if "$scratch/source/tools/fuzz.sh" "$name" "$seconds" "$scratch/build" -seed="$run" \
      >"$log" 2>&1; then
      echo "NOT FOUND by $name in $seconds s (randomness $run): $what"
      num_missed=$((num_missed + 1))
    else
      echo "found by $name in $(((${EPOCHREALTIME/./} - ${begin/./}) / 1000)) ms (randomness $run):" \
        "$what: $(grep -m 1 -oE 'runtime error: .*|ERROR: [A-Za-z]+Sanitizer: [a-z-]+|internal error at .*|terminate called.*|libFuzzer: [a-z-]+.*' "$log" || echo "see $log")"
    fi
  done
  cp "$file" "$scratch/source/$file"
}

try chat_template "// and % do not check for zero" src/text/jinja/operators.cc \
  'if (b == 0) return run.Fail("integer division or modulo by zero");' ''
try token_file "the header of an .npy file may be one byte longer than the file" src/cli/npy.cc \
  'if (bytes.size() < header_bytes) return std::nullopt;' \
  'if (bytes.size() + 1 < header_bytes) return std::nullopt;'
try trace "the task of an event is not checked" src/schedule/trace.cc \
  'id < 0 ||
        id >= static_cast<int>(trace_.steps[step_idx].schedule.tasks.size())' 'id < 0'

[ "$num_missed" -eq 0 ] || { echo "$num_missed runs found nothing." >&2; exit 1; }
echo "Every fault was found in each of $runs runs."
