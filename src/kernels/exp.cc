#include "kernels/exp.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hardware/isa.h"

namespace convene::kernels {
namespace {

// Vectors of the compiler, of so many numbers. This file is compiled without contractions
// (src/CMakeLists.txt), so that any width gives the same bits.
template <size_t lanes>
struct Vectors {
  static constexpr size_t kLanes = lanes;
  using Float [[gnu::vector_size(lanes * sizeof(float))]] = float;
  using Double [[gnu::vector_size(lanes * sizeof(double))]] = double;
  using Int [[gnu::vector_size(lanes * sizeof(int64_t))]] = int64_t;
  using Int32 [[gnu::vector_size(lanes * sizeof(int32_t))]] = int32_t;
};

// Beyond it the result is no normal number.
constexpr double kLargestExponent = 708;

// exp(x) = 2^n exp(r) with |r| <= ln(2) / 2, where the Taylor series to r^11 errs by 7e-15. By
// reference, since how vectors are passed depends on the machine.
template <typename Vector>
[[gnu::always_inline]] inline void Exp(typename Vector::Double& x) {
  using Double = typename Vector::Double;
  constexpr double kRoundToWhole = 0x1.8p52;  // added, it leaves the nearest whole number below
  const Double shifted = x * 0x1.71547652b82fep+0 + kRoundToWhole;  // of x / ln(2)
  const Double n = shifted - kRoundToWhole;
  // ln(2) in two parts, the first with so few bits that its product with n is exact.
  const Double r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
  constexpr std::array kInverseFactorials = {
      1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
      1.0 / 120,      1.0 / 24,      1.0 / 6,      1.0 / 2,     1.0,        1.0};
  Double sum = Double{} + kInverseFactorials[0];
#pragma GCC unroll 11
  for (size_t i = 1; i < kInverseFactorials.size(); ++i) sum = sum * r + kInverseFactorials[i];
  constexpr int64_t kBias = 1023;
  constexpr int kFractionBits = 52;
  typename Vector::Int exponent;
  std::memcpy(&exponent, &shifted, sizeof(exponent));  // its lowest bits are n
  exponent = (exponent + kBias) << kFractionBits;
  Double power;
  std::memcpy(&power, &exponent, sizeof(power));
  const Double infinities = Double{} + std::numeric_limits<double>::infinity();
  const Double bounded = x > kLargestExponent ? infinities : sum * power;
  x = x < -kLargestExponent ? Double{} : bounded;
}

// Likewise in single precision, of x <= 0: the series to r^6 errs by 1.2e-7, and x by 6e-8 of
// itself.
template <typename Vector>
[[gnu::always_inline]] inline void RoughExp(typename Vector::Float& x) {
  using Float = typename Vector::Float;
  constexpr float kRoundToWhole = 0x1.8p23f;
  const Float shifted = x * 0x1.715476p+0f + kRoundToWhole;
  const Float n = shifted - kRoundToWhole;
  const Float r = (x - n * 0x1.62e000p-1f) - n * 0x1.0bfbe8p-15f;
  constexpr std::array kInverseFactorials = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6,
                                             1.0f / 2,   1.0f,       1.0f};
  Float sum = Float{} + kInverseFactorials[0];
#pragma GCC unroll 6
  for (size_t i = 1; i < kInverseFactorials.size(); ++i) sum = sum * r + kInverseFactorials[i];
  typename Vector::Int32 exponent;
  std::memcpy(&exponent, &shifted, sizeof(exponent));
  exponent = (exponent + 127) << 23;
  Float power;
  std::memcpy(&power, &exponent, sizeof(power));
  x = x < -87.0f ? Float{} : sum * power;
}

template <typename Vector, bool kRough>
[[gnu::always_inline]] inline void ExpOf(const float* values, double largest, double scale,
                                         double* results) {
  typename Vector::Float value;
  std::memcpy(&value, values, sizeof(value));
  typename Vector::Double x;
  if constexpr (kRough) {
    value = (value - static_cast<float>(largest)) * static_cast<float>(scale);
    RoughExp<Vector>(value);
    x = __builtin_convertvector(value, typename Vector::Double);
  } else {
    x = __builtin_convertvector(value, typename Vector::Double);
    x = (x - largest) * scale;
    Exp<Vector>(x);
  }
  std::memcpy(results, &x, sizeof(x));
}

template <typename Vector, bool kRough>
[[gnu::always_inline]] inline void ExpOfAll(std::span<const float> values, double largest,
                                            double scale, std::span<double> results) {
  constexpr size_t kLanes = Vector::kLanes;
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    ExpOf<Vector, kRough>(&values[i], largest, scale, &results[i]);
  }
  if (i == values.size()) return;
  std::array<float, kLanes> last_values = {};
  std::array<double, kLanes> last_results;
  const size_t count = values.size() - i;
  std::memcpy(last_values.data(), &values[i], count * sizeof(float));
  ExpOf<Vector, kRough>(last_values.data(), largest, scale, last_results.data());
  std::memcpy(&results[i], last_results.data(), count * sizeof(double));
}

template <bool kRough>
void ExpBaseline(std::span<const float> values, double largest, double scale,
                 std::span<double> results) {
  ExpOfAll<Vectors<kRough ? 4 : 2>, kRough>(values, largest, scale, results);
}

#if defined(__x86_64__)
template <bool kRough>
// Clang has no such preference and says so. NOLINTNEXTLINE(clang-diagnostic-ignored-attributes)
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] void ExpAvx512(
    std::span<const float> values, double largest, double scale, std::span<double> results) {
  ExpOfAll<Vectors<kRough ? 16 : 8>, kRough>(values, largest, scale, results);
}

template <bool kRough>
[[gnu::target("avx2")]] void ExpAvx2(std::span<const float> values, double largest, double scale,
                                     std::span<double> results) {
  ExpOfAll<Vectors<kRough ? 8 : 4>, kRough>(values, largest, scale, results);
}

template <bool kRough>
auto ChooseExp() {
  return hardware::VersionForIsa(ExpBaseline<kRough>, ExpAvx2<kRough>, ExpAvx512<kRough>);
}
#else
template <bool kRough>
auto ChooseExp() {
  return ExpBaseline<kRough>;
}
#endif

}  // namespace

void ExpOfDifferences(std::span<const float> values, float largest, double scale,
                      std::span<double> results) {
  static const auto exp = ChooseExp</*kRough=*/false>();
  exp(values, largest, scale, results);
}

void RoughExpOfDifferences(std::span<const float> values, float largest, double scale,
                           std::span<double> results) {
  static const auto exp = ChooseExp</*kRough=*/true>();
  // Infinity times 0 is no number.
  exp(values, largest, std::min<double>(scale, std::numeric_limits<float>::max()), results);
}

double Sum(std::span<const double> values) {
  using Double2 = Vectors<2>::Double;
  // Eight sums, so that none waits for the one before.
  std::array<Double2, 4> sums = {};
  constexpr size_t kAtOnce = 8;
  size_t i = 0;
  for (; i + kAtOnce <= values.size(); i += kAtOnce) {
#pragma GCC unroll 4
    for (size_t k = 0; k < sums.size(); ++k) {
      Double2 value;
      std::memcpy(&value, &values[i + 2 * k], sizeof(value));
      sums[k] += value;
    }
  }
  const Double2 all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double sum = all[0] + all[1];
  for (; i < values.size(); ++i) sum += values[i];
  return sum;
}

}  // namespace convene::kernels
