#!/usr/bin/env bash
# Grows and minimises the corpora of the fuzz targets: tools/grow_fuzz_corpora.sh [SECONDS [NAME...]]
# fuzzes each target (default: all) for SECONDS (default: 120) and then writes corpus/NAME/grown anew:
# of all inputs that were found or had been there the smallest that reach code which neither the
# inputs written by hand nor each other reach. It needs a build of the preset fuzz.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-120}
shift $(($# > 0 ? 1 : 0))
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  mapfile -t names < <(sed -n 's/^convene_fuzz(\([a-z_]*\).*/\1/p' fuzz/CMakeLists.txt)
fi
cmake --preset fuzz >/dev/null
cmake --build build/fuzz --target "${names[@]/%/_fuzz}"

for name in "${names[@]}"; do
  corpus=fuzz/corpus/$name
  merged=build/fuzz/merged/$name
  log=build/fuzz/grow_$name.log
  tools/fuzz.sh "$name" "$seconds" build/fuzz -max_len=512 >"$log" 2>&1 ||
    { tail -n 30 "$log"; echo "$name fails on an input, see above; mend that first." >&2; exit 1; }
  rm -rf "$merged"
  mkdir -p "$merged" "$corpus/grown"
  find "$corpus" -maxdepth 1 -type f -exec cp -t "$merged" {} +
  # What is in the first folder stays. Edges alone count, not how often they are passed, or every
  # loop would be there with many lengths.
  "build/fuzz/${name}_fuzz" -merge=1 -use_counters=0 -timeout=2 -max_len=4096 "$merged" \
    "$corpus/grown" "build/fuzz/fuzz/found/$name" >>"$log" 2>&1
  rm -rf "$corpus/grown"
  mkdir "$corpus/grown"
  for input in "$merged"/*; do
    file=${input##*/}
    [ -e "$corpus/$file" ] || cp "$input" "$corpus/grown/${file:0:12}"
  done
  echo "$name: $(find "$corpus/grown" -type f | wc -l) grown inputs," \
    "$(cat "$corpus"/* "$corpus"/grown/* 2>/dev/null | wc -c) bytes in all"
done
