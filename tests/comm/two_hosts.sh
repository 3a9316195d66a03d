#!/usr/bin/env bash
# Runs a command on the first of two hosts that exist while it does: network namespaces with names of their
# own and a cable between. What mpirun starts within COMMAND is spread over both, a rank on each.
#   tests/comm/two_hosts.sh COMMAND...        as root; exit status 77: there are no namespaces to be had
# As soon as the file $CUT exists (where the variable is set) the cable is cut.
set -euo pipefail

if [ "${1:-}" = --on ]; then # HOST COMMAND...: mpirun's way to start its daemon there, instead of ssh
  host=$2
  shift 2
  exec ip netns exec "$host" unshare --uts -- "$BASH" -c 'hostname "$0"; eval "$1"' "$host" "$*"
fi

[ "$(id -u)" -eq 0 ] && command -v ip >/dev/null && unshare --net --uts true 2>/dev/null || exit 77
first=convene-$$-a second=convene-$$-b
work=$(mktemp -d)
end() {
  ip netns del $first 2>/dev/null || true
  ip netns del $second 2>/dev/null || true
  rm -rf "$work"
}
trap end EXIT
ip netns add $first 2>/dev/null || exit 77
ip netns add $second
ip link add cable netns $first type veth peer name cable netns $second || exit 77
ip -n $first address add 10.77.0.1/24 dev cable
ip -n $second address add 10.77.0.2/24 dev cable
for host in $first $second; do
  ip -n $host link set lo up
  ip -n $host link set cable up
done
printf '%s slots=1\n' 10.77.0.1 10.77.0.2 >"$work/hosts"
printf '#!%s\ncase $1 in 10.77.0.1) host=%s ;; *) host=%s ;; esac\nshift\nexec %q --on $host "$@"\n' \
  "$BASH" $first $second "$(realpath "${BASH_SOURCE[0]}")" >"$work/agent"
chmod +x "$work/agent"
export OMPI_MCA_plm_rsh_agent=$work/agent OMPI_MCA_orte_default_hostfile=$work/hosts
export OMPI_MCA_rmaps_base_mapping_policy=ppr:1:node
export OMPI_MCA_oob_tcp_if_include=cable OMPI_MCA_btl_tcp_if_include=cable
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

"${BASH_SOURCE[0]}" --on $first "exec ${*@Q}" &
command=$!
while [ -n "${CUT:-}" ] && kill -0 $command 2>/dev/null; do
  if [ -e "$CUT" ]; then
    ip -n $first link set cable down
    break
  fi
  sleep 0.1
done
wait $command
