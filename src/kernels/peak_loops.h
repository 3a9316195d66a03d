// Loops of nothing but dot-product arithmetic in registers, one set per instruction set. They
// compute nothing of use: their speed is the bound that kernels are held against (measure_peaks.h).
// No standard library here but these: the file is included where wider instructions are compiled.
#pragma once

#include <cstdint>

namespace convene::kernels {

struct PeakLoop {
  void (*run)(int64_t num_rounds);  // on the calling thread
  int64_t ops_per_round;            // a multiplication and an addition count as two
};

struct PeakLoops {
  PeakLoop f32;   // float multiply-adds
  PeakLoop bf16;  // bf16 products summed in float
  PeakLoop int8;  // 8-bit products summed in 32 bits
};

namespace reference {
PeakLoops Loops();
}
namespace avx2 {
PeakLoops Loops();
}
namespace avx512 {
PeakLoops Loops();
}
namespace avx512_vnni {
PeakLoops Loops();
}
namespace avx512_bf16 {
PeakLoops Loops();
}
namespace amx {
PeakLoops Loops();
}

}  // namespace convene::kernels
