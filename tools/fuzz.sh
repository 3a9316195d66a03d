#!/usr/bin/env bash
# Fuzzes one target, with its dictionary and from its corpus: tools/fuzz.sh NAME SECONDS [BUILD]
# [libFuzzer's options]. BUILD is one of the preset fuzz (default: build/fuzz). Inputs of new
# coverage are kept there for the next run, an input that fails as BUILD/NAME-crash-... .
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ $# -ge 2 ] || { echo "usage: tools/fuzz.sh NAME SECONDS [BUILD] [libFuzzer's options]" >&2; exit 1; }
name=$1 seconds=$2 build=${3:-build/fuzz}
shift $(($# > 2 ? 3 : 2))
found=$build/fuzz/found/$name
mkdir -p "$found"
# Small inputs and limits of seconds and megabytes: what takes more of them is a fault, too. An
# option that is given again counts. Two changes at a time, not libFuzzer's five: most changes of
# JSON leave nothing that can be read, and behind several of them hardly any. Of a template there is
# mostly a part left (docs/results/checks.md).
depth=2
[ "$name" != chat_template ] || depth=5
exec "$build/${name}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 \
  -malloc_limit_mb=512 -max_len=8192 -mutate_depth="$depth" -dict="fuzz/dictionaries/$name.dict" \
  -artifact_prefix="$build/$name-" "$@" "$found" "fuzz/corpus/$name"
