#!/usr/bin/env bash
# Breaks a job of three ranks and expects it to end within 10 seconds, with a failure, the reason on
# standard error and no process left. Arguments: the fault, mpirun, the program ranks.cc.
set -euo pipefail
fault=$1 mpirun=$2 ranks=$3
output=$(mktemp)
around=() # a command that runs mpirun
num_ranks=3
trap 'rm -f "$output" "$output.cut"; [ -z "${job:-}" ] || kill -9 "$job" 2>/dev/null || true' EXIT

start() {  # start WORK...
  setsid "${around[@]}" "$mpirun" -n $num_ranks --oversubscribe "$ranks" "$@" >"$output" 2>&1 &
  job=$!
}

# fails WHAT: with what the job wrote.
fails() {
  printf '%s; the job wrote:\n' "$1"
  cat "$output"
  exit 1
}

# pid_of RANK: waits until the ranks have said who they are.
pid_of() {
  local pid
  for _ in {1..200}; do
    pid=$(sed -n "s/^rank $1 pid \([0-9]*\)$/\1/p" "$output")
    [ -z "$pid" ] || break
    sleep 0.1
  done
  [ -n "$pid" ] || fails "rank $1 did not start"
  echo "$pid"
}

# ends SECONDS TEXT...: the job ends so soon, with a failure and each text (extended regular expressions).
ends() {
  local most=$1 since=$SECONDS status=0
  shift
  for ((i = 0; i < most * 10; ++i)); do
    kill -0 "$job" 2>/dev/null || break
    sleep 0.1
  done
  kill -0 "$job" 2>/dev/null && fails "the job still runs after $((SECONDS - since)) s"
  wait "$job" || status=$?
  [ "$status" -ne 0 ] || fails "the job ended as if all were well"
  for text in "$@"; do
    grep -qE "$text" "$output" || fails "nothing says '$text'"
  done
  for pid in $(sed -n 's/^rank [0-9] pid //p' "$output"); do
    for _ in {1..20}; do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    ! kill -0 "$pid" 2>/dev/null || fails "process $pid is left"
  done
  echo "The job ended after about $((SECONDS - since)) s:"
  grep -E '^convene|^rank [0-9] \(' "$output" || true
}

in_dispatch='in `dispatch of layer [0-9]+`, which waits for rank'
case "$fault" in
  killed)
    start loop
    victim=$(pid_of 1) && pid_of 0 >/dev/null && pid_of 2 >/dev/null
    sleep 1 && kill -9 "$victim"
    ends 10 "$in_dispatch" "gone from this host: rank 1 \\(pid $victim\\)"
    ;;
  stopped)
    start loop
    victim=$(pid_of 1) && pid_of 0 >/dev/null && pid_of 2 >/dev/null
    sleep 1 && kill -STOP "$victim"
    ends 10 "no sign of life from rank 1 .*pid $victim.*$in_dispatch"
    ;;
  idle) # computing for longer than the longest silence is no fault; dying there is
    start idle 1
    victim=$(pid_of 1) && pid_of 0 >/dev/null && pid_of 2 >/dev/null
    sleep 9 && kill -0 "$job" || fails "a rank that computes was taken for dead"
    kill -9 "$victim"
    ends 10 'in `dispatch of layer 0`, which waits for rank 1'
    ;;
  launcher_killed)
    start loop
    pid_of 0 >/dev/null && pid_of 1 >/dev/null && pid_of 2 >/dev/null
    sleep 1 && kill -9 "$job"
    ends 10
    ;;
  unreachable) # all are alive, and no byte comes through any more, not even to the launcher
    [ "$(id -u)" -eq 0 ] && unshare --net ip link set lo up 2>/dev/null || exit 77
    export OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=lo
    around=(unshare --net "$BASH" -c 'ip link set lo up
      "$@" & job=$!
      until [ -e "$0" ]; do sleep 0.1; done
      ip link set lo down
      wait $job' "$output.cut")
    start loop
    pid_of 0 >/dev/null && pid_of 1 >/dev/null && pid_of 2 >/dev/null
    sleep 1 && touch "$output.cut"
    ends 10 "no sign of life from rank [0-2] .*$in_dispatch"
    ;;
  host_cut) # two hosts, and mpirun on one of them waits for its daemon on the other
    around=(env CUT="$output.cut" "$(dirname "$0")/two_hosts.sh")
    "${around[@]}" true || exit 77
    num_ranks=2
    start loop
    pid_of 0 >/dev/null && pid_of 1 >/dev/null
    sleep 1 && touch "$output.cut"
    ends 10 "no sign of life from rank 1 .*$in_dispatch"
    ! pgrep -f '^orted .*orte_node_regex "?convene-' || fails "a daemon of mpirun is left"
    ;;
  left)
    start leave 1
    ends 10 'rank 1 \(.*has ended its work and left, but `loading` waits for it'
    ;;
  disagreed)
    start disagree 2
    ends 10 '^rank 2 \(.*\): the disk is empty'
    [ "$(grep -c 'the disk is empty' "$output")" -eq 3 ] || fails "not all ranks say it"
    ;;
  *)
    echo "unknown fault $fault" && exit 1
    ;;
esac
