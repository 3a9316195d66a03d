// Peak loops on tiles: 2 x 2 tiles of sums, as the kernels have them. Float32 has no tiles.
#include <cstring>

#include "kernels/cpu/amx/isa.h"
#include "kernels/peak_loops.h"

namespace convene::kernels::amx {
namespace {

constexpr int64_t kTileOps = 2 * 16 * 16;  // times the elements of a row

template <typename Dots>
void RunTiles(int64_t num_rounds, Dots dots) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = 64;
    config.rows[tile] = 16;
  }
  // The bit patterns are ordinary numbers of each format: clocks and power depend on them.
  alignas(64) unsigned char operand[1024];
  std::memset(operand, 0x3f, sizeof(operand));
  asm volatile("ldtilecfg %0" : : "m"(config));
  const int64_t stride = 64;
  asm volatile(
      "tileloadd (%0,%1,1), %%tmm4\n\ttileloadd (%0,%1,1), %%tmm5\n\t"
      "tileloadd (%0,%1,1), %%tmm6\n\ttileloadd (%0,%1,1), %%tmm7\n\t"
      "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3"
      :
      : "r"(operand), "r"(stride)
      : "memory");
  for (int64_t round = 0; round < num_rounds; ++round) dots();
  asm volatile("tilerelease");
}

void RunBf16(int64_t num_rounds) {
  RunTiles(num_rounds, [] {
    asm volatile(
        "tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
        "tdpbf16ps %tmm6, %tmm5, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
  });
}

void RunInt8(int64_t num_rounds) {
  RunTiles(num_rounds, [] {
    asm volatile(
        "tdpbsud %tmm6, %tmm4, %tmm0\n\ttdpbsud %tmm7, %tmm4, %tmm1\n\t"
        "tdpbsud %tmm6, %tmm5, %tmm2\n\ttdpbsud %tmm7, %tmm5, %tmm3");
  });
}

}  // namespace

PeakLoops Loops() {
  return {.f32 = avx512_bf16::Loops().f32,
          .bf16 = {RunBf16, 4 * kTileOps * 32},
          .int8 = {RunInt8, 4 * kTileOps * 64}};
}

}  // namespace convene::kernels::amx
