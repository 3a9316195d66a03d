#!/usr/bin/env bash
# Checks that sources compiled for one instruction set define no function that another source could share: the linker
# keeps one of several copies, and one with wider instructions must not be what runs everywhere.
# Argument: the build folder.
set -euo pipefail
build=$1
found=0
for isa in avx2 avx512 avx512_vnni avx512_bf16 amx; do
  mapfile -t objects < <(find "$build" -path "*/kernels/cpu/$isa/*.o")
  if [ ${#objects[@]} -eq 0 ]; then
    echo "no objects of $isa below $build: build first" >&2
    exit 1
  fi
  # W, V and u: symbols of which the linker keeps one.
  shared=$(nm -C "${objects[@]}" | grep -E ' [WVu] ' | grep -v "convene::kernels::$isa::" || true)
  if [ -n "$shared" ]; then
    printf 'sources of %s define what others may share (give it the Isa as template parameter, or inline it always):\n%s\n' \
      "$isa" "$shared" >&2
    found=1
  fi
done
[ $found -eq 0 ] && echo "No function compiled for one instruction set is shared with others."
exit $found
