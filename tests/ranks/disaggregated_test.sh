#!/usr/bin/env bash
# Attention and experts on different ranks: one rank's text and logits, roles by their names, what is refused, and
# the end of an expert rank. Arguments: MPIEXEC CONVENE REPOSITORY
set -euo pipefail
mpiexec=$1 convene=$2 root=$3
cd "$root"
work=$(mktemp -d)
job=
trap 'rm -rf "$work"; [ -z "$job" ] || kill -9 "$job" 2>/dev/null || true' EXIT
export CONVENE_CACHE_DIR=$work/cache
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
ranks() { local n=$1; shift; timeout 60 "$mpiexec" -n "$n" --oversubscribe "$convene" "$@"; }

# Every strategy, on three ranks and on four.
prompt="Once upon a time there was a"
text() { local n=$1; shift; ranks "$n" run models/demo --prompt "$prompt" --max-tokens 12 --temperature 0 "$@"; }
"$convene" run models/demo --prompt "$prompt" --max-tokens 12 --temperature 0 >"$work/one" 2>/dev/null
for line in "3 attention=dp1,experts=ep2 --strategy naive" "3 attention=dp2,experts=ep1 --strategy pppipe --micro-batches 3" \
            "4 attention=dp2,experts=ep2 --strategy fine --micro-batches 2 --pipeline 2:tokens --order aass" \
            "4 attention=dp1,experts=ep2:1:1" "3 attention=dp1@2,experts=ep2 --weights bf16" \
            "4 attention=dp2@1:3,experts=ep2 --strategy fine --micro-batches 2" "6 attention=tp2dp2,experts=ep2 --wire f32" "3 attention=tp2,experts=ep1 --pipeline 3 --weights bf16 --wire f32"; do
  read -r n layout more <<<"$line"
  # shellcheck disable=SC2086
  text "$n" --layout "$layout" --disaggregate $more >"$work/out" 2>"$work/err" || fail "$line: $(tail -1 "$work/err")"
  cmp -s "$work/one" "$work/out" || fail "$line gave another text: $(cat "$work/out")"
done

# The other commands that run on ranks: rank 0 has attention, or experts and the head alone.
head -c 1500 models/demo/validation.txt >"$work/text.txt"
"$convene" perplexity models/demo --text "$work/text.txt" --json "$work/one.json" >/dev/null 2>&1 || fail "perplexity alone"
ranks 3 perplexity models/demo --text "$work/text.txt" --json "$work/several.json" --layout attention=dp1@1,experts=ep2 --disaggregate \
  >/dev/null 2>"$work/err" || fail "perplexity: $(tail -1 "$work/err")"
[ "$(grep '"nll"' "$work/one.json")" = "$(grep '"nll"' "$work/several.json")" ] || fail "another perplexity"
printf 'Good evening\n/quit\n' | "$convene" chat models/demo --max-tokens 8 --temperature 0 >"$work/one_chat" 2>/dev/null
printf 'Good evening\n/quit\n' | ranks 3 chat models/demo --max-tokens 8 --temperature 0 --layout attention=dp1@1,experts=ep2 --disaggregate \
  >"$work/out" 2>"$work/err" || fail "chat: $(tail -1 "$work/err")"
cmp -s "$work/one_chat" "$work/out" || fail "chat gave another answer: $(cat "$work/out")"
ranks 3 bench models/demo -p 32 -n 2 --batch 1 --repeat 1 --layout attention=dp1@2,experts=ep3:1 --disaggregate >"$work/out" 2>"$work/err" ||
  fail "bench: $(tail -1 "$work/err")"
grep -q "on rank 2 (attention), .* on each of ranks 0, 1 (experts)" "$work/out" || fail "bench does not say what ranks hold: $(cat "$work/out")"
timeout 60 "$mpiexec" -n 3 --oversubscribe "$convene" serve models/demo --port 0 --layout attention=dp1@1,experts=ep2 --disaggregate \
  >/dev/null 2>"$work/served" </dev/null &
