#!/usr/bin/env bash
# Commands under mpirun: one rank's text from every layout, and what is refused.
# Arguments: MPIEXEC CONVENE REPOSITORY
set -euo pipefail
mpiexec=$1 convene=$2 root=$3
cd "$root"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CONVENE_CACHE_DIR=$work/cache
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
ranks() { local n=$1; shift; timeout 120 "$mpiexec" -n "$n" --oversubscribe "$convene" "$@"; }

prompt="Once upon a time there was a"
generate() { echo run models/demo --prompt "$prompt" --max-tokens 24 --temperature 0; }
"$convene" run models/demo --prompt "$prompt" --max-tokens 24 --temperature 0 >"$work/one" 2>/dev/null
for line in "2 attention=dp2,experts=ep2" "2 attention=tp2,experts=tp2" "2 attention=dp2,experts=slice2" \
            "3 attention=dp3,experts=ep3" "4 attention=tp2dp2,experts=ep2tp2" \
            "4 attention=dp4,experts=ep4 --pipeline 2:experts" "2 attention=dp2,experts=ep2 --pipeline 3 --wire fp8" \
            "2 attention=dp2,experts=ep2 --no-overlap --wire f32" "2 attention=dp2,experts=ep2 --micro-batches 2" \
            "2 attention=dp2,experts=slice2 --micro-batches 3 --pipeline 2" \
            "2 attention=dp2,experts=ep2 --decode-experts tp2" "2 attention=tp2,experts=tp2 --decode-experts ep2" \
            "4 attention=dp4,experts=ep4 --decode-experts ep2tp2 --micro-batches 2" \
            "2 attention=tp2,experts=tp2,head=tp2" "4 attention=dp4,experts=ep4,head=tp4 --micro-batches 2" \
            "2 attention=dp2,experts=ep2,head=tp2 --decode-experts tp2" \
            "2 layers=pp2" "3 layers=pp2:1:1 --micro-batches 3"; do
  read -r n layout more <<<"$line"
  # shellcheck disable=SC2086
  ranks "$n" run models/demo --prompt "$prompt" --max-tokens 24 --temperature 0 --layout "$layout" $more \
    >"$work/out" 2>"$work/err" || fail "$line: $(tail -1 "$work/err")"
  cmp -s "$work/one" "$work/out" || fail "$line gave another text"
done

# A plan with two divisions of the experts is executed as it is written: they move, unless both are kept, and the text
# stays.
for keep in one both; do
  echo '{"version": 1, "layout": "attention=dp2,experts=ep2", "wire": "f32",
         "decode": {"experts": "tp2", "keep": "'$keep'", "epoch_steps": 8}}' >"$work/hybrid.json"
  ranks 2 run models/demo --prompt "$prompt" --max-tokens 24 --temperature 0 --plan "$work/hybrid.json" \
    >"$work/out" 2>"$work/err" || fail "hybrid plan: $(tail -1 "$work/err")"
  moves=$(grep -c '^experts moved 1 time' "$work/err" || true)
  [ "$moves" = "$([ "$keep" = one ] && echo 1 || echo 0)" ] || fail "keeping $keep, experts moved: $(cat "$work/err")"
  cmp -s "$work/one" "$work/out" || fail "a hybrid plan that keeps $keep gave another text"
done

# A plan for fewer ranks than were started: the others idle, and the text is one rank's.
echo '{"version": 1, "layout": "attention=dp1,experts=ep1"}' >"$work/single.json"
echo '{"version": 1, "layout": "attention=dp2,experts=ep2", "wire": "f32"}' >"$work/pair.json"
"$convene" run models/demo --prompt "$prompt" --max-tokens 24 --temperature 0 >"$work/one" 2>/dev/null
for line in "single 2 1 rank" "pair 3 2 ranks"; do
  read -r name started used <<<"$line"
  ranks "$started" run models/demo --prompt "$prompt" --max-tokens 24 --temperature 0 --plan "$work/$name.json" >"$work/out" 2>"$work/err" ||
    fail "fewer ranks: $(tail -1 "$work/err")"
  cmp -s "$work/one" "$work/out" || fail "the plan for $used gave another text on $started"
  grep -q "^the plan is for $used, and $started were started: the last one waits" "$work/err" || fail "fewer ranks: $(cat "$work/err")"
