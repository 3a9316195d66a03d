#!/usr/bin/env bash
# A model in a control group with too little memory for it: what the group leaves is the budget, experts stay on the disk, the
# text is the same, and the group never comes to its limit; with less than anything works with, the error names the group and by how
# much its limit is too low. As root, with the memory controller of version 1 or 2; exit status 77: there is none.
# Arguments: CONVENE REPOSITORY
set -euo pipefail
convene=$1 root=$2
cd "$root"
above=/sys/fs/cgroup
[ -d $above/memory ] && above=$above/memory
group=$above/convene_memory_limit_test.$$
mkdir "$group" 2>/dev/null || exit 77
work=$(mktemp -d)
trap 'rmdir "$group"; rm -rf "$work"' EXIT
if [ -e "$group/memory.limit_in_bytes" ]; then limit=memory.limit_in_bytes
elif [ -e "$group/memory.max" ]; then limit=memory.max
else exit 77; fi
# How often the group was at its limit.
times_full() {
  if [ $limit = memory.max ]; then awk '$1 == "max" { print $2 }' "$group/memory.events"; else cat "$group/memory.failcnt"; fi
}
fail() { echo "FAILED: $*"; exit 1; }
# in_group MEBIBYTES WEIGHTS
in_group() {
  echo $(($1 << 20)) >"$group/$limit"
  (echo "$BASHPID" >"$group/cgroup.procs" && exec "$convene" run models/demo --prompt "Once upon a time" --max-tokens 24 --temperature 0 \
    --context 256 --weights "$2" --no-plan --page-dir "$work/pages") >"$work/out" 2>"$work/err"
}
"$convene" run models/demo --prompt "Once upon a time" --max-tokens 24 --temperature 0 --context 256 --weights f32 --no-plan \
  >"$work/whole" 2>/dev/null
if in_group 24 f32; then fail "24 MiB were enough"; fi
grep -q "control group" "$work/err" || fail "nothing of the control group: $(tail -1 "$work/err")"
more=$(grep -o 'has to be higher by [0-9.]* MiB' "$work/err" | grep -o '[0-9]*' | head -1) ||
  fail "nothing of how much more: $(tail -1 "$work/err")"
least=$((24 + more + 1))
# A program takes some of the group before it plans.
before=$(times_full)
in_group $((least + 8)) f32 || fail "$((least + 8)) MiB: $(tail -1 "$work/err")"
grep -q '^paged: ' "$work/err" || fail "nothing was read from the disk: $(cat "$work/err")"
cmp "$work/whole" "$work/out" || fail "another text"
[ "$(times_full)" = "$before" ] || fail "the group was full $(($(times_full) - before)) times"
echo "with $((least + 8)) MiB experts were read from the disk, and the text is the same"