job=$!
for _ in {1..300}; do grep -q event=ready "$work/served" && break; sleep 0.1; done
port=$(sed -n 's/.*event=ready.* url=http:[^ ]*:\([0-9]*\).*/\1/p' "$work/served")
body='{"prompt": "'$prompt'", "max_tokens": 12, "temperature": 0}'
exec 3<>"/dev/tcp/127.0.0.1/$port"
printf 'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' ${#body} "$body" >&3
served=$(sed -n 's/.*"text":"\([^"]*\)".*/\1/p' <&3)
exec 3>&-
[ "$served" = "$(cat "$work/one")" ] || fail "serve answers '$served': $(cat "$work/served")"
kill "$job"
wait "$job" || true
job=

# Made-up routing goes by the token and its place, whoever computes it.
skew="--router-skew 0.6 --num-experts-skew 3"
# shellcheck disable=SC2086
text 1 $skew >"$work/one_skewed" 2>"$work/err" || fail "made-up routing: $(tail -1 "$work/err")"
for line in "2 --layout attention=dp2,experts=ep2 --micro-batches 2" "3 --layout attention=dp1@1,experts=ep2 --disaggregate --micro-batches 2"; do
  read -r n more <<<"$line"
  # shellcheck disable=SC2086
  text "$n" $more $skew >"$work/out" 2>"$work/err" || fail "$line: $(tail -1 "$work/err")"
  cmp -s "$work/one_skewed" "$work/out" || fail "$line has another text with made-up routing: $(cat "$work/out")"
done

# With shared experts, and dense layers before them: the same logits.
echo "1 2 3 4 5 6 7 8 9 10 11 12" >"$work/tokens.txt"
for model in qwen2_many deepseek_v3_plain; do
  logits() { "$@" logits "tests/golden/models/$model" --weights f32 --tokens "$work/tokens.txt" "${options[@]}"; }
  options=(--out "$work/one.npy")
  logits "$convene" >/dev/null 2>&1 || fail "logits of $model alone"
  options=(--out "$work/several.npy" --layout "attention=dp2,experts=ep1" --disaggregate --order aass --pipeline 2)
  logits timeout 60 "$mpiexec" -n 3 --oversubscribe "$convene" >/dev/null 2>"$work/err" || fail "logits of $model: $(tail -1 "$work/err")"
  cmp -s "$work/one.npy" "$work/several.npy" || fail "$model has other logits"
done

# A plan says the same, and a packed directory is divided, too. Traces and reports have the roles by name.
"$convene" quantize models/demo --weights int8 --out "$work/packed" >/dev/null 2>&1 || fail quantize
"$convene" run "$work/packed" --prompt "$prompt" --max-tokens 12 --temperature 0 >"$work/one" 2>/dev/null
echo '{"version": 1, "layout": "attention=dp1,experts=ep2,disaggregate", "strategy": "fine", "wire": "f32",
       "pipeline": {"chunks": 2, "micro_batches": 2, "order": "aass"}}' >"$work/plan.json"
ranks 3 run "$work/packed" --prompt "$prompt" --max-tokens 12 --temperature 0 --plan "$work/plan.json" --trace "$work/trace.json" \
  >"$work/out" 2>"$work/err" || fail "a plan: $(tail -1 "$work/err")"
cmp -s "$work/one" "$work/out" || fail "the plan gave another text: $(cat "$work/out")"

# --disaggregate beside it says nothing new, and alone it lets the search choose such a plan, where it can measure.
ranks 3 run "$work/packed" --prompt "$prompt" --max-tokens 12 --temperature 0 --plan "$work/plan.json" --disaggregate \
  >"$work/out" 2>"$work/err" || fail "a plan and --disaggregate: $(tail -1 "$work/err")"
