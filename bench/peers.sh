#!/usr/bin/env bash
# convene against a llama.cpp-style engine on the same shape, alternately, in one run.
#
# usage: bench/peers.sh LLAMA_BENCH GGUF CHECKPOINT [options]
#   LLAMA_BENCH   the peer's llama-bench (llama.cpp, ik_llama.cpp), built for this machine
#   GGUF          the model as the peer reads it (tools/random_gguf.py writes one of random weights)
#   CHECKPOINT    the model as convene reads it (`convene synth` writes one of random weights)
# options:
#   --weights FORMAT      passed on to convene: bf16, int8, int4; choose what has the GGUF's bits
#   --prompt-tokens N     prefill of N tokens, and decode after them (default: 512)
#   --gen-tokens N        decode of N tokens (default: 64)
#   --batch N,N           decode of so many sequences together too, by the llama-batched-bench that
#                         lies beside LLAMA_BENCH (default: none)
#   --batch-prompt N      length of each of their prompts (default: 64)
#   --batch-gen N         tokens generated after it (default: 32)
#   --rounds N            each engine runs N times, in turn, convene first in even rounds (default: 3)
#   --repeat N            repetitions in each of its runs (default: 3)
#   --threads N           of both engines (default: the processors that nproc counts)
#   --peer-options STR    further options of llama-bench, such as '-rtr 1' (ik_llama.cpp)
#   --batched-options STR further options of llama-batched-bench, such as '-rtr'
#   --convene-options STR further options of convene bench
#   --convene FILE        the binary (default: build/release/convene)
# Prints medians of the rounds, their least and most, and the median of the rounds' ratios.
# Exit status: 0, 1 if something failed, 2 if the arguments are wrong.
set -euo pipefail

usage() { sed -n '/^# usage/,/^# Exit/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

# wrong WHAT: the arguments; fail WHAT: anything else.
wrong() {
  printf 'peers.sh: %s; see bench/peers.sh --help\n' "$1" >&2
  exit 2
}
fail() {
  printf 'peers.sh: %s\n' "$1" >&2
  exit 1
}

prompt_tokens=512 gen_tokens=64 batches="" batch_prompt=64 batch_gen=32 rounds=3 repeat=3
threads=$(nproc)
weights=() peer_options=() batched_options=() convene_options=()
convene=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build/release/convene

# number OPTION VALUE: a count of at least one.
number() {
  [[ "$2" =~ ^[1-9][0-9]*$ ]] || wrong "$1 needs a number of at least 1, not '$2'"
  printf '%s' "$2"
}

positional=()
while [ $# -gt 0 ]; do
  option=$1
  case "$option" in
    -h | --help)
      usage
      exit
      ;;
    --*)
      [ $# -ge 2 ] || wrong "$option needs a value"
      value=$2
      shift 2
      ;;
    *)
      positional+=("$option")
      shift
      continue
      ;;
  esac
  case "$option" in
    --weights) weights=(--weights "$value") ;;
    --prompt-tokens) prompt_tokens=$(number "$option" "$value") ;;
    --gen-tokens) gen_tokens=$(number "$option" "$value") ;;
    --batch)
      [[ "$value" =~ ^[1-9][0-9]*(,[1-9][0-9]*)*$ ]] || wrong "--batch needs numbers as 8,32, not '$value'"
      batches=$value
      ;;
    --batch-prompt) batch_prompt=$(number "$option" "$value") ;;
    --batch-gen) batch_gen=$(number "$option" "$value") ;;
    --rounds) rounds=$(number "$option" "$value") ;;
    --repeat) repeat=$(number "$option" "$value") ;;
    --threads) threads=$(number "$option" "$value") ;;
    --peer-options) read -ra peer_options <<<"$value" ;;
    --batched-options) read -ra batched_options <<<"$value" ;;
    --convene-options) read -ra convene_options <<<"$value" ;;
    --convene) convene=$value ;;
    *) wrong "unknown option $option" ;;
  esac
