#!/usr/bin/env bash
# Ranks that have copies of a model of their own: what differs is found and named, and ends all ranks.
# Arguments: MPIEXEC CONVENE REPOSITORY
set -euo pipefail
mpiexec=$1 convene=$2 root=$3
cd "$root"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

one=$work/one other=$work/other packed=$work/packed
cp -r models/demo "$one"
file=$(basename "$one"/*.safetensors)
# Costs that are measured for a plan are no matter of copies.
options=(--prompt "Once upon" --max-tokens 8 --temperature 0 --no-plan)
on_two() { # MODEL0 MODEL1 OPTIONS...: their output is in $work/out and $work/err
  local first=$1 second=$2; shift 2
  timeout 60 "$mpiexec" --oversubscribe -n 1 "$convene" run "$first" "${options[@]}" "$@" : \
    -n 1 "$convene" run "$second" "${options[@]}" "$@" >"$work/out" 2>"$work/err"
}
accepts() { # WHAT MODEL0 MODEL1 OPTIONS...
  local what=$1; shift
  on_two "$@" || fail "$what: $(grep convene: "$work/err")"
  cmp -s "$work/text" "$work/out" || fail "$what gave another text"
}
refuses() { # WHAT MESSAGE MODEL0 MODEL1 OPTIONS...
  local what=$1 message=$2 status=0; shift 2
  on_two "$@" || status=$?
  [ $status = 1 ] || fail "$what: status $status"
  [ "$(grep -c '^convene:' "$work/err")" = 1 ] || fail "$what: not one error: $(cat "$work/err")"
  grep -q -- "$message" "$work/err" || fail "$what: no '$message' in: $(grep convene: "$work/err")"
  [ ! -s "$work/out" ] || fail "$what wrote to standard output"
}
anew() { rm -rf "$other"; cp -r "${1:-$one}" "$other"; }
# Changes one bit of a tensor, a third of the way into it: no place that samples look at.
flip() { # FILE TENSOR
  local length entry begin end at byte
  length=$(od -An -tu8 -N8 "$1" | tr -d ' ')
  entry=$(head -c $((8 + length)) "$1" | tail -c +9 | tr -d ' ' | grep -o "\"$2\":{[^}]*}")
  read -r begin end < <(sed 's/.*"data_offsets":\[\([0-9]*\),\([0-9]*\)\].*/\1 \2/' <<<"$entry")
  at=$((8 + length + begin + (end - begin) / 3))
  byte=$(od -An -tu1 -j "$at" -N1 "$1" | tr -d ' ')
  # shellcheck disable=SC2059
  printf "\\x$(printf %02x $((byte ^ 16)))" | dd of="$1" bs=1 seek="$at" conv=notrunc status=none
}

"$convene" run "$one" "${options[@]}" >"$work/text" 2>/dev/null
anew
accepts "an equal copy" "$one" "$other"
accepts "an equal copy, verified" "$one" "$other" --verify-checkpoint
accepts "the same files, verified" "$one" "$one" --verify-checkpoint

# Configuration and tokenizer.
sed -i 's/"rope_theta": *[0-9.]*/"rope_theta": 9876.0/' "$other/config.json"
cmp -s "$one/config.json" "$other/config.json" && fail "config.json is still the same"
refuses "another rope_theta" 'file "config.json" differs between ranks: rank 1 .* another copy than rank 0' "$one" "$other"
anew && echo >>"$other/tokenizer.json"
refuses "another tokenizer" 'file "tokenizer.json" differs between ranks: rank 1' "$one" "$other"
anew && rm "$other/tokenizer_config.json"
refuses "no tokenizer_config.json" 'file "tokenizer_config.json" differs between ranks: rank 1 .* has none' "$one" "$other"
anew && echo '{{ messages }}' >"$other/chat_template.jinja"
refuses "a chat template" 'file "chat_template.jinja" differs between ranks: rank 1' "$one" "$other"
refuses "a model that is not there" "$work/nowhere" "$one" "$work/nowhere"

# Weights that both ranks read are compared always.
for tensor in model.embed_tokens.weight model.layers.1.self_attn.q_proj.weight model.layers.0.mlp.gate.weight \
              model.norm.weight; do
  anew && flip "$other/$file" "$tensor"
  refuses "a bit of $tensor" "tensor \"$tensor\" differs between ranks: rank 1" "$one" "$other"
done
anew && flip "$other/$file" model.layers.1.self_attn.q_proj.weight
refuses "a bit on rank 0" 'tensor "model.layers.1.self_attn.q_proj.weight.* differs between ranks' "$other" "$one" \
  --layout attention=dp2,experts=slice2

# An expert that one rank reads: on demand.
anew && flip "$other/$file" model.layers.1.mlp.experts.0.up_proj.weight
refuses "a bit of an expert" 'tensor "model.layers.1.mlp.experts.0.up_proj.weight" differs between ranks: rank 1' \
  "$one" "$other" --verify-checkpoint

# Packed weights have checksums: what a rank reads is compared with them.
"$convene" quantize "$one" --weights int8 --out "$packed" >/dev/null 2>&1 || fail quantize
last=$(head -c 100000 "$packed/convene.safetensors" | tr -d ' ' | grep -ao 'layers.1.experts.[0-9]*' | sort -t. -k4n | tail -1)
"$convene" run "$packed" "${options[@]}" >"$work/text" 2>/dev/null
anew "$packed"
accepts "an equal packed copy" "$packed" "$other"
accepts "an equal packed copy, verified" "$packed" "$other" --verify-checkpoint
flip "$other/convene.safetensors" "$last.down"
refuses "a bit of a packed expert" "rank 1 .*tensor \"$last.down\" in $other/convene.safetensors is damaged" \
  "$packed" "$other"
status=0
"$convene" run "$other" "${options[@]}" --verify-checkpoint >"$work/out" 2>"$work/err" || status=$?
[ $status = 1 ] && grep -q "tensor \"$last.down\" .* is damaged" "$work/err" \
  || fail "a bit of a packed expert on one rank ($status): $(cat "$work/err")"
"$convene" run "$packed" "${options[@]}" --verify-checkpoint >"$work/out" 2>"$work/err" || fail "packed, verified, alone"
cmp -s "$work/text" "$work/out" || fail "a verified packed model gave another text"
# Another model of the same shape, packed: its checksums differ.
anew && flip "$other/$file" model.layers.1.mlp.experts.0.up_proj.weight
"$convene" quantize "$other" --weights int8 --out "$work/packed_other" >/dev/null 2>&1 || fail quantize
refuses "another packed model" 'tensor "layers.1.experts.0.up" differs between ranks: rank 1' "$packed" "$work/packed_other"

status=0
"$convene" run "$one" "${options[@]}" --verify-checkpoint >"$work/out" 2>"$work/err" || status=$?
[ $status = 1 ] && grep -q "nothing to compare" "$work/err" || fail "verifying alone ($status): $(cat "$work/err")"

[ "$failures" = 0 ] && echo "copies that differ are found"
