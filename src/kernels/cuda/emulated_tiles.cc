// What a warp does with tiles: ldmatrix and mma, lane by lane as the PTX ISA has their fragments.
#include <cstring>

#include "kernels/cuda/emulated.h"

namespace convene::kernels::cuda {
namespace {

struct MmaLane {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

float Half(uint32_t packed, int which) {
  return which == 0 ? LowOfBf16(packed) : HighOfBf16(packed);
}

void MultiplyFragments(void* const lanes[32]) {
  double a[16][16];
  double b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const MmaLane& in = *static_cast<MmaLane*>(lanes[lane]);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < 2; ++i) {
      a[g][2 * t + i] = Half(in.a[0], i);
      a[g + 8][2 * t + i] = Half(in.a[1], i);
      a[g][2 * t + 8 + i] = Half(in.a[2], i);
      a[g + 8][2 * t + 8 + i] = Half(in.a[3], i);
      b[2 * t + i][g] = Half(in.b[0], i);
      b[2 * t + 8 + i][g] = Half(in.b[1], i);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    float* d = static_cast<MmaLane*>(lanes[lane])->d;
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8;
      const int column = lane % 4 * 2 + i % 2;
      double sum = d[i];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      d[i] = static_cast<float>(sum);
    }
  }
}

struct LoadLane {
  uint32_t* r;
  const void* row;
};

template <bool kTransposed>
void LoadFragments(void* const lanes[32]) {
  uint16_t matrices[32][8];
  for (int lane = 0; lane < 32; ++lane) {
    std::memcpy(matrices[lane], static_cast<LoadLane*>(lanes[lane])->row, 16);
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4;
    const int t = lane % 4;
    for (int m = 0; m < 4; ++m) {
      const auto& matrix = matrices + 8 * m;
      const uint32_t low = kTransposed ? matrix[2 * t][g] : matrix[g][2 * t];
      const uint32_t high = kTransposed ? matrix[2 * t + 1][g] : matrix[g][2 * t + 1];
      static_cast<LoadLane*>(lanes[lane])->r[m] = low | high << 16;
    }
  }
}

}  // namespace

void MmaBf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  MmaLane lane = {d, a, b};
  emulated::Together("MmaBf16", 0xffffffff, true, &lane, MultiplyFragments);
}

void LdMatrix4(uint32_t r[4], const void* shared_row) {
  emulated::CheckShared("LdMatrix4", shared_row, 16);
  LoadLane lane = {r, shared_row};
  emulated::Together("LdMatrix4", 0xffffffff, true, &lane, LoadFragments<false>);
}

void LdMatrix4Trans(uint32_t r[4], const void* shared_row) {
  emulated::CheckShared("LdMatrix4Trans", shared_row, 16);
  LoadLane lane = {r, shared_row};
  emulated::Together("LdMatrix4Trans", 0xffffffff, true, &lane, LoadFragments<true>);
}

}  // namespace convene::kernels::cuda
