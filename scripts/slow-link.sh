#!/usr/bin/env bash
# Runs a command on a slow network: scripts/slow-link.sh RATE COMMAND...
# RATE is as tc writes it: 350mbit, 1gbit, 2.5gbit. Ranks started by mpirun within COMMAND talk over
# TCP on a loopback of their own that carries RATE, the sum of both directions and of all pairs of
# ranks; its ends are the command's ends. Needs root. The exit status is the command's.
# Example: scripts/slow-link.sh 350mbit mpirun -n 2 build/release/convene run MODEL --prompt "..."
set -euo pipefail

# fail WHAT WHAT_TO_DO
fail() {
  printf 'slow-link.sh: %s\n' "$1" "$2" >&2
  exit 2
}

if [ "${1:-}" = --inside ]; then # in the namespace, see below
  rate=$2 burst=$3
  shift 3
  ip link set lo up
  tc qdisc add dev lo root tbf rate "$rate" burst "$burst" latency 50ms ||
    fail "the loopback could not be limited to $rate" "Its kernel module: modprobe sch_tbf"
  exec "$@"
fi

case "${1:-}" in
  -h | --help)
    sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}"
    exit
    ;;
esac
[ $# -ge 2 ] || fail "a rate and a command are needed" "$(sed -n '2s/^# //p' "${BASH_SOURCE[0]}")"
rate=$1
shift
[[ $rate =~ ^([0-9]+(\.[0-9]+)?)(k|m|g)bit$ ]] ||
  fail "'$rate' is no rate" "Write it as 350mbit or 2.5gbit."
bits=$(awk -v n="${BASH_REMATCH[1]}" -v unit="${BASH_REMATCH[3]}" \
  'BEGIN { printf "%d", n * (unit == "k" ? 1e3 : unit == "m" ? 1e6 : 1e9) }')
[ "$bits" -ge 1000000 ] || fail "'$rate' is less than 1mbit" "Give a higher one."
[ "$(id -u)" -eq 0 ] ||
  fail "a network of its own needs root" "Run it with: sudo ${BASH_SOURCE[0]} $rate ${*@Q}"
for tool in ip tc unshare; do
  command -v "$tool" >/dev/null ||
    fail "the program '$tool' is missing" "Install it: apt-get install iproute2 util-linux"
done

# What may pass at once: 6 ms of the rate, so that a timer that comes late costs nothing, and at least
# four packets of the loopback's 64 KiB. One TCP stream then has 99.8 to 99.9 % of 100mbit, 350mbit,
# 1gbit and 4gbit (with 256 KiB at 4gbit 94 %; 2 cores of a Xeon, 2026-11-21).
burst=$((bits / 8 * 6 / 1000))
[ $burst -ge 262144 ] || burst=262144

# OpenMPI would use shared memory between ranks of a host, and look for other networks.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self
export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# A namespace without a name: the kernel removes it with its last process, whatever ends that.
exec unshare --net -- "$BASH" "${BASH_SOURCE[0]}" --inside "$rate" "$burst" "$@"
