// CHECK (base/check.h) for host code beside kernels: CUDA's compiler cannot read the library that
// formats its messages.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace convene::kernels::cuda {

// A bug of the caller's, where `condition` is false: prints the place and ends the process.
inline void Require(bool condition, const char* what, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) {
  if (__builtin_expect(static_cast<long>(condition), 1) != 0) return;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
  std::abort();
}

}  // namespace convene::kernels::cuda
