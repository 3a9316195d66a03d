#!/usr/bin/env bash
# Lets bench/peers.sh compare programs that only print figures, and expects its table and messages.
set -euo pipefail
peers=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/peers.sh
command -v jq >/dev/null || { echo "jq is not installed"; exit 77; }
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
num_failures=0
mkdir "$tree/model"
touch "$tree/model.gguf"

# program NAME: the script of standard input as an executable.
program() {
  { echo '#!/usr/bin/env bash' && cat; } >"$tree/$1"
  chmod +x "$tree/$1"
}

# peer HELP PARAMETERS: a llama-bench with that help, which decodes more slowly the longer the context is.
peer() {
  program llama-bench <<END
case "\$*" in
  *--help*) echo "$1"; exit ;;
  *'-gp 512,64'* | *'-d 512'*) rate=20 ;;
  *'-p 512 -n 0'*) rate=100 ;;
  *) rate=25 ;;
esac
printf '[{"model_n_params": $2, "samples_ts": [ 1, %d, %d, 1000 ]}]' "\$((rate + 1))" "\$((rate - 1))"
END
}
program llama-batched-bench <<'END'
echo "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |"
echo "|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|"
echo "|    64 |     32 |    8 |    768 |    4.000 |   128.00 |    5.120 |    50.00 |    9.120 |    84.21 |"
END
# Prints its arguments' weights in the rate of its prefill, so that the table tells whether they came.
program convene <<'END'
[[ "$*" =~ --json\ ([^ ]+) ]] && json=${BASH_REMATCH[1]}
rate=150
[[ "$*" != *'--weights int8'* ]] || rate=300
case "$*" in
  *'bench '*' --batch 8 '*) echo '{"decode": [{"test": "tg32", "batch": 8, "tokens_per_s": 75}]}' ;;
  bench*) printf '{"prefill": {"tokens_per_s": %d}, "decode": [{"tokens_per_s": 30}]}' "$rate" ;;
  inspect*) echo '{"parameters_total": 1000}' ;;
esac >"$json"
END

# expect STATUS TEXT ARGUMENT...: peers.sh ends with STATUS, and its output holds TEXT (runs of
# spaces counted as one).
expect() {
  local status=0 output wanted_status=$1 text=$2
  shift 2
  output=$("$peers" "$@" --convene "$tree/convene" 2>&1 | tr -s ' ') || status=$?
  if [ "$status" -ne "$wanted_status" ] || [[ "$output" != *"$text"* ]]; then
    printf 'Expected status %s and "%s"; got status %s and:\n%s\n' \
      "$wanted_status" "$text" "$status" "$output"
    num_failures=$((num_failures + 1))
  fi
}
three=("$tree/llama-bench" "$tree/model.gguf" "$tree/model")

# Each figure is the median of the repetitions, between the two in the middle of four; ik_llama.cpp's and llama.cpp's ways of a context.
peer "  -gp <pp,tg>  " 1000
expect 0 "pp512 100.00 (100.00 - 100.00) 150.00 (150.00 - 150.00) 1.50" "${three[@]}"
expect 0 "tg64 after 512 20.00 (20.00 - 20.00) 30.00 (30.00 - 30.00) 1.50" "${three[@]}"
expect 0 "round 1 of 3: the peer, convene"$'\n'"round 2 of 3: convene, the peer" "${three[@]}"
expect 0 "tg32 x 8 50.00 (50.00 - 50.00) 75.00 (75.00 - 75.00) 1.50" "${three[@]}" --batch 8
expect 0 "300.00 (300.00 - 300.00) 3.00" "${three[@]}" --weights int8 --rounds 1
peer "  -d, --n-depth <n>" 1000
expect 0 "tg64 after 512 20.00" "${three[@]}" --rounds 1
peer "  -p <n>" 1000
expect 0 "tg64 25.00 (25.00 - 25.00) 30.00 (30.00 - 30.00) 1.20" "${three[@]}"
expect 0 "The peer decodes from an empty context" "${three[@]}" --rounds 1

# What is wrong is said.
peer "  -p <n>" 2000
expect 1 "the shapes differ" "${three[@]}"
expect 2 "LLAMA_BENCH, GGUF and CHECKPOINT are needed; 0 arguments were given"
expect 2 "--rounds needs a number of at least 1, not '0'" "${three[@]}" --rounds 0
expect 2 "unknown option --wights" "${three[@]}" --wights int8
expect 2 "--batch needs numbers as 8,32, not '8 32'" "${three[@]}" --batch "8 32"
expect 1 "is no program; build the peer's llama-bench" "$tree/none" "${three[@]:1}"
expect 1 "is no file; tools/random_gguf.py writes one" "${three[0]}" "$tree/none" "${three[2]}"
expect 1 "is no directory; convene synth writes" "${three[@]:0:2}" "$tree/none"
program llama-bench <<<'[[ "$*" == *--help* ]] || { echo "failed to load model" >&2; exit 3; }'
expect 1 "failed to load model" "${three[@]}"
program llama-bench <<<'echo nothing'
expect 1 "no figures in what llama-bench wrote" "${three[@]}"
rm "$tree/llama-batched-bench"
expect 1 "--batch needs $tree/llama-batched-bench, which is not there" "${three[@]}" --batch 8

[ "$num_failures" -eq 0 ] || exit 1
echo "peers.sh compares and refuses as it should."
