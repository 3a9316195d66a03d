#!/usr/bin/env bash
# Builds tests with sanitizers and runs them: tools/check_sanitizers.sh address|thread [--whole]
#   address  the tests of folders that handle memory and outside data, with the address and
#            undefined-behaviour sanitizers
#   thread   the tests of what works in several threads, with the thread sanitizer
#   --whole  all tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/prepare.sh

case "${1:-}" in
  address)
    preset=fuzz
    # jinja, model and openai are under the same sanitizers in their fuzz targets, engine is under the
    # thread sanitizer.
    targets=(base_test tensor_test memory_test text_test checkpoint_test kernels_test weights_test runtime_test)
    ;;
  thread)
    preset=debug-tsan
    targets=(hardware_test comm_test group_checks_test runtime_test engine_test)
    ;;
  *) fail "which sanitizers?" "Usage: tools/check_sanitizers.sh address|thread [--whole]" ;;
esac

select=()
if [ "${2:-}" = --whole ]; then
  build "$preset"
else
  build "$preset" "${targets[@]}"
  select=(--label-regex "^($(IFS='|' && echo "${targets[*]}"))\$")
  # A test's label is its target (cmake/convene_folder.cmake). A target of no tests is a mistake here.
  for target in "${targets[@]}"; do
    listed=$(ctest --test-dir "build/$preset" --show-only --label-regex "^$target\$")
    [[ $listed == *"Total Tests: "[1-9]* ]] ||
      fail "the target $target has no tests" "Name those that matter in tools/check_sanitizers.sh."
  done
fi

say "Running the tests of build/$preset${select[*]:+ (${targets[*]})}"
ctest --test-dir "build/$preset" --parallel "$(nproc)" --output-on-failure --no-tests=error "${select[@]}" \
  >"build/$preset/test.log" 2>&1 || {
  grep -vE ' Passed |^ +Start ' "build/$preset/test.log" | sed -n '1,300p'
  fail "tests failed under the sanitizers" "One of them again: ctest --test-dir build/$preset -R NAME"
}
tail -n 4 "build/$preset/test.log"
