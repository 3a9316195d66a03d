#!/usr/bin/env bash
# Runs one rank of several with a share of a core: mpirun -n 4 bench/limited_rank.sh 0.5,0.5,0.5,0.25 COMMAND...
# SHARES are cores by rank, separated by commas; the last one holds for all further ranks. Each rank gets a control group of its
# own with a quota. Its period is 2 ms, and longer for shares below a half, since kernels take no quota below 1 ms; they take no
# period above 1 s either, so that the least share is 0.002. So ranks of unlike machines, or more ranks than there are cores, can
# be had on one machine. Needs root and the cpu controller (version 1 or 2). The exit status is the command's.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,7s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2; }
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}
IFS=, read -r -a shares <<<"$1"
shift
for share in "${shares[@]:-}"; do
  if ! [[ $share =~ ^([0-9]+\.?[0-9]*|\.[0-9]+)$ ]] || ! awk -v share="$share" 'BEGIN { exit !(share >= 0.002) }'; then
    echo "limited_rank.sh: '$share' is no share of a core: give numbers of 0.002 or more, separated by commas, as 0.5,0.25" >&2
    exit 2
  fi
done
share=${shares[rank]:-${shares[-1]}}
read -r quota period < <(awk -v share="$share" \
  'BEGIN { period = 2000; while (share * period < 1000) period *= 2; printf "%d %d\n", share * period + 0.5, period }')
root=/sys/fs/cgroup
[ -d $root/cpu ] && root=$root/cpu
# Only root makes one. A name of its own each time: a run that was killed may have left a group behind.
group=$(mktemp -d "$root/convene_rank_$rank.XXXXXX") ||
  { echo "limited_rank.sh: no control group can be made below $root: run it as root, where that is mounted for writing" >&2; exit 2; }
# A group goes only when its last process has ended, which the kernel may notice late.
remove_group() {
  local _
  for _ in {1..20}; do
    ! rmdir "$group" 2>/dev/null || return 0
    sleep 0.05
  done
  echo "limited_rank.sh: $group still has processes and stays: end them, and then rmdir $group" >&2
}
trap remove_group EXIT
if [ -e "$group/cpu.max" ]; then
  echo "$quota $period" >"$group/cpu.max"
else
  echo "$period" >"$group/cpu.cfs_period_us"
  echo "$quota" >"$group/cpu.cfs_quota_us"
fi
(echo "$BASHPID" >"$group/cgroup.procs"; exec "$@") <&0 &
command=$!
# mpirun tells this shell alone, which hands it on and waits for the command's end. Background commands ignore SIGINT.
trap 'was_told=yes; kill -TERM "$command" 2>/dev/null || :' TERM INT
was_told=yes
while [ "$was_told" = yes ]; do # a signal ends `wait`, too
  was_told=no status=0
  wait "$command" || status=$?
done
exit "$status"
