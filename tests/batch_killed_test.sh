#!/usr/bin/env bash
# A batch that reads its experts from a disk and keeps keys and values there is killed (kill -9) again and again, wherever it
# is: packing pages, loading, computing, writing. Each run goes on where the one before it was; in the end every answer is
# there once, as without any kill, and nothing stays where keys and values were.
# Arguments: CONVENE REPOSITORY
set -euo pipefail
convene=$1 root=$2
cd "$root"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CONVENE_CACHE_DIR=$work/cache
fail() { echo "FAILED: $*"; exit 1; }

for i in $(seq 120); do
  printf '{"custom_id":"r%s","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"The captain of ship %s said","max_tokens":%s,"temperature":0,"ignore_eos":true}}\n' \
    "$i" "$((i * i))" "$((20 + i))"
done >"$work/in.jsonl"
texts() { grep -o '"custom_id": *"[^"]*"\|"text": *"\([^"\\]\|\\.\)*"' "$1" | paste - - | sort; }

"$convene" batch models/demo --input "$work/in.jsonl" --output "$work/whole.jsonl" --weights int8 --context 256 --no-plan \
  >/dev/null 2>"$work/err" || fail "a batch in memory: $(tail -1 "$work/err")"

cat >"$work/plan.json" <<'END'
{"version": 1, "layout": "attention=dp1,experts=ep1", "experts_in_memory": 6,
 "spilled_kv": {"blocks_in_memory": 24, "buffer_blocks": 24, "buffers": 3}, "sequences": 16}
END
paged() {
  exec "$convene" batch models/demo --input "$work/in.jsonl" --output "$work/out.jsonl" --weights int8 --context 256 \
    --plan "$work/plan.json" --page-dir "$work/pages" --spill-dir "$work/spill" --threads 1
}
answers() { if [ -e "$work/out.jsonl" ]; then wc -l <"$work/out.jsonl"; else echo 0; fi; }
kills=0
kills_between=0 # when some answers were there, and not all
# Seconds from the start to the kill; later ones are longer, so that it ends on slow machines, too.
for delay in 0.02 0.05 0.1 0.2 0.3 0.4 0.5 0.6 0.8 1 1.2 1.5 2 3 4 6 8 10 15; do
  paged >/dev/null 2>"$work/err" &
  process=$!
  sleep "$delay"
  kill -9 "$process" 2>/dev/null && kills=$((kills + 1))
  status=0
  wait "$process" 2>/dev/null || status=$?
  if [ "$status" = 0 ]; then break; fi
  [ "$status" = 137 ] || fail "status $status: $(tail -1 "$work/err")"
  if [ "$(answers)" -gt 0 ] && [ "$(answers)" -lt 120 ]; then kills_between=$((kills_between + 1)); fi
  if [ -d "$work/spill" ] && [ -n "$(ls -A "$work/spill")" ]; then fail "a kill left $(ls "$work/spill") behind"; fi
done
(paged) >/dev/null 2>"$work/err" || fail "the last run: $(tail -1 "$work/err")"
[ "$(wc -l <"$work/out.jsonl")" = 120 ] || fail "$(wc -l <"$work/out.jsonl") answers of 120"
[ "$kills" -ge 3 ] && [ "$kills_between" -ge 1 ] || fail "killed $kills times, $kills_between of them between answers"
cmp <(texts "$work/whole.jsonl") <(texts "$work/out.jsonl") || fail "answers differ from those without a kill"
echo "killed $kills times, $kills_between of them between the first answer and the last: 120 answers, each once"
