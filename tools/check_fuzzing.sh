#!/usr/bin/env bash
# Shows that fuzzing finds faults. In a scratch copy of the sources it makes five, one after the
# other: a check for zero is left out, a length is one too long, an offset is not checked, text is
# shown too early, a size is written in the wrong base. Each must be found within 60 seconds from the committed corpus, in every one of
# RUNS runs that differ in their randomness, by an input that does no harm without it:
# tools/check_fuzzing.sh [RUNS] (default: 3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

runs=${1:-3}
seconds=60
# Its build lies in it as build/fuzz does here, so that ccache knows what is compiled.
scratch=$PWD/build/check_fuzzing
build=$scratch/build/fuzz

copied=(CMakeLists.txt CMakePresets.json cmake src fuzz bench tests tools)
mkdir -p "$scratch"
(cd "$scratch" && rm -rf "${copied[@]}")
cp -a "${copied[@]}" "$scratch"
(cd "$scratch" && cmake --preset fuzz) >"$scratch/configure.log" 2>&1 ||
  { cat "$scratch/configure.log"; exit 1; }

# plant FILE CORRECT WRONG: replaces the only place of CORRECT in a file of the scratch copy.
plant() {
  local content rest
  content=$(cat "$1"; printf .)
  rest=${content#*"$2"}
  if [ "$rest" = "$content" ] || [ "${rest#*"$2"}" != "$rest" ]; then
    echo "$1 has not exactly one '$2'; name another fault in tools/check_fuzzing.sh." >&2
    exit 1
  fi
  planted=$1
  printf %s "${content%%"$2"*}$3${rest%.}" >"$scratch/$1"
}

# Newer than what was compiled with the fault, also when this ends early.
restore() {
  if [ -n "$planted" ]; then
    cp "$planted" "$scratch/$planted"
    planted=
  fi
}
planted=
trap restore EXIT

compile() {
  cmake --build "$build" --target "$1_fuzz" >"$scratch/build.log" 2>&1 ||
    { tail -n 30 "$scratch/build.log"; exit 1; }
}

num_missed=0
# try NAME WHAT FILE CORRECT WRONG: makes the fault WHAT, fuzzes the target NAME, takes it back.
try() {
  local name=$1 what=$2 run log begin milliseconds
  plant "$3" "$4" "$5"
  compile "$name"
  rm -f "$build/$name"-*
  for ((run = 1; run <= runs; ++run)); do
    rm -rf "$build/fuzz/found/$name"
    log=$scratch/$name-$run.log
    begin=$EPOCHREALTIME
    "$scratch/tools/fuzz.sh" "$name" "$seconds" "$build" -seed="$run" >"$log" 2>&1 || true
    milliseconds=$(((${EPOCHREALTIME/./} - ${begin/./}) / 1000))
    if grep -q "Test unit written to" "$log"; then
      echo "found by $name in $milliseconds ms (randomness $run): $what"
      grep -m 1 -oE 'runtime error: .*|AddressSanitizer: [a-z-]+|internal error at .*|what\(\): .*|Assertion .*' \
        "$log" | sed 's/^/    /' || true
    elif grep -q "^Done " "$log"; then
      echo "NOT FOUND by $name in $seconds s (randomness $run): $what"
      num_missed=$((num_missed + 1))
    else
      tail -n 20 "$log"
      echo "$name did not run" >&2
      exit 1
    fi
  done
  restore
  compile "$name"
  for input in "$build/$name"-*; do
    [ ! -e "$input" ] || "$build/${name}_fuzz" "$input" >"$scratch/without.log" 2>&1 ||
      { tail -n 30 "$scratch/without.log"; echo "$input fails without the fault, too." >&2; exit 1; }
  done
}

try chat_template "// and % do not check for zero" src/jinja/operators.cc \
  'if (b == 0) return run.Fail("integer division or modulo by zero");' ''
try token_file "the header of an .npy file may be one byte longer than the file" src/cli/npy.cc \
  'if (bytes.size() < header_bytes) return std::nullopt;' \
  'if (bytes.size() + 1 < header_bytes) return std::nullopt;'
try trace "the task of an event is not checked" src/drawing/trace.cc \
  'id < 0 ||
        id >= static_cast<int>(trace_.steps[step_idx].schedule.tasks.size())' 'id < 0'
try answer_parser "the beginning of a marker is not held back" src/openai/answer_parser.cc \
  'is_finishing_ ? 0 : HeldBackBytes(buffer_, markers)' '0'
try http_request "the size of a chunk is written in decimal" src/server/http_connection.cc \
  '{:x}\r\n{}\r\n", data.size()' '{}\r\n{}\r\n", data.size()'

[ "$num_missed" -eq 0 ] || { echo "$num_missed runs found nothing." >&2; exit 1; }
echo "Every fault was found in each of $runs runs."
