// Peak loops on 512-bit registers. The instructions are written out, since g++ 12 spills the sums
// around the intrinsics of the integer dot product.
#include <immintrin.h>

#include "kernels/peak_loops.h"

namespace convene::kernels::avx512_bf16 {
namespace {

// Latency (4 to 6 cycles) times instructions per cycle (1 or 2) sums must be under way at once.
constexpr int kSums = 16;
constexpr int64_t kFloatsPerRegister = 16;

// Sixteen times `instruction` with a sum of its own, operands a and b.
#define CONVENE_SIXTEEN(instruction)                                     \
  instruction " %[a], %[b], %%zmm0\n" instruction " %[a], %[b], %%zmm1\n"