done

# Whatever mpirun binds ranks to, they divide what they have together, and say where mpirun has more.
if [ "$(lscpu -p=core,socket | grep -v '^#' | sort -u | wc -l)" -ge 2 ] && [ "$(nproc)" -ge 2 ]; then
  for line in "2 core 2" "2 none [0-9]*" "1 core 1"; do
    read -r started binding threads <<<"$line"
    timeout 120 "$mpiexec" -n "$started" --bind-to "$binding" "$convene" bench models/demo -p 8 -n 2 --batch 1 --repeat 1 --no-peaks \
      --plan "$work/single.json" >"$work/out" 2>"$work/err" || fail "bound to $binding: $(tail -1 "$work/err")"
    grep -q ", $threads threads*, " "$work/out" || fail "$started ranks bound to $binding: $(cat "$work/out")"
    notes=$(grep -c '^the ranks of this host are bound to' "$work/err" || true)
    case $line in 2\ none*) [ "$notes" = 0 ] ;; 1\ core*) [ "$notes" = 1 ] ;; esac || fail "$started ranks bound to $binding: $(cat "$work/err")"
  done
fi

# What a plan says of weights and threads holds where options do not say otherwise, and these are named.
echo '{"version": 1, "weights": "int8", "threads": 1}' >"$work/int8.json"
"$convene" bench models/demo -p 8 -n 2 --batch 1 --repeat 1 --plan "$work/int8.json" >"$work/out" 2>"$work/err" || fail "bench --plan"
grep -q 'int8 weights' "$work/out" && grep -q ', 1 thread,' "$work/out" || fail "weights and threads of a plan: $(cat "$work/out")"
"$convene" run models/demo --prompt x --max-tokens 1 --plan "$work/int8.json" --gemm dense >/dev/null 2>"$work/err" || fail "run --plan"
grep -qF "plan: $work/int8.json, but for what was given beside it (--gemm)" "$work/err" || fail "options beside a plan: $(cat "$work/err")"

# So do its step tokens and the number of sequences that run together, of commands that run several.
echo '{"version": 1, "step_tokens": 64, "sequences": 3}' >"$work/steps.json"
for line in "64" "128 --chunk 128"; do
  read -r tokens more <<<"$line"
  # shellcheck disable=SC2086
  "$convene" bench models/demo -p 8 -n 2 --batch 1 --repeat 1 --plan "$work/steps.json" $more >"$work/out" 2>"$work/err" || fail "bench: $line"
  grep -q "steps of at most $tokens tokens" "$work/out" || fail "step tokens of a plan, $line: $(cat "$work/out")"
done
grep -qF "but for what was given beside it (--chunk)" "$work/err" || fail "--chunk beside a plan: $(cat "$work/err")"
for text in A B C D E; do
  printf '{"custom_id":"%s","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"%s","max_tokens":4}}\n' "$text" "$text"
done >"$work/five.jsonl"
for line in "3 --plan $work/steps.json" "2 --plan $work/steps.json --max-batch 2" "5"; do
  read -r together more <<<"$line"
  rm -f "$work/five.out"
  # shellcheck disable=SC2086
  "$convene" batch models/demo --input "$work/five.jsonl" --output "$work/five.out" --json "$work/five.json" $more >/dev/null 2>"$work/err" ||
    fail "batch: $line: $(cat "$work/err")"
  grep -q "\"max_batch\": $together,$" "$work/five.json" || fail "sequences of a plan, $line: $(cat "$work/five.json")"
done

