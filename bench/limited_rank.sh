#!/usr/bin/env bash
# Runs one rank of several with a share of a core: mpirun -n 4 bench/limited_rank.sh 0.5,0.5,0.5,0.25 COMMAND...
# SHARES are cores by rank, separated by commas; the last one holds for all further ranks. Each rank gets a control group of its
# own with a quota. Its period is 2 ms, and longer for shares below a half, since kernels take no quota below 1 ms. So ranks of
# unlike machines, or more ranks than there are cores, can be had on one machine. Needs root and the cpu controller (version 1 or
# 2). The exit status is the command's.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2; }
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}
IFS=, read -r -a shares <<<"$1"
shift
share=${shares[rank]:-${shares[-1]}}
period=2000
quota=$(awk -v share="$share" -v period=$period 'BEGIN { printf "%d", share * period }')
while [ "$quota" -lt 1000 ]; do period=$((period * 2)); quota=$((quota * 2)); done
root=/sys/fs/cgroup
[ -d $root/cpu ] && root=$root/cpu
group=$root/convene_rank_$rank.$$
mkdir "$group" || { echo "limited_rank.sh: no control group can be made below $root: run it as root" >&2; exit 2; }
trap 'rmdir "$group"' EXIT
if [ -e "$group/cpu.max" ]; then
  echo "$quota $period" >"$group/cpu.max"
else
  echo "$period" >"$group/cpu.cfs_period_us"
  echo "$quota" >"$group/cpu.cfs_quota_us"
fi
status=0
(echo "$BASHPID" >"$group/cgroup.procs"; exec "$@") || status=$?
exit "$status"