cmp -s "$work/one" "$work/out" || fail "the plan and --disaggregate gave another text: $(cat "$work/out")"
! grep -q "but for what was given beside it" "$work/err" || fail "--disaggregate counts as another option: $(cat "$work/err")"
echo '{"version": 1, "layout": "attention=dp2,experts=ep2"}' >"$work/together.json"
ranks 2 run "$work/packed" --prompt "$prompt" --max-tokens 12 --temperature 0 --disaggregate --micro-batches 2 \
  >"$work/out" 2>"$work/err" || fail "--disaggregate alone: $(tail -1 "$work/err")"
cmp -s "$work/one" "$work/out" || fail "--disaggregate alone gave another text: $(cat "$work/out")"
grep -q 'plan: .*\(disaggregate.* 2 micro-batches\|ranks share cores\)' "$work/err" || fail "--disaggregate alone: $(grep plan: "$work/err")"

# A plan with lines divides each step in its own way: prompts in parts here, generated tokens in one.
echo '{"version": 1, "layout": "attention=dp1,experts=ep2,disaggregate", "strategy": "fine", "wire": "f32",
       "pipeline": {"chunks": 4, "micro_batches": 3},
       "lines": [{"layers": 4, "attention_per_key": 0, "counts": 1e-5, "most_rows": 4, "attention": [1e-4, 1e-6],
                  "shared": [0, 0], "dispatch": [1e-5, 1e-7], "experts": [1e-4, 1e-6], "combine": [1e-5, 1e-7]},
                 {"layers": 4, "attention_per_key": 0, "counts": 1e-6, "most_rows": 512, "attention": [1e-6, 1e-5],
                  "shared": [0, 0], "dispatch": [1e-6, 1e-5], "experts": [1e-6, 1e-5], "combine": [1e-6, 1e-5]}]}' >"$work/lines.json"
ranks 3 run "$work/packed" --prompt "$prompt" --max-tokens 12 --temperature 0 --plan "$work/lines.json" --trace "$work/lines_trace.json" \
  >"$work/out" 2>"$work/err" || fail "a plan with lines: $(tail -1 "$work/err")"
cmp -s "$work/one" "$work/out" || fail "the plan with lines gave another text: $(cat "$work/out")"
for name in "dispatch L0 m1 c0" "dispatch L0 c0"; do
  grep -q "\"$name\"" "$work/lines_trace.json" || fail "no step with '$name' under a plan with lines"
done

"$convene" report "$work/trace.json" >"$work/out" 2>"$work/err" || fail "report: $(cat "$work/err")"
for line in '^ *0 attention ' '^ *2 experts '; do
  grep -q "$line" "$work/out" || fail "no '$line' in the report: $(cat "$work/out")"
done
for role in '"rank 0 (attention)"' '"rank 2 (experts)"'; do
  grep -q "$role" "$work/trace.json" || fail "no $role in the trace"
done

refuses() { # MESSAGE STATUS N ARGUMENTS...: with N of 1 without mpiexec
  local message=$1 expected=$2 status=0 run=(ranks "$3"); shift 3
  [ "${run[1]}" != 1 ] || run=("$convene")
  "${run[@]}" run models/demo --prompt x "$@" >"$work/out" 2>"$work/err" || status=$?
  [ "$status" = "$expected" ] || fail "$*: status $status"
  grep -q -- "$message" "$work/err" || fail "$*: no '$message' in: $(grep convene: "$work/err")"
}
refuses "unless they are on different ranks (--disaggregate)" 2 1 --layout attention=dp1,experts=ep2
refuses "needs 3 ranks, and 2 were started" 1 2 --layout attention=dp1,experts=ep2 --disaggregate
refuses "give --layout" 2 1 --disaggregate --no-plan
refuses "this is one process" 1 1 --disaggregate
refuses "give --layout as well" 1 2 --plan "$work/together.json" --disaggregate
refuses "add --disaggregate" 2 1 --strategy fine
refuses "naive has one micro-batch" 2 1 --layout attention=dp1,experts=ep1 --disaggregate --strategy naive --micro-batches 2
refuses "pppipe has one chunk" 2 1 --layout attention=dp1,experts=ep1 --disaggregate --strategy pppipe --pipeline 2
refuses "cut by tokens" 2 1 --layout attention=dp1,experts=ep1 --disaggregate --pipeline 2:experts
refuses "not chosen automatically" 2 1 --layout attention=dp1,experts=ep1 --disaggregate --pipeline auto
refuses "the same ones in decode" 2 1 --layout attention=dp1,experts=ep1 --disaggregate --decode-experts tp1

