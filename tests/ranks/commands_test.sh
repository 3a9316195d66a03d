#!/usr/bin/env bash
# Commands under mpirun: one rank's text from every layout, and what is refused.
# Arguments: MPIEXEC CONVENE REPOSITORY
set -euo pipefail
mpiexec=$1 convene=$2 root=$3
cd "$root"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CONVENE_CACHE_DIR=$work/cache # what ranks cost here is measured once, below
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
            "4 attention=dp4,experts=ep4 --decode-experts ep2tp2 --micro-batches 2"; do
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

# At the first use costs are measured and kept, and what is chosen by them is said. Not for ranks that
# share cores, nor with a layout or --no-plan.
measures() { # WORDS N COMMAND...: WORDS are said of the measurement, or nothing
  local words=$1 n=$2; shift 2
  for _ in one two three; do
    ranks "$n" "$@" >"$work/out" 2>"$work/err" || fail "$*: $(tail -1 "$work/err")"
    # Other work on the machine makes the link between ranks another one, and then it is right to measure again.
    grep -q 'measuring .* the kept costs are of a link of' "$work/err" || break
  done
  [ "$(grep -o 'measuring what steps cost here.*' "$work/err")" = "$words" ] || fail "first use: $(cat "$work/err")"
}
first_use() { # WORDS N ARGUMENTS...: of run
  local words=$1 n=$2; shift 2
  measures "$words" "$n" run models/demo --prompt Once --max-tokens 2 "$@"
}
first_use "" 2 --no-plan
if grep -q '^plan:' "$work/err"; then fail "--no-plan: $(cat "$work/err")"; fi
first_use "" 2 --layout attention=dp2,experts=ep2
if [ "$(nproc)" -le 3 ]; then
  first_use "" 4
  grep -q '^plan: as without a profile, since ranks share cores' "$work/err" || fail "four ranks: $(cat "$work/err")"
fi
if [ "$(nproc)" -ge 2 ]; then
  # plan and run measure by one function (KeptOrMeasuredProfile), so that one of them does it here, and the other finds it.
  measures "measuring what steps cost here, once, since no profile is kept" 2 \
    plan models/demo --weights bf16 --prompt-tokens 16 --gen-tokens 4 --batch 2
  grep -q '^  plan  *2 ranks' "$work/out" || fail "plan at the first use: $(cat "$work/out")"
  first_use "" 2
  grep -q '^plan: 2 ranks .*predicted' "$work/err" || fail "no plan: $(cat "$work/err")"
fi

