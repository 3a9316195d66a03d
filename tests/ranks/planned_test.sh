#!/usr/bin/env bash
# Commands under mpirun that plan for themselves, by costs that are measured at the first use: planned, tried, executed,
# reported. Beside other work costs would be measured again and again, so nothing else runs meanwhile.
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
"$convene" run models/demo --prompt "$prompt" --max-tokens 24 --temperature 0 >"$work/one" 2>/dev/null

# At the first use costs are measured and kept, and what is chosen by them is said. Not for ranks that
# share cores, nor with a layout or --no-plan.
measures() { # WORDS N COMMAND...: WORDS are said of the measurement, or nothing
  local words=$1 n=$2; shift 2
  for _ in one two three; do
    ranks "$n" "$@" >"$work/out" 2>"$work/err" || fail "$*: $(tail -1 "$work/err")"
    # Other work on the machine makes the link between ranks another one, or what was measured useless, and then it is
    # right to measure again.
    grep -qE 'measuring .* (the kept costs are of a link of|other work must have disturbed)' "$work/err" || break
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

  # Where memory has no room for all experts, how fast the disk is read is measured, too, and kept for later runs.
  sed 's/"num_experts": 8/"num_experts": 64/' models/demo/config.json >"$work/wide.json"
  "$convene" synth "$work/wide.json" --out "$work/wide" --quiet || fail "synth of many experts"
  cp models/demo/tokenizer.json "$work/wide"
  wide() { echo run "$work/wide" --prompt Once --max-tokens 8 --temperature 0 --weights bf16 --context 256; }
  # shellcheck disable=SC2046
  "$convene" $(wide) >"$work/one_wide" 2>/dev/null || fail "many experts alone"
  cp -r "$work/cache" "$work/cache_of_disk"
  little() { # MIB
    # shellcheck disable=SC2046
    CONVENE_CACHE_DIR=$work/cache_of_disk ranks 2 $(wide) --page-dir "$work/pages" --memory-budget "$1MiB" >"$work/out" 2>"$work/err"
  }
  # A busy machine makes the link of the kept costs seem another one than that at hand: then they are measured anew, for which
  # there is no room in a little budget.
  little_with_costs() { # MIB
    for _ in 1 2 3; do
      little "$1" || return 1
      grep -q 'since the kept costs are of a link' "$work/err" || return 0
      little 1024 || return 1
    done
  }
  if little 1; then fail "a budget of nothing was accepted"; fi
  least=$(grep -o 'least budget is --memory-budget [0-9]*' "$work/err" | grep -o '[0-9]*$' | head -1)
  # The budget holds while costs are measured, too.
  rm -rf "$work/cache_of_disk"
  little "$((${least:-100} + 16))" || fail "a little budget without costs: $(tail -1 "$work/err")"
  grep -q '^plan: as without a profile, since what steps cost cannot be measured in so much memory' "$work/err" ||
    fail "a little budget without costs: $(cat "$work/err")"
  rm -rf "$work/cache_of_disk"
  cp -r "$work/cache" "$work/cache_of_disk"
  num_measured=0
  for _ in one two; do
    little_with_costs "$((${least:-100} + 16))" || fail "a little budget: $(tail -1 "$work/err")"
    cmp -s "$work/one_wide" "$work/out" || fail "a little budget gave another text"
    grep -q '^plan: .*in memory and the others read from the disk' "$work/err" || fail "a little budget: $(cat "$work/err")"
    if grep -q '^measuring how fast .*pages is read, once' "$work/err"; then num_measured=$((num_measured + 1)); fi
  done
  [ "$num_measured" = 1 ] || fail "the disk was measured $num_measured times: $(cat "$work/err")"
  grep -q '"disk_directory": ".*/pages"' "$work/cache_of_disk/profile.json" || fail "the disk's rate is not kept"
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

  # Of an encoder-decoder the encoder is tried, too: in eight experts, so that both ranks have as many, and no sum changes.
  sed 's/"num_experts": 6/"num_experts": 8/' tests/golden/models/switch_plain/config.json >"$work/switch.json"
  "$convene" synth "$work/switch.json" --out "$work/switch" --quiet || fail "synth of an encoder-decoder"
  cp models/demo/tokenizer.json "$work/switch"
  # What costs learn from a model so small is no part of what is planned below.
  cp -r "$work/cache" "$work/cache_of_switch"
  CONVENE_CACHE_DIR=$work/cache_of_switch ranks 2 plan "$work/switch" --weights bf16 --prompt-tokens 40 --gen-tokens 8 --batch 4 --layout attention=dp2,experts=ep2 --verify 0.5 \
    --out "$work/switch_plan.json" >"$work/out" 2>"$work/err" ||
    fail "plan --verify of an encoder-decoder: $(tail -1 "$work/err")"
  grep -q '^ *prefill .*predicted .*measured' "$work/out" && grep -q '^ *decode .*predicted .*measured' "$work/out" ||
    fail "plan --verify of an encoder-decoder: $(cat "$work/out")"
  for i in 2 3 4; do
    printf '{"custom_id":"%s","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":[%s,7,50,61,33],"max_tokens":6,"temperature":0,"logprobs":1}}\n' "$i" "$i"
  done >"$work/inputs.jsonl"
  "$convene" batch "$work/switch" --input "$work/inputs.jsonl" --output "$work/switch1.jsonl" >"$work/out" 2>"$work/err" ||
    fail "an encoder-decoder alone: $(tail -1 "$work/err")"
  ranks 2 batch "$work/switch" --input "$work/inputs.jsonl" --output "$work/switch2.jsonl" --plan "$work/switch_plan.json" \
    --trace "$work/steps.json" >"$work/out" 2>"$work/err" || fail "an encoder-decoder by a verified plan: $(tail -1 "$work/err")"
  choices() { grep -o '"choices":.*"finish_reason"' "$1" | sort; }
  [ "$(choices "$work/switch1.jsonl" | wc -l)" = 3 ] && cmp -s <(choices "$work/switch1.jsonl") <(choices "$work/switch2.jsonl") ||
    fail "an encoder-decoder's verified plan gave other answers: $(cat "$work/switch2.jsonl")"
  "$convene" report "$work/steps.json" --plan "$work/switch_plan.json" >"$work/out" 2>"$work/err" || fail "report of an encoder-decoder: $(cat "$work/err")"
  grep -q '^  encode, .* predicted ms ' "$work/out" && grep -q 'the worst misprediction is' "$work/out" ||
    fail "report of an encoder-decoder: $(cat "$work/out")"

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
  grep -q '^transition: .*cosine .* all of them 0.995 or more' "$work/err" && grep -q '1 of these came from the int4 backup' "$work/err" ||
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

[ "$failures" = 0 ] && echo "commands on ranks plan for themselves, and do what they do on one"
