#!/usr/bin/env bash
# scripts/slow-link.sh limits its own networks and no other, and says what is wrong with its arguments.
# Arguments: mpirun and the program ranks.cc, or nothing where MPI is missing.
set -euo pipefail
slow_link=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/scripts/slow-link.sh

# expect STATUS TEXT ARGUMENT...
expect() {
  local status=0 output expected_status=$1 expected=$2
  shift 2
  output=$("$slow_link" "$@" 2>&1) || status=$?
  if [ "$status" -ne "$expected_status" ] || [[ "$output" != *"$expected"* ]]; then
    printf 'slow-link.sh %s: expected status %s and "%s"; got status %s and:\n%s\n' \
      "$*" "$expected_status" "$expected" "$status" "$output"
    exit 1
  fi
}

expect 2 "a rate and a command are needed"
expect 2 "a rate and a command are needed" 350mbit
expect 2 "'fast' is no rate" fast true
expect 2 "'350' is no rate" 350 true
expect 2 "'0' is no number of ranks" --each 0 350mbit true
expect 2 "a rate and a command are needed" --each 2 350mbit
expect 0 "RATE is as tc writes it" --help
if [ "$(id -u)" -ne 0 ]; then
  expect 2 "needs root" 350mbit true
  exit 77
fi
command -v tc >/dev/null && unshare --net true 2>/dev/null || exit 77

before=$(tc qdisc show dev lo)
expect 0 "rate 350Mbit" 350mbit tc qdisc show dev lo
expect 0 "rate 4Gbit" 4gbit tc qdisc show dev lo
expect 0 "a b  c" 1gbit echo "a b  c"
expect 41 "" 100mbit bash -c 'exit 41'
[ "$(tc qdisc show dev lo)" = "$before" ] || { echo "the machine's own loopback was changed" && exit 1; }
[ $# -eq 0 ] || expect 0 "2 ranks agree" 1gbit "$1" -n 2 --oversubscribe "$2" check

# Links of ranks, each with both directions, and nothing of them outside.
unshare --net ip link add switch type bridge 2>/dev/null && command -v nsenter >/dev/null || exit 0
[[ $slow_link != *[[:space:]]* ]] || exit 0  # mpirun could not start it, as it says itself
names=$(ip netns list)
expect 0 "rate 350Mbit" --each 2 350mbit tc qdisc show dev port1
expect 0 "rate 350Mbit" --each 2 350mbit tc -n rank1 qdisc show dev nic
expect 41 "" --each 1 100mbit bash -c 'exit 41'
if [ $# -gt 0 ]; then
  expect 0 "3 ranks agree" --each 3 1gbit "$1" -n 3 --oversubscribe "$2" check
  status=0
  output=$("$slow_link" --each 1 1gbit "$1" -n 2 --oversubscribe "$2" check 2>&1) || status=$?
  [ $status -ne 0 ] && [[ $output == *"there is no link for rank 1"* ]] ||
    { echo "a rank without a link ($status): $output" && exit 1; }
fi
[ "$(ip netns list)" = "$names" ] || { echo "a name of a network was left" && exit 1; }
