#!/usr/bin/env bash
# Shows that fuzzing finds faults. In a scratch copy of the sources it makes one for each target, one
# after the other: a check is left out or is one off, text is shown too early, a size is written in
# the wrong base. Each must be found within 60 seconds from the committed corpus, in every one of RUNS
# runs that differ in their randomness, by an input that does no harm without it:
# tools/check_fuzzing.sh [RUNS [TARGET...]] (default: 3, and all targets). No other check runs it: see
# docs/results/checks.md for what it takes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

runs=${1:-3}
chosen=("${@:2}")
seconds=60
# A target that is added has a fault, too.
mapfile -t targets < <(sed -n 's/^convene_fuzz(\([a-z_]*\) .*/\1/p' fuzz/CMakeLists.txt)
for target in "${targets[@]}" "${chosen[@]}"; do
  grep -q "^try $target " tools/check_fuzzing.sh ||
    { echo "There is no fault for $target; name one in tools/check_fuzzing.sh." >&2; exit 1; }
done

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
  [ ${#chosen[@]} -eq 0 ] || [[ " ${chosen[*]} " == *" $name "* ]] || return 0
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

try answer_parser "the beginning of a marker is not held back" src/openai/answer_parser.cc \
  'is_finishing_ ? 0 : HeldBackBytes(buffer_, markers)' '0'
try batch_line "the token ids of a prompt may be negative" src/openai/generation_body.cc \
  '!id.is_number_integer() || id.get<double>() < 0 ||' '!id.is_number_integer() ||'
try batch_results "a line that is no result is kept" src/openai/batch_results.cc \
  'if (last_was_result) end_of_results' 'end_of_results'
try character_map "a replacement may begin within a character" src/text/character_map.cc \
  'if (begin >= replacements_.size() || (replacements_[begin] & 0xc0) == 0x80) return' \
  'if (begin >= replacements_.size()) return'
try chat_template "// and % do not check for zero" src/jinja/operators.cc \
  'if (b == 0) return run.Fail("integer division or modulo by zero");' ''
try config "experts need not fill their groups" src/model/deepseek_config.cc \
  'if (moe.num_experts % moe.num_expert_groups != 0)' 'if (moe.num_expert_groups < 1)'
try http_request "the size of a chunk is written in decimal" src/server/http_connection.cc \
  '{:x}\r\n{}\r\n", data.size()' '{}\r\n{}\r\n", data.size()'
try packed_directory "the matrices may begin at any byte" src/weights/packed_directory.cc \
  'if (stored->front().offset % memory::kDirectBlockBytes != 0)' 'if (stored->front().offset == 0)'
try plan "attention may have more ranks than the experts" src/plan/layout_text.cc \
  'if (attention == experts) return {};' 'if (attention >= experts) return {};'
try profile "a rate may be negative, or no number" src/hardware/profile.cc \
  'return number >= 0 && number <= kMostRate' 'return number <= kMostRate'
try rank_messages "a row of zeros has no scale" src/comm/wire_format.cc \
  'std::max(LargestFinite(row, cols) / kLargestE4m3, std::numeric_limits<float>::min());' \
  'LargestFinite(row, cols) / kLargestE4m3;'
try request_body "an enumeration may have no value" src/grammar/json_schema.cc \
  'if (values.empty()) return Error{fmt::format("no value satisfies the schema at {}", place)};' ''
try safetensors "tensors may overlap" src/checkpoint/safetensors.cc \
  'if (tensor.offset != end)' 'if (tensor.offset > end)'
try stop_strings "of two that end together the later one counts" src/engine/stop_strings.cc \
  'if (end < first_end || (end == first_end && begin < first_begin))' 'if (end < first_end)'
try token_file "the header of an .npy file may be one byte longer than the file" src/cli/npy.cc \
  'if (bytes.size() < header_bytes) return std::nullopt;' \
  'if (bytes.size() + 1 < header_bytes) return std::nullopt;'
try tokenizer "a byte without a token is taken for one" src/text/bpe.cc \
  '(byte)] == kNone) return false;' '(byte)] < kNone) return false;'
try trace "the task of an event is not checked" src/drawing/trace.cc \
  'id < 0 ||
        id >= static_cast<int>(trace_.steps[step_idx].schedule.tasks.size())' 'id < 0'
try vocabulary "a word is remembered with the tokens before it" src/text/bpe.cc \
  'std::vector<int32_t>(ids->begin() + first, ids->end())' \
  'std::vector<int32_t>(ids->begin(), ids->end())'

[ "$num_missed" -eq 0 ] || { echo "$num_missed runs found nothing." >&2; exit 1; }
echo "Every fault was found in each of $runs runs."
