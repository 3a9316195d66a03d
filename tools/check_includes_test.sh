#!/usr/bin/env bash
# Gives tools/check_includes.sh small trees that break one rule each and expects it to say so.
set -euo pipefail
check=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/check_includes.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
num_failures=0

# A tree that breaks no rule.
plant_good_tree() {
  rm -rf "${tree:?}"/*
  mkdir -p "$tree"/{docs,src/{base,text,plan,kernels/cpu/avx512,memory,engine}}
  cat >"$tree/src/CMakeLists.txt" <<'END'
# The rows.
convene_folder(base)
convene_folder(text USES base LIBRARIES PkgConfig::oniguruma)  # tokenizers
convene_folder(kernels USES base)
convene_folder(plan USES base)
convene_folder(memory USES base)
convene_folder(device USES base)
convene_folder(engine USES base
               plan text memory device)
END
  cat >"$tree/docs/architecture.md" <<'END'
| folder | what it is | may include |
|---|---|---|
| base/ | Result | |
| text/ | tokenizers | |
| kernels/ | kernels | |
| plan/ | decisions | |
| memory/ | ledgers | |
| server/ | not built yet | engine |
| device/ | devices | |
| engine/ | the engine | plan, text, memory, device |
END
  echo 'const char* Home() { return std::getenv("HOME"); }' >"$tree/src/base/environment.cc"
  echo '#include <oniguruma.h>' >"$tree/src/text/pattern.cc"
  echo '#include <immintrin.h>' >"$tree/src/kernels/cpu/avx512/dot.cc"
  echo 'auto buffer = HugeBuffer::Allocate(1);' >"$tree/src/memory/ledger.cc"
  echo '#include "device/cpu/cpu_device.h"' >"$tree/src/engine/load.cc"
  echo '#include "base/result.h"  // not getenv()' >"$tree/src/plan/plan.h"
  printf '#include <gtest/gtest.h>\n#include "engine/engine_test.h"\n' >"$tree/src/engine/engine_test.cc"
  printf '#include <gtest/gtest.h>\n#include "plan/plan.h"\n' >"$tree/src/engine/engine_test.h"
}

# expect STATUS TEXT: the check ends with STATUS and prints TEXT.
expect() {
  local status=0 output
  output=$("$check" "$tree" 2>&1) || status=$?
  if [ "$status" -ne "$1" ] || [[ "$output" != *"$2"* ]]; then
    printf 'Expected status %s and "%s"; got status %s and:\n%s\n' "$1" "$2" "$status" "$output"
    num_failures=$((num_failures + 1))
  fi
}

# rejects FILE LINE TEXT: adding LINE to FILE makes the check fail with TEXT.
rejects() {
  plant_good_tree
  mkdir -p "$(dirname "$tree/$1")"
  echo "$2" >>"$tree/$1"
  expect 1 "$3"
}

plant_good_tree
expect 0 "8 sources include only"

rejects src/text/pattern.cc '#include "engine/engine.h"' \
  "src/text/pattern.cc:2: text may not include engine/engine.h"
rejects src/engine/engine.cc '  #  include "kernels/gemm.h"' "engine may not include kernels/gemm.h"
rejects src/text/pattern.cc '#include "pattern.h"' 'write "pattern.h" from src/ on'
rejects src/text/pattern.cc '#include "../base/result.h"' "from src/ on"
rejects src/plan/plan.h '#include <oniguruma.h>' "<oniguruma.h> needs PkgConfig::oniguruma in the row"
rejects src/engine/engine.cc '#include <mpi.h>' "<mpi.h> belongs below comm/mpi/"
rejects src/engine/engine.cc '#include <cuda_runtime.h>' "<cuda_runtime.h> belongs below"
rejects src/engine/engine.cc '#include "device/cpu/row_buffer.h"' "device/cpu/row_buffer.h belongs to device/cpu/"
rejects src/text/fast.cc '#include <immintrin.h>' "<immintrin.h> belongs below kernels/cpu/"
rejects src/text/pattern.cc '#include <gtest/gtest.h>' "belongs in a _test.cc"
rejects src/engine/engine.cc '#include "engine/engine_test.h"' "engine/engine_test.h is for tests"
rejects src/plan/plan.h '#include <thread>' "plan is pure"
rejects src/plan/plan.h '#include <sys/mman.h>' "plan is pure"
rejects src/text/pattern.cc 'auto home = getenv("HOME");' "getenv belongs in base/environment.cc"
rejects src/engine/engine.cc 'auto rows = HugeBuffer::Allocate(1);' "what is large is reserved"
rejects src/helpers/strings.h '// A folder of its own.' "src/helpers has no row"
rejects src/CMakeLists.txt 'convene_folder(model USES base server)' "model uses server, which is no row above"
rejects src/CMakeLists.txt 'convene_folder(server USES base text)' \
  "the table does not let server use text"
rejects docs/architecture.md '| text/ | tokenizers | plan |' "the table lets text use plan"

if [ "$num_failures" -ne 0 ]; then
  echo "$num_failures expectations failed"
  exit 1
fi
echo "Every broken rule was found."