# The best plans run before one is trusted. Costs are those that the runs above have kept.
if [ "$(nproc)" -ge 2 ]; then
  ranks 2 plan models/demo --weights bf16 --prompt-tokens 64 --gen-tokens 8 --batch 4 --verify 1 --out "$work/verified.json" \
    >"$work/out" 2>"$work/err" || fail "plan --verify: $(tail -1 "$work/err")"
  grep -q 'verified by running' "$work/out" && grep -q 'predicted .*measured' "$work/out" || fail "plan --verify: $(cat "$work/out")"
  ranks 2 run models/demo --prompt Once --max-tokens 3 --plan "$work/verified.json" --trace "$work/steps.json" >"$work/out" 2>"$work/err" ||
    fail "a verified plan: $(tail -1 "$work/err")"
  "$convene" report "$work/steps.json" --plan "$work/verified.json" >"$work/out" 2>"$work/err" || fail "report --plan: $(cat "$work/err")"
  grep -q 'the worst misprediction is' "$work/out" || fail "report --plan: $(cat "$work/out")"

  # A plan whose phases divide the experts differently, from the planner to the report: planned, tried, executed
  # with one rank's text, and what moving took beside what was predicted.
  ranks 2 plan models/demo --weights bf16 --prompt-tokens 64 --gen-tokens 32 --batch 4 --layout attention=dp2,experts=ep2 \
    --decode-experts tp2 --verify 0.5 --out "$work/hybrid.json" >"$work/out" 2>"$work/err" || fail "a hybrid plan: $(tail -1 "$work/err")"
  grep -q '^  plan .*decode experts=tp2' "$work/out" || fail "no hybrid plan: $(cat "$work/out")"
  # The best three at most: how many others there are depends on this minute's costs.
  [ "$(grep -c 'runs\{0,1\} within' "$work/out")" -ge 2 ] || fail "hybrid plans did not run: $(cat "$work/out")"
  sed -i 's/"keep": "both"/"keep": "one"/' "$work/hybrid.json"
  ranks 2 run models/demo --prompt "$prompt" --max-tokens 24 --temperature 0 --plan "$work/hybrid.json" --trace "$work/steps.json" \
    >"$work/out" 2>"$work/err" || fail "the planner's hybrid plan: $(tail -1 "$work/err")"
  cmp -s "$work/one" "$work/out" || fail "the planner's hybrid plan gave another text"
  grep -q '^experts moved 1 time' "$work/err" || fail "the planner's hybrid plan moved nothing: $(cat "$work/err")"
  "$convene" report "$work/steps.json" --plan "$work/hybrid.json" --json "$work/report.json" >"$work/out" 2>"$work/err" ||
    fail "report of a hybrid plan: $(cat "$work/err")"
  grep -q '^ *move_experts .* %' "$work/out" || fail "no prediction of the move: $(cat "$work/out")"
  ranks 2 bench models/demo -p 16 -n 4 --batch 2 --repeat 1 --plan "$work/hybrid.json" >"$work/out" 2>"$work/err" ||
    fail "bench of a hybrid plan: $(tail -1 "$work/err")"
  grep -q '^experts moved' "$work/err" || fail "bench of a hybrid plan: $(cat "$work/err")"

  # The same with experts that come to decode from an int4 backup beside the prompts.
  sed 's/"transition": "reshard"/"transition": "int4"/' "$work/hybrid.json" >"$work/int4.json"
  ranks 2 run models/demo --prompt "$prompt" --max-tokens 24 --temperature 0 --plan "$work/int4.json" --trace "$work/steps.json" \
    >"$work/out" 2>"$work/err" || fail "a plan with an int4 backup: $(tail -1 "$work/err")"
  grep -q '^transition: .*cosine' "$work/err" && grep -q '1 of these came from the int4 backup' "$work/err" ||
    fail "a plan with an int4 backup: $(cat "$work/err")"
  "$convene" report "$work/steps.json" --plan "$work/int4.json" >"$work/out" 2>"$work/err" || fail "report of loads: $(cat "$work/err")"
  grep -q '^ *load_experts .*beside' "$work/out" || fail "no prediction of the loads: $(cat "$work/out")"
  # It is looked at where memory has no room for both divisions, which take some MiB more.
  for gibibytes in 0.057 0.0585 0.06 0.0615 0.063; do
    ranks 2 plan models/demo --weights bf16 --prompt-tokens 64 --gen-tokens 32 --batch 4 --layout attention=dp2,experts=ep2 \
      --decode-experts tp2 --allow transition --explain --memory-per-rank "$gibibytes" >"$work/out" 2>"$work/err" || continue
    if grep -q 'from an int4 backup' "$work/out"; then break; fi
  done
  grep -q 'from an int4 backup' "$work/out" || fail "no plan with an int4 backup: $(cat "$work/out")"

  # What costs learn from a trace is remembered.
  "$convene" measure --from-trace "$work/steps.json" >"$work/out" 2>"$work/err" || fail "measure --from-trace: $(cat "$work/err")"

  # A long input tries plans before it begins, by what its answers may take; they end much earlier here. Whether
  # that pays is for this minute's costs to say (planner_test has the rule), so that it may also be left out: should
  # it run, it does so once, and it changes no text.
  for i in $(seq 100); do
    printf '{"custom_id":"%s","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"Once %s","max_tokens":1000,"temperature":0,"stop":[" ","e","a"]}}\n' "$i" "$i"
  done >"$work/long.jsonl"
  texts() { grep -o '"text": *"[^"]*"' "$1" | sort; }
  for more in "" --no-verify; do
    rm -f "$work/long_out.jsonl"
    # shellcheck disable=SC2086
    ranks 2 batch models/demo --input "$work/long.jsonl" --output "$work/long_out.jsonl" $more >"$work/out" 2>"$work/err" ||
      fail "a long batch $more: $(tail -1 "$work/err")"
    [ "$(grep -c '^verified by running for .* s with loading: ' "$work/err")" -le "$([ -n "$more" ] && echo 0 || echo 1)" ] ||
      fail "a long batch $more: $(cat "$work/err")"
    texts "$work/long_out.jsonl" >"$work/long_texts$more"
  done
  [ "$(wc -l <"$work/long_texts")" = 100 ] && cmp -s "$work/long_texts" "$work/long_texts--no-verify" || fail "a verified batch gave other texts"