refuses() { # MESSAGE N ARGUMENTS...
  local message=$1 n=$2; shift 2
  status=0
  ranks "$n" "$@" >"$work/out" 2>"$work/err" || status=$?
  [ $status != 0 ] || fail "$* was accepted"
  grep -q -- "$message" "$work/err" || fail "$*: no '$message' in: $(grep convene: "$work/err")"
  [ ! -s "$work/out" ] || fail "$* wrote to standard output"
  [ "$(grep -c '^convene:' "$work/err")" = 1 ] || fail "$*: not one error"
}
refuses "needs 4 ranks, and 2 were started" 2 run models/demo --prompt x --layout attention=dp4,experts=ep4
refuses "both must have all of them" 2 run models/demo --prompt x --layout attention=dp2,experts=ep4
refuses "heads" 3 run models/demo --prompt x --layout attention=tp3,experts=ep3
refuses "without overlap" 2 run models/demo --prompt x --micro-batches 2 --no-overlap
refuses "micro-batches" 2 run models/demo --prompt x --micro-batches 65
refuses "there is no command" 2 rnu models/demo
refuses "there is no option" 2 run models/demo --bogus
refuses "encode runs on one rank" 2 encode models/demo --text x --out "$work/states.npy"
refuses "compare runs on one rank" 2 compare models/demo --text models/demo/validation.txt --formats int8
refuses "int9 is no format of weights" 2 measure --steps int9 --out "$work/profile.json"
[ ! -e "$work/profile.json" ] || fail "measure without a format to measure left a profile"
ranks 2 measure --steps none --seconds 0.01 --disk "$work" --out "$work/profile.json" >"$work/out" 2>"$work/err" ||
  fail "measure: $(tail -1 "$work/err")"
[ -s "$work/profile.json" ] || fail "measure on two ranks left no profile"
# Numbers of ways by format and rows; none where the caches are too large, or the time too short, to tell them apart.
tr -d ' \n' <"$work/profile.json" | grep -Eq '"panel_streaming":\[([0-9]+(,[0-9]+){23})?\]' ||
  fail "how panels are read is not in the profile: $(tr -d ' \n' <"$work/profile.json" | grep -o '"panel_streaming":[^]]*')"
tr -d '\n' <"$work/profile.json" | grep -Eq '"cpuid": "[A-Za-z ]+ family [0-9]+ model [0-9]+ stepping [0-9]+"' ||
  fail "the profile does not say of which kind of CPU it is"

# Requests, and one rank's answers to them.
for text in Once "The cat" A; do
  printf '{"custom_id":"%s","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"%s","max_tokens":5,"temperature":0}}\n' "$text" "$text"
done >"$work/requests.jsonl"
"$convene" batch models/demo --input "$work/requests.jsonl" --output "$work/batch1.jsonl" >/dev/null 2>&1 || fail batch alone
texts() { grep -o '"text": *"[^"]*"' "$1" | sort; }

# Phases whose experts differ.
echo '{"version": 1, "layout": "attention=dp2,experts=ep2", "decode": {"experts": "tp2"}}' >"$work/phases.json"
moved() { # COUNT COMMAND...: the experts moved so often, 0: the command says nothing of it
  local count=$1; shift
  ranks 2 "$@" >"$work/out" 2>"$work/err" || fail "$*: $(tail -1 "$work/err")"
  [ "$(grep -o 'experts moved [0-9]* time' "$work/err" | grep -o '[0-9]*' || echo 0)" = "$count" ] ||
    fail "$* moved experts otherwise than $count times: $(cat "$work/err")"
}
moved 1 run models/demo --prompt Once --max-tokens 3 --plan "$work/phases.json" --trace "$work/moves.json"
"$convene" report "$work/moves.json" >"$work/out" 2>"$work/err" || fail "report of a move: $(cat "$work/err")"
grep -q 'experts move to their division in decode' "$work/out" && grep -q '^ *move_experts ' "$work/out" ||
  fail "report of a move: $(cat "$work/out")"
moved 0 run models/demo --prompt Once --max-tokens 2 --plan "$work/phases.json" --layout attention=dp2,experts=ep2
moved 0 run models/demo --prompt Once --max-tokens 2 --layout attention=dp2,experts=ep2 --decode-experts ep2
batch_with() { rm -f "$work/batch3.jsonl"; echo "batch models/demo --input $work/requests.jsonl --output $work/batch3.jsonl $*"; }
# shellcheck disable=SC2046
moved 1 $(batch_with --decode-experts tp2)
cmp -s <(texts "$work/batch1.jsonl") <(texts "$work/batch3.jsonl") || fail "batch in two phases gave other texts"
# shellcheck disable=SC2046
moved 0 $(batch_with --decode-experts tp2 --max-batch 2)
grep -q 'experts stay divided as in prefill' "$work/err" || fail "a stream without epochs: $(cat "$work/err")"
# shellcheck disable=SC2046
moved 3 $(batch_with --decode-experts tp2 --max-batch 2 --epoch-steps 2)
cmp -s <(texts "$work/batch1.jsonl") <(texts "$work/batch3.jsonl") || fail "batch in epochs gave other texts"
refuses "gives attention 2 ranks and the experts 4" 2 run models/demo --prompt x --decode-experts ep4
refuses "give --decode-experts" 2 run models/demo --prompt x --epoch-steps 8
refuses "give --decode-experts" 2 run models/demo --prompt x --transition int4
refuses "need weights in bf16 or f32" 2 run models/demo --prompt x --weights int8 --decode-experts tp2 --transition int4
# shellcheck disable=SC2046
moved 3 $(batch_with --weights bf16 --decode-experts tp2 --transition int4 --max-batch 2 --epoch-steps 2)
grep -q '2 of these came from the int4 backup beside prompts' "$work/err" || fail "loads in epochs: $(cat "$work/err")"

