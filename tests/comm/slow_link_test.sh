#!/usr/bin/env bash
# scripts/slow-link.sh limits its own loopback and no other, and says what is wrong with its arguments.
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