# --layout beside the plan has no turns of its own kind of ranks any more.
ranks 2 run models/demo --prompt x --max-tokens 1 --plan "$work/plan.json" --layout attention=dp2,experts=ep2 --pipeline 1 \
  >"$work/out" 2>"$work/err" || fail "another layout beside the plan: $(tail -1 "$work/err")"

# An expert rank that is killed, or hangs, ends the job within 10 seconds, and others say which one it was.
ends_after() { # SIGNAL MESSAGE
  setsid "$mpiexec" -n 3 --oversubscribe "$convene" bench models/demo -p 256 -n 64 --batch 4 --repeat 1000 \
    --layout attention=dp1,experts=ep2 --disaggregate >"$work/out" 2>"$work/err" &
  job=$!
  local victim='' pid status=0 since
  for _ in {1..300}; do
    for pid in $(ps -o pid= --ppid "$job"); do
      if tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx OMPI_COMM_WORLD_RANK=2; then victim=$pid; fi
    done
    [ -n "$victim" ] && grep -q '^models/demo' "$work/out" && break
    sleep 0.1
  done
  sleep 0.5
  since=$SECONDS
  kill -"$1" "$victim" || fail "there is no rank 2"
  for _ in {1..100}; do kill -0 "$job" 2>/dev/null || break; sleep 0.1; done
  if kill -0 "$job" 2>/dev/null; then
    fail "$1: the job still runs after $((SECONDS - since)) s"
    kill -9 -- "-$job"
  fi
  wait "$job" || status=$?
  job=
  [ "$status" != 0 ] || fail "$1: the job ended as if all were well"
  grep -q "$2" "$work/err" || fail "$1: nobody says '$2': $(cat "$work/err")"
}
ends_after KILL "gone from this host: rank 2 (experts, pid"
ends_after STOP "no sign of life from rank 2 (experts, host"

# So does one on another host whose cable is cut.
if tests/comm/two_hosts.sh true; then
  CUT=$work/cut setsid tests/comm/two_hosts.sh "$mpiexec" -n 2 "$convene" bench models/demo -p 256 -n 64 --batch 4 --repeat 1000 \
    --no-plan --no-peaks --layout attention=dp1,experts=ep1 --disaggregate >"$work/out" 2>"$work/err" &
  job=$!
  for _ in {1..300}; do grep -q '^models/demo' "$work/out" && break; sleep 0.1; done
  sleep 1
  since=$SECONDS
  touch "$work/cut"
  for _ in {1..150}; do kill -0 "$job" 2>/dev/null || break; sleep 0.1; done
  if kill -0 "$job" 2>/dev/null; then
    fail "the cable is cut, and the job still runs after $((SECONDS - since)) s"
    kill -9 -- "-$job"
  fi
  status=0
  wait "$job" || status=$?
  job=
  [ "$status" != 0 ] || fail "the cable is cut, and the job ended as if all were well"
  [ $((SECONDS - since)) -le 12 ] || fail "the job ended $((SECONDS - since)) s after the cable was cut"
  grep -q 'no sign of life from rank 1 (experts, host' "$work/err" || fail "nobody says whose host is cut off: $(cat "$work/err")"
fi

[ "$failures" = 0 ] && echo "disaggregated ranks do what one does"