# A command that has no use for several ranks: one of them does it, once, and says so.
for command in "tokenize models/demo --text Once" "detokenize models/demo --ids 5" "completion bash"; do
  read -ra words <<<"$command"
  "$convene" "${words[@]}" >"$work/one" 2>"$work/err" || fail "$command alone"
  grep -q "one rank" "$work/err" && fail "$command alone: $(cat "$work/err")"
  ranks 3 "${words[@]}" >"$work/out" 2>"$work/err" || fail "$command: $(tail -1 "$work/err")"
  cmp -s "$work/one" "$work/out" || fail "$command on ranks: $(cat "$work/out")"
  [ "$(grep -c "^${words[0]} needs one rank, and 3 were started: rank 0 does the work" "$work/err")" = 1 ] \
    || fail "$command on ranks: $(cat "$work/err")"
done

# Command lines of their own: rank 0's options count, and the first that has others is told of.
lines_of_two() { # OPTIONS OPTIONS
  # shellcheck disable=SC2086
  timeout 120 "$mpiexec" --oversubscribe -n 1 "$convene" run models/demo -p x -n 2 $1 : \
    -n 1 "$convene" run ./models/demo --prompt x --max-tokens 2 $2 >"$work/out" 2>"$work/err" || fail "run with '$1' and '$2'"
}
"$convene" run models/demo -p x -n 2 --seed 1 >"$work/one" 2>/dev/null
lines_of_two "--seed 1" "--seed 2 --wire f32"
cmp -s "$work/one" "$work/out" || fail "the options of rank 1 count: $(cat "$work/out")"
[ "$(grep "other options" "$work/err")" = \
  "rank 1 was started with other options (--seed 2, --wire f32); those of rank 0 count" ] || fail "other options: $(cat "$work/err")"
lines_of_two "--threads 1" ""
grep -qxF "rank 1 was started with other options (without --threads 1); those of rank 0 count" "$work/err" \
  || fail "fewer options: $(cat "$work/err")"
lines_of_two "--seed 1 --no-overlap" "--no-overlap --seed=1"
if grep -q "other options" "$work/err"; then fail "the same options: $(cat "$work/err")"; fi

# Ranks whose experts do not fit into their budgets read them from a disk, and the text stays.
"$convene" run models/demo --prompt "$prompt" --max-tokens 24 --temperature 0 --weights int8 >"$work/one8" 2>/dev/null
paged="run models/demo --max-tokens 24 --temperature 0 --weights int8 --page-dir $work/pages --context 256"
# shellcheck disable=SC2086
ranks 2 $paged --layout attention=dp2,experts=ep2 --prompt "$prompt" --memory-budget 1MiB >"$work/out" 2>"$work/err" &&
  fail "a budget of nothing was accepted"
grep -q 'least budget is --memory-budget [0-9]*MiB' "$work/err" || fail "no least budget: $(cat "$work/err")"
[ ! -e "$work/pages" ] || fail "pages were made in vain"
# How much of a budget is left for experts depends on what a program takes; a plan says how many stay.
echo '{"version": 1, "layout": "attention=dp2,experts=ep2", "experts_in_memory": 6}' >"$work/six.json"
for more in "" "--page-cache lru" "--no-overlap" "--trace $work/paged.json"; do
  # shellcheck disable=SC2086
  ranks 2 $paged $more --prompt "$prompt" --plan "$work/six.json" >"$work/out" 2>"$work/err" || fail "paged $more: $(tail -1 "$work/err")"
  cmp -s "$work/one8" "$work/out" || fail "paged ranks $more gave another text"
  grep -q '^paged: ' "$work/err" || fail "nothing was paged: $(cat "$work/err")"