fi

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

# What a plan says of weights and threads holds where options do not say otherwise, and these are named.
echo '{"version": 1, "weights": "int8", "threads": 1}' >"$work/int8.json"
"$convene" bench models/demo -p 8 -n 2 --batch 1 --repeat 1 --plan "$work/int8.json" >"$work/out" 2>"$work/err" || fail "bench --plan"
grep -q 'int8 weights' "$work/out" && grep -q ', 1 thread,' "$work/out" || fail "weights and threads of a plan: $(cat "$work/out")"
"$convene" run models/demo --prompt x --max-tokens 1 --plan "$work/int8.json" --gemm dense >/dev/null 2>"$work/err" || fail "run --plan"
grep -qF "plan: $work/int8.json, but for what was given beside it (--gemm)" "$work/err" || fail "options beside a plan: $(cat "$work/err")"

# By default ranks of one host lose nothing on the way, whatever the text.
for text in Once "The cat" "In the year"; do
  "$convene" run models/demo --prompt "$text" --max-tokens 64 --temperature 0 >"$work/one" 2>/dev/null
  ranks 2 run models/demo --prompt "$text" --max-tokens 64 --temperature 0 >"$work/out" 2>/dev/null || fail "$text"
  cmp -s "$work/one" "$work/out" || fail "'$text' is continued differently on two ranks"
  # Two hosts: bf16 is the default between them.
  status=0
  timeout 60 tests/comm/two_hosts.sh "$mpiexec" -n 2 "$convene" run models/demo --prompt "$text" --max-tokens 64 \
    --temperature 0 --wire f32 --no-plan >"$work/out" 2>"$work/err" || status=$?
  [ $status = 77 ] || cmp -s "$work/one" "$work/out" || fail "'$text' on two hosts ($status): $(tail -1 "$work/err")"
done

# The other commands.
for text in Once "The cat" A; do
  printf '{"custom_id":"%s","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"%s","max_tokens":5,"temperature":0}}\n' "$text" "$text"
done >"$work/requests.jsonl"
"$convene" batch models/demo --input "$work/requests.jsonl" --output "$work/batch1.jsonl" >/dev/null 2>&1 || fail batch alone
ranks 2 batch models/demo --input "$work/requests.jsonl" --output "$work/batch2.jsonl" >"$work/out" 2>"$work/err" \
  || fail "batch: $(cat "$work/err")"
texts() { grep -o '"text": *"[^"]*"' "$1" | sort; }
if grep -q '^verified' "$work/err"; then fail "a short batch was verified: $(cat "$work/err")"; fi
[ "$(texts "$work/batch1.jsonl" | wc -l)" = 3 ] || fail "batch alone: $(cat "$work/batch1.jsonl")"
cmp -s <(texts "$work/batch1.jsonl") <(texts "$work/batch2.jsonl") || fail "batch gave other texts"
printf 'Hello there\n/regen\nGo on\n/reset\nHello there\n/quit\nnot read\n' >"$work/turns"
"$convene" chat models/demo --temperature 0 --max-tokens 8 <"$work/turns" >"$work/one" 2>/dev/null || fail chat alone
[ "$(sort -u "$work/one" | wc -l)" -ge 2 ] || fail "chat alone: $(cat "$work/one")"
ranks 2 chat models/demo --temperature 0 --max-tokens 8 <"$work/turns" >"$work/out" 2>"$work/err" \
  || fail "chat: $(tail -1 "$work/err")"
cmp -s "$work/one" "$work/out" || fail "chat gave other answers: $(cat "$work/out")"
echo "1 2 3 4 5 6 7 8" >"$work/tokens.txt"
"$convene" logits models/demo --tokens "$work/tokens.txt" --out "$work/one.npy" >/dev/null 2>&1 || fail logits alone
ranks 2 logits models/demo --tokens "$work/tokens.txt" --out "$work/two.npy" >/dev/null 2>&1 || fail logits
cmp -s "$work/one.npy" "$work/two.npy" || fail "logits of two ranks differ"

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
refuses "whole sequences and whole" 2 run models/demo --prompt x --max-tokens 2 --weights int8 --page-dir "$work/pages" \
  --context 256 --memory-budget 8MiB --layout attention=tp2,experts=tp2

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