done
[ ${#positional[@]} -eq 3 ] ||
  wrong "LLAMA_BENCH, GGUF and CHECKPOINT are needed; ${#positional[@]} arguments were given"
llama_bench=${positional[0]} gguf=${positional[1]} checkpoint=${positional[2]}
batched_bench=$(dirname "$llama_bench")/llama-batched-bench

command -v jq >/dev/null || fail "jq is not installed, and reads the engines' figures: apt-get install jq"
[ -x "$llama_bench" ] && [ ! -d "$llama_bench" ] || fail "$llama_bench is no program; build the peer's llama-bench"
[ -f "$gguf" ] || fail "$gguf is no file; tools/random_gguf.py writes one of random weights"
[ -d "$checkpoint" ] || fail "$checkpoint is no directory; convene synth writes a checkpoint of random weights"
[ -x "$convene" ] || fail "$convene is no program; build it with ninja -C build/release convene, or give --convene"
[ -z "$batches" ] || [ -x "$batched_bench" ] ||
  fail "--batch needs $batched_bench, which is not there; build it, or leave --batch away"

# The programs run in a folder of their own, since some leave a log where they are.
llama_bench=$(realpath "$llama_bench") batched_bench=$(realpath -m "$batched_bench")
gguf=$(realpath "$gguf") checkpoint=$(realpath "$checkpoint") convene=$(realpath "$convene")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
figures=$scratch/figures  # a line per figure: round, engine, test, tokens/s

# run NAME COMMAND...: its output to scratch/NAME.out; shows the end of what it said if it fails.
run() {
  local name=$1
  shift
  (cd "$scratch" && exec "$@") >"$scratch/$name.out" 2>"$scratch/$name.err" || {
    local status=$?
    tail -n 15 "$scratch/$name.out" "$scratch/$name.err" >&2
    fail "exit status $status of: $*"
  }
}

# llama.cpp decodes after a prompt with -d, ik_llama.cpp with -gp; older ones only from nothing.
help=$("$llama_bench" --help 2>&1) || fail "$llama_bench --help failed: ${help:0:300}"
decode_test="tg$gen_tokens after $prompt_tokens"
if grep -q -- '--n-depth' <<<"$help"; then
  decode_arguments=(-p 0 -n "$gen_tokens" -d "$prompt_tokens")
elif grep -q -- ' -gp ' <<<"$help"; then
  decode_arguments=(-p 0 -n 0 -gp "$prompt_tokens,$gen_tokens")
else
  decode_arguments=(-p 0 -n "$gen_tokens")
  decode_test="tg$gen_tokens"
fi

# record_peer ROUND TEST ARGUMENT...: one test of llama-bench.
record_peer() {
  local round=$1 test=$2
  shift 2
  run peer "$llama_bench" -m "$gguf" -t "$threads" -r "$repeat" -o json "${peer_options[@]}" "$@"
  jq -r --arg head "$round"$'\tpeer\t'"$test" \
    'last | $head + "\t" + (.samples_ts | sort | (.[(length - 1) / 2 | floor] + .[length / 2 | floor]) / 2 | tostring)' \
    "$scratch/peer.out" >>"$figures" || fail "no figures in what llama-bench wrote: $(head -c 300 "$scratch/peer.out")"
}

# The table's rows: | PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | ...
record_peer_batches() {
  local round=$1 sizes
  mapfile -t sizes < <(tr , '\n' <<<"$batches" | sort -n)
  run batched "$batched_bench" -m "$gguf" -t "$threads" -c $((sizes[-1] * (batch_prompt + batch_gen))) \
    -npp "$batch_prompt" -ntg "$batch_gen" -npl "$batches" "${batched_options[@]}"
  cat "$scratch/batched.out" "$scratch/batched.err" | awk -F'|' -v OFS='\t' -v round="$round" '
    $2 ~ /^ *[0-9]+ *$/ && !seen[$4]++ {
      print round, "peer", "tg" $3 + 0 " x " $4 + 0, $9 + 0
      found = 1
    }
    END { exit !found }' >>"$figures" ||
    fail "no figures in what llama-batched-bench wrote: $(tail -n 5 "$scratch/batched.out")"
}

# run_convene BATCHES PROMPT GEN: writes scratch/convene.json.
run_convene() {
  run convene "$convene" bench "$checkpoint" --threads "$threads" --batch "$1" --prompt-tokens "$2" \
    --gen-tokens "$3" --repeat "$repeat" --json "$scratch/convene.json" "${weights[@]}" "${convene_options[@]}"
}

record_convene() {
  run_convene 1 "$prompt_tokens" "$gen_tokens"
  jq -r --arg round "$1" --arg pp "pp$prompt_tokens" --arg tg "$decode_test" \
    '[$round, "convene", $pp, .prefill.tokens_per_s], [$round, "convene", $tg, .decode[0].tokens_per_s] | @tsv' \
    "$scratch/convene.json" >>"$figures"
  if [ -z "$batches" ]; then return; fi
  run_convene "$batches" "$batch_prompt" "$batch_gen"
  jq -r --arg round "$1" \
    '.decode[] | [$round, "convene", "\(.test) x \(.batch)", .tokens_per_s] | @tsv' \
    "$scratch/convene.json" >>"$figures"
}

# Two files of different shapes make no comparison.
compare_shapes() {
  local peer_parameters convene_parameters
  peer_parameters=$(jq -r 'last.model_n_params' "$scratch/peer.out")
  run inspect "$convene" inspect "$checkpoint" --json "$scratch/inspect.json"
  convene_parameters=$(jq -r '.parameters_total' "$scratch/inspect.json")
  awk -v a="$peer_parameters" -v b="$convene_parameters" 'BEGIN { exit !(a > 0.99 * b && a < 1.01 * b) }' ||
    fail "the shapes differ: $gguf has $peer_parameters parameters, $checkpoint has $convene_parameters"
}

# record_round ROUND ENGINE...: the engines one after the other.
record_round() {
  local round=$1 engine between=
  shift
  printf 'round %d of %d: ' "$round" "$rounds" >&2
  for engine in "$@"; do
    printf '%s%s' "$between" "$engine" >&2
    between=', '
    if [ "$engine" = convene ]; then
      record_convene "$round"
      continue
    fi
    record_peer "$round" "pp$prompt_tokens" -p "$prompt_tokens" -n 0
    [ "$round" -gt 1 ] || compare_shapes
    record_peer "$round" "$decode_test" "${decode_arguments[@]}"
    [ -z "$batches" ] || record_peer_batches "$round"
  done
  printf '\n' >&2
}

for ((round = 1; round <= rounds; ++round)); do
  if [ $((round % 2)) -eq 1 ]; then
    record_round "$round" "the peer" convene
  else
    record_round "$round" convene "the peer"
  fi
done

printf 'peer:    %s %s %s\n' "$llama_bench" "$gguf" "${peer_options[*]}"
printf 'convene: %s %s %s\n' "$checkpoint" "${weights[*]}" "${convene_options[*]}"
printf '%d threads, %d rounds of %d repetitions; tokens/s, medians\n\n' "$threads" "$rounds" "$repeat"
awk -F'\t' '
  function median(values, count,    i, j, moved) {
    for (i = 2; i <= count; ++i) {
      moved = values[i]
      for (j = i - 1; j >= 1 && values[j] > moved; --j) values[j + 1] = values[j]
      values[j + 1] = moved
    }
    return (values[int((count + 1) / 2)] + values[int(count / 2) + 1]) / 2
  }
  function row(engine, test,    values, count, round, middle) {
    for (round = 1; round <= rounds; ++round) values[++count] = rate[round, engine, test]
    middle = median(values, count)
    return sprintf("%9.2f  %-19s", middle, sprintf("(%.2f - %.2f)", values[1], values[count]))
  }
  { rate[$1, $2, $3] = $4; if ($1 > rounds) rounds = $1 }
  $2 == "peer" && $1 == 1 { tests[++num_tests] = $3 }
  END {
    printf "%-18s%9s  %-19s%9s  %-19s%8s\n", "test", "peer", "(min - max)", "convene", "(min - max)", "ratio"
    for (i = 1; i <= num_tests; ++i) {
      test = tests[i]
      split("", ratios)
      for (round = 1; round <= rounds; ++round)
        ratios[round] = rate[round, "convene", test] / rate[round, "peer", test]
      printf "%-18s%s%s%8.2f\n", test, row("peer", test), row("convene", test), median(ratios, rounds)
    }
  }' "$figures"
if [ "$decode_test" = "tg$gen_tokens" ]; then
  echo "The peer decodes from an empty context, convene after $prompt_tokens tokens."
fi