done
[ "$(find "$work/pages" -name convene.safetensors | wc -l)" = 1 ] || fail "pages: $(ls "$work/pages")"
"$convene" gantt "$work/paged.json" --out "$work/paged.svg" >/dev/null 2>"$work/err" || fail "gantt of paged ranks: $(cat "$work/err")"
# Ranks with parts of heads and experts make pages of these, and compute what they do with all of them in memory.
tp="--layout attention=tp2,experts=tp2"
# shellcheck disable=SC2086
ranks 2 run models/demo --max-tokens 24 --temperature 0 --weights int8 --prompt "$prompt" $tp >"$work/tp8" 2>"$work/err" ||
  fail "tensor parallel: $(tail -1 "$work/err")"
echo '{"version": 1, "layout": "attention=tp2,experts=tp2", "experts_in_memory": 6}' >"$work/tp.json"
# shellcheck disable=SC2086
ranks 2 $paged --prompt "$prompt" --plan "$work/tp.json" >"$work/out" 2>"$work/err" || fail "paged parts: $(tail -1 "$work/err")"
cmp -s "$work/tp8" "$work/out" || fail "paged parts gave another text"
grep -q '^paged: ' "$work/err" || fail "nothing was paged: $(cat "$work/err")"
[ "$(find "$work/pages" -name convene.safetensors | wc -l)" = 3 ] || fail "pages of parts: $(ls "$work/pages")"
# They are nobody else's.
refuses "use the original checkpoint" 1 run "$(find "$work/pages" -name '*part1of2*' -type d)" --prompt x --max-tokens 2

# A command line that makes no sense on another rank than 0.
status=0
timeout 120 "$mpiexec" --oversubscribe -n 1 "$convene" run models/demo --prompt x : \
  -n 1 "$convene" run models/demo --promt x >"$work/out" 2>"$work/err" || status=$?
[ $status = 2 ] || fail "a bad option on rank 1: status $status"
grep -q '^convene: rank 1 .*--promt' "$work/err" || fail "a bad option on rank 1: $(cat "$work/err")"

status=0
timeout 120 "$mpiexec" --oversubscribe -n 1 "$convene" run models/demo --prompt x : \
  -n 1 "$convene" run --help >"$work/out" 2>"$work/err" || status=$?
[ $status = 2 ] || fail "help on rank 1: status $status"
grep -q '^convene: what the command line asks for differs' "$work/err" || fail "help on rank 1: $(cat "$work/err")"
status=0
timeout 120 "$mpiexec" --oversubscribe -n 1 "$convene" run models/demo --prompt x : \
  -n 1 "$convene" bench models/demo >"$work/out" 2>"$work/err" || status=$?
[ $status = 2 ] && grep -q 'rank 0 .* has run, rank 1 .* has bench' "$work/err" || fail "bench on rank 1: $(cat "$work/err")"
[ "$(ranks 2 run --help | grep -c -- --prompt-file)" = 1 ] || fail "help on two ranks"

# A weight that is not a number, which only one of the ranks reads.
cp -r models/demo "$work/damaged"
printf '\377\377' | dd of="$work/damaged/model.safetensors" bs=1 conv=notrunc status=none \
  seek=$(($(stat -c %s "$work/damaged/model.safetensors") - 2))
refuses "holds NaN" 2 run "$work/damaged" --prompt x --max-tokens 2

# Another model in the same place on another host.
cp -r models/demo "$work/other"
for file in "$work"/other/*.safetensors; do
  size=$(stat -c %s "$file")
  printf 'abcdefgh' | dd of="$file" bs=1 seek=$((size - 8)) conv=notrunc status=none
done
if timeout 120 "$mpiexec" --oversubscribe -n 1 "$convene" run models/demo --prompt x --max-tokens 2 : \
  -n 1 "$convene" run "$work/other" --prompt x --max-tokens 2 >"$work/out" 2>"$work/err"; then
  fail "different checkpoints were accepted"
fi
grep -q "differs between ranks" "$work/err" || fail "different checkpoints: $(cat "$work/err")"

[ "$failures" = 0 ] && echo "commands on ranks do what they do on one"
