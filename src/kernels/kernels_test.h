// What the tests of the kernels share: every kernel set as a parameter, and random matrices and
// rows in all formats that go together. No tests.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/enumerators_test.h"
#include "kernels/choose_kernels.h"
#include "kernels/grouped_gemm.h"
#include "kernels/pack.h"
#include "kernels/reference/kernels.h"

namespace convene::kernels {

// For TEST_P: once for every kernel set that this machine can run. A subject's class derives from
// it and is instantiated over EverySet() with NameOfSet.
class KernelsTest : public testing::TestWithParam<const KernelSet*> {
 protected:
  const KernelSet& kernels() const { return *GetParam(); }
};

inline auto EverySet() {
  return testing::ValuesIn(SupportedKernels().begin(), SupportedKernels().end());
}

inline std::string NameOfSet(const testing::TestParamInfo<const KernelSet*>& set) {
  return std::string(set.param->name);
}

inline constexpr double kFloatEpsilon = 1.2e-7;
inline constexpr double kBf16Epsilon = 1.0 / 256;

inline double EpsilonOf(ActivationFormat format) {
  return format == ActivationFormat::kF32 ? kFloatEpsilon : kBf16Epsilon;
}

struct Formats {
  WeightFormat weights;
  ActivationFormat activations;
  int group = 0;

  // Of what SiLU gives.
  ActivationFormat wide() const {
    return activations == ActivationFormat::kInt8 ? ActivationFormat::kF32 : activations;
  }
  std::string Describe() const {
    return std::string(Name(weights)) + " by activations of " +
           std::to_string(ElementBytes(activations)) + " bytes, group " + std::to_string(group);
  }
};

// Whether such weights are multiplied by such activations.
inline bool GoTogether(WeightFormat weights, ActivationFormat activations) {
  const bool f32 = activations == ActivationFormat::kF32;
  if (f32 != (weights == WeightFormat::kF32)) return false;
  return activations != ActivationFormat::kInt8 || IsInteger(weights);
}

// All formats that go together, with all groups that there are.
inline const std::vector<Formats> kFormats = [] {
  std::vector<Formats> all;
  for (const WeightFormat weights : kEvery<WeightFormat>) {
    for (const ActivationFormat activations : kEvery<ActivationFormat>) {
      if (!GoTogether(weights, activations)) continue;
      if (weights != WeightFormat::kInt4) {
        all.push_back({weights, activations});
        continue;
      }
      for (const int group : {32, 64, 128}) all.push_back({weights, activations, group});
    }
  }
  return all;
}();

inline std::vector<float> RandomFloats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

struct Packed {
  PackedMatrix matrix;
  std::vector<std::byte> storage;
};

inline std::byte* Align(std::vector<std::byte>& storage) {
  const auto address = reinterpret_cast<uintptr_t>(storage.data());
  return storage.data() + (64 - address % 64) % 64;
}

// Packs a whole matrix, source_of(packed row) giving the source of each row.
template <typename F>
void PackRows(const PackedMatrix& matrix, std::byte* data, F&& source_of) {
  for (int group = 0; group * kLanes < matrix.rows; ++group) {
    RowSource sources[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) sources[lane] = source_of(group * kLanes + lane);
    EXPECT_TRUE(PackGroup(sources, matrix, group, data));
  }
}

inline Packed Pack(const Formats& formats, const std::vector<float>& weights, int rows, int cols) {
  Packed packed;
  packed.matrix = {.format = formats.weights, .group = formats.group, .rows = rows, .cols = cols};
  packed.storage.resize(packed.matrix.size_bytes() + 64);
  std::byte* data = Align(packed.storage);
  packed.matrix.data = data;
  const StoredMatrix source{.dtype = tensor::DType::kF32,
                            .data = reinterpret_cast<const std::byte*>(weights.data()),
                            .row_stride = cols,
                            .rows = rows,
                            .cols = cols};
  PackRows(packed.matrix, data, [&](int row) -> RowSource {
    return row < rows ? RowSource{&source, row} : RowSource{};
  });
  return packed;
}

struct Rows {
  std::vector<std::byte> storage;
  int64_t stride = 0;
};

inline Rows MakeRows(ActivationFormat format, const std::vector<float>& values, int rows,
                     int cols) {
  Rows result;
  result.stride = ActivationRowBytes(format, cols);
  result.storage.resize(static_cast<size_t>(result.stride * rows));
  for (int row = 0; row < rows; ++row) {
    std::byte* data = result.storage.data() + row * result.stride;
    const float* from = &values[size_t(row) * cols];
    if (format == ActivationFormat::kInt8) {
      reference::Kernels().quantize(from, cols, data);
      continue;
    }
    for (int col = 0; col < cols; ++col) reference::StoreActivation(format, data, col, from[col]);
  }
  return result;
}

// One scratch for each of up to three threads.
inline std::byte* Scratch() {
  static std::vector<std::byte> storage(3 * kGemmScratchBytes + 64);
  return Align(storage);
}

// The kernel set that is looked at, and the most panels that it got at once.
inline const KernelSet* looked_at = nullptr;
inline std::atomic<int> most_panels_at_once;

// In place of its gemm.
inline void LookAtPanels(const PanelGemm& gemm) {
  int most = most_panels_at_once;
  while (most < gemm.num_panels &&
         !most_panels_at_once.compare_exchange_weak(most, gemm.num_panels)) {
  }
  looked_at->gemm(gemm);
}

struct GemmShape {
  int tokens;
  int rows;
  int cols;
};

}  // namespace convene::kernels
