#!/usr/bin/env bash
# Runs a command on a slow network: scripts/slow-link.sh [--each RANKS] RATE COMMAND...
# RATE is as tc writes it: 350mbit, 1gbit, 2.5gbit. Ranks started by mpirun within COMMAND talk over
# TCP on a loopback of their own that carries RATE, the sum of both directions and of all pairs of
# ranks. With --each they talk as hosts on a switch do: each of at most RANKS ranks has a link of its
# own that carries RATE in each direction at the same time. The network's end is the command's end.
# Needs root. The exit status is the command's.
# Example: scripts/slow-link.sh 350mbit mpirun -n 2 build/release/convene run MODEL --prompt "..."
set -euo pipefail

# fail WHAT WHAT_TO_DO
fail() {
  printf 'slow-link.sh: %s\n' "$1" "$2" >&2
  exit 2
}

limit() { # DEVICE NETNS...: the options by which ip and tc find its namespace
  # The kernel hands packets of a device on together, up to so many bytes.
  ip "${@:2}" link set dev "$1" gso_max_size "$packet" ||
    fail "the device $1 could not be told to send few packets at once" "Its tool is too old: apt-get install iproute2"
  tc "${@:2}" qdisc add dev "$1" root tbf rate "$rate" burst "$burst" peakrate "$peak" mtu "$at_once" latency 50ms ||
    fail "the device $1 could not be limited to $rate" "Its kernel module: modprobe sch_tbf"
}

case "${1:-}" in
  --inside) # RATE BURST PEAK AT_ONCE RANKS COMMAND...: in the namespace, see below; RANKS is 0 where all share the loopback
    rate=$2 burst=$3 peak=$4 at_once=$5 ranks=$6
    shift 6
    packet=$((at_once < 65792 ? at_once - 256 : 65536)) # with its headers and what tc rounds by, not too long for the limit
    ip link set lo mtu "$packet" up
    if [ "$ranks" -eq 0 ]; then
      limit lo
      exec "$@"
    fi
    mount -t tmpfs tmpfs /run # `ip netns` keeps names there
    ip link add switch type bridge || fail "there is no bridge to be had" "Its kernel module: modprobe bridge"
    ip address add 10.78.0.1/16 dev switch
    ip link set switch up
    for ((rank = 0; rank < ranks; ++rank)); do
      ip netns add "rank$rank"
      ip link add "port$rank" type veth peer name nic netns "rank$rank"
      ip link set "port$rank" master switch up
      ip -n "rank$rank" link set lo up
      ip -n "rank$rank" link set nic up
      ip -n "rank$rank" address add "10.78.1.$((rank + 1))/16" dev nic
      limit "port$rank"        # what comes to the rank
      limit nic -n "rank$rank" # what it sends
    done
    exec "$@"
    ;;
  --rank) # COMMAND...: what mpirun starts
    shift
    [ -e "/run/netns/rank$OMPI_COMM_WORLD_RANK" ] ||
      fail "there is no link for rank $OMPI_COMM_WORLD_RANK" "Give --each the number of ranks that mpirun starts."
    exec nsenter "--net=/run/netns/rank$OMPI_COMM_WORLD_RANK" -- "$@"
    ;;
  -h | --help)
    sed -n '2,9s/^# //p' "${BASH_SOURCE[0]}"
    exit
    ;;
esac
ranks=0
if [ "${1:-}" = --each ]; then
  ranks=${2:-}
  [[ $ranks =~ ^[1-9][0-9]?$ ]] || fail "'$ranks' is no number of ranks" "Give --each 1 to 99."
  shift 2
fi
[ $# -ge 2 ] || fail "a rate and a command are needed" "$(sed -n '2s/^# //p' "${BASH_SOURCE[0]}")"
rate=$1
shift
[[ $rate =~ ^([0-9]+(\.[0-9]+)?)(k|m|g)bit$ ]] ||
  fail "'$rate' is no rate" "Write it as 350mbit or 2.5gbit."
bits=$(awk -v n="${BASH_REMATCH[1]}" -v unit="${BASH_REMATCH[3]}" \
  'BEGIN { printf "%.0f", n * (unit == "k" ? 1e3 : unit == "m" ? 1e6 : 1e9) }')
[ "$bits" -ge 1000000 ] || fail "'$rate' is less than 1mbit" "Give a higher one."
[ "$(id -u)" -eq 0 ] ||
  fail "a network of its own needs root" "Run it with: sudo ${BASH_SOURCE[0]} $rate ${*@Q}"
for tool in ip tc unshare nsenter; do
  command -v "$tool" >/dev/null ||
    fail "the program '$tool' is missing" "Install it: apt-get install iproute2 util-linux"
done

# A network has its rate from the first byte on, and what it did not carry it never catches up. A
# timer that comes late would cost rate, though: so what was missed for up to 6 ms passes at 1.05
# times the rate, and as little at once as the rate is kept with (docs/results/tcp.md): what 1 ms
# carries up to 4gbit, beyond that 2 ms, and at least four packets of a network.
at_once=$((bits / 8 / 1000))
[ "$bits" -le 4000000000 ] || at_once=$((at_once * 2))
[ $at_once -ge 6056 ] || at_once=6056
burst=$((bits / 8 * 6 / 1000))
[ $burst -ge $((2 * at_once)) ] || burst=$((2 * at_once))
peak=$((bits / 20 * 21))bit

# OpenMPI would use shared memory between ranks of a host, and look for other networks.
network=lo own=()
export OMPI_MCA_btl_tcp_if_include=lo
if [ "$ranks" -gt 0 ]; then
  network=switch own=(--mount)
  script=$(realpath "${BASH_SOURCE[0]}")
  [[ $script != *[[:space:]]* ]] || fail "mpirun cannot start '$script'" "Give it a path without blanks."
  export OMPI_MCA_btl_tcp_if_include=10.78.1.0/24 OMPI_MCA_orte_fork_agent="$BASH $script --rank"
  export PMIX_MCA_ptl_base_if_include=switch
fi
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self OMPI_MCA_oob_tcp_if_include=$network
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# Namespaces without names elsewhere: the kernel removes them with their last process, whatever ends that.
exec unshare --net "${own[@]}" -- "$BASH" "${BASH_SOURCE[0]}" --inside "$rate" "$burst" "$peak" "$at_once" "$ranks" "$@"
