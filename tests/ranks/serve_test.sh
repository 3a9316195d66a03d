#!/usr/bin/env bash
# `convene serve` under mpirun: one process's text, also where the plan changes meanwhile, and
# what happens when a rank dies or the job is to end.
# Arguments: MPIEXEC CONVENE REPOSITORY
set -euo pipefail
mpiexec=$1 convene=$2 root=$3
cd "$root"
work=$(mktemp -d)
jobs=()
trap 'for job in "${jobs[@]}"; do kill -9 "$job" 2>/dev/null || true; done; rm -rf "$work"' EXIT
export CONVENE_CACHE_DIR=$work/cache
fails() { { echo "FAILED: $1; the log:"; cat "$2"; } >&2; exit 1; }

start() { # LOG COMMAND...: its process is $job
  local log=$1; shift
  "$@" >/dev/null 2>"$log" </dev/null &
  job=$!
  jobs+=("$job")
}
port_of() { # LOG: waits until the server is ready
  for _ in {1..300}; do
    if grep -qs 'event=ready' "$1"; then
      sed -n 's/.*event=ready.* url=http:[^ ]*:\([0-9]*\).*/\1/p' "$1"
      return
    fi
    sleep 0.1
  done
  fails "the server did not start" "$1"
}
post() { # PORT BODY: an answer to a completion
  local body=$2
  exec 3<>"/dev/tcp/127.0.0.1/$1"
  printf 'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' \
    ${#body} "$body" >&3
  cat <&3
  exec 3>&-
}
ask() { # PORT: the choices of an answer
  post "$1" '{"prompt": "Once upon a time there was a", "max_tokens": 24, "temperature": 0.9, "seed": 4}' |
    sed -n 's/.*\("choices":.*\),"usage".*/\1/p'
}
pid_of() { # RANK: of the job
  local pid
  for pid in $(pgrep -P "$job"); do
    if tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -q "^OMPI_COMM_WORLD_RANK=$1\$"; then echo "$pid"; fi
  done
}
# SECONDS LOG: waits for the job's end; its status is $status.
wait_for_end() {
  for ((i = 0; i < $1 * 10; ++i)); do
    kill -0 "$job" 2>/dev/null || break
    sleep 0.1
  done
  if kill -0 "$job" 2>/dev/null; then fails "the job still runs after $1 s" "$2"; fi
  status=0
  wait "$job" || status=$?
}
serve=("$convene" serve models/demo --port 0 --no-plan)
on_ranks() { start "$1" "$mpiexec" -n 2 --oversubscribe "${serve[@]}"; }

start "$work/one.log" "${serve[@]}"
one=$(ask "$(port_of "$work/one.log")")
[ -n "$one" ] || fails "no answer of one process" "$work/one.log"
kill -TERM "$job"
wait_for_end 20 "$work/one.log"

on_ranks "$work/two.log"
port=$(port_of "$work/two.log")
two=$(ask "$port")
[ "$one" = "$two" ] || fails "two ranks answer '$two' and not '$one'" "$work/two.log"

# More than would be answered before the job ends.
endless='{"prompt": "It was", "n": 40, "max_tokens": 900, "ignore_eos": true, "stream": true}'
begin_endless() { # PORT: in the background, its process is $endless_client
  post "$1" "$endless" >"$work/endless" &
  endless_client=$!
  for _ in {1..100}; do
    if grep -q '^data: ' "$work/endless"; then return; fi
    sleep 0.05
  done
}

# A rank dies: the job ends, and says which; whoever waits for an answer is told.
begin_endless "$port"
kill -9 "$(pid_of 1)"
wait_for_end 20 "$work/two.log"
wait "$endless_client"
grep -q 'a rank that computed the answer has ended' "$work/endless" ||
  fails "a client was not told that a rank has died" "$work/two.log"
[ "$status" -ne 0 ] || fails "a job whose rank died ends as if all were well" "$work/two.log"
grep -qE '^convene: rank 0 .*was .*gone from this host: rank 1 ' "$work/two.log" ||
  fails "nothing says which rank died, and what was under way" "$work/two.log"

# What deploy/convene.service does at its end: SIGTERM to rank 0 drains the server, and all ranks end well.
on_ranks "$work/three.log"
port=$(port_of "$work/three.log")
ask "$port" >"$work/last" &
last=$!
for _ in {1..50}; do
  if grep -q 'event=request' "$work/three.log" || [ -s "$work/last" ]; then break; fi
  sleep 0.02
done
pkill --signal TERM --oldest --parent "$job"
wait "$last"
wait_for_end 20 "$work/three.log"
[ "$status" -eq 0 ] || fails "a server that was drained ends with status $status" "$work/three.log"
grep -q 'event=stopped' "$work/three.log" || fails "SIGTERM did not drain" "$work/three.log"
[ "$(cat "$work/last")" = "$one" ] || fails "a request was lost" "$work/three.log"

# SIGTERM to the launcher, which kills a second after it has sent it on: clients are told before.
on_ranks "$work/launcher.log"
begin_endless "$(port_of "$work/launcher.log")"
kill -TERM "$job"
wait_for_end 20 "$work/launcher.log"
wait "$endless_client"
grep -q 'the server shuts down' "$work/endless" && grep -q 'data: \[DONE\]' "$work/endless" ||
  fails "a client was not told that the job ends" "$work/launcher.log"

# Also while they load the model: SIGTERM to rank 0.
on_ranks "$work/early.log"
for _ in {1..300}; do
  if grep -q '^serving' "$work/early.log"; then break; fi
  sleep 0.02
done
pkill --signal TERM --oldest --parent "$job"
wait_for_end 20 "$work/early.log"
[ "$status" -eq 0 ] || fails "a server that loads ends with status $status" "$work/early.log"

# Costs that were measured once, without their errors, and a link of 60 us and 1 GB/s, so that the search comes to the same plans on all machines (tests/ranks/make_costs_of_two_ranks.py makes the file):
# 2 chunks of tokens for long prompts, but not in steps that generate, none for short ones. Requests of the second kind make the server change its
# plan while it runs, and answers stay what they were.
mkdir -p "$work/cache"
cp tests/ranks/costs_of_two_ranks.json "$work/cache/profile.json"
start "$work/four.log" "$mpiexec" -n 2 --oversubscribe "$convene" serve models/demo --port 0 --max-batch 8 \
  --layout attention=dp2,experts=ep2 --threads 1 --micro-batches 1 --replan-every 1
port=$(port_of "$work/four.log")
grep -q '^plan: .*, 2 chunks of tokens in steps of 16 tokens and more, predicted' "$work/four.log" || fails "another plan to begin with" "$work/four.log"
short='{"prompt": "It was", "n": 32, "max_tokens": 40, "ignore_eos": true, "seed": 1}'
for _ in {1..100}; do
  post "$port" "$short" >"$work/short"
  if grep -qE 'event=plan(_stays)? ' "$work/four.log"; then break; fi
done
grep -qE 'event=plan .*words="plan: [^"]*attention=dp2,experts=ep2, predicted' "$work/four.log" ||
  fails "the plan did not change with the requests" "$work/four.log"
[ "$(ask "$port")" = "$one" ] || fails "another plan answers otherwise" "$work/four.log"
id=$(sed -n 's/.*event=plan fingerprint=fp_[0-9a-f]*_\(plan_[0-9a-f]*\) .*/\1/p' "$work/four.log")
post "$port" "$short" | grep -q "\"system_fingerprint\":\"fp_[0-9a-f]*_$id\"" ||
  fails "answers do not name the new plan $id" "$work/four.log"
pkill --signal TERM --oldest --parent "$job"
wait_for_end 20 "$work/four.log"
[ "$status" -eq 0 ] || fails "a server that planned again ends with status $status" "$work/four.log"
echo "Two ranks answer as one does, also with a plan that is found while they run, end when one dies or the launcher is told to, and drain."
