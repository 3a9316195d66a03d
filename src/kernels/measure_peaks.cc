#include "kernels/measure_peaks.h"

#include <chrono>

#include "base/check.h"
#include "kernels/peak_loops.h"

namespace convene::kernels {
namespace {

// Long beside waking the threads, short beside what disturbs a machine now and then.
constexpr std::chrono::duration<double> kPass{0.001};

// One row per instruction set.
PeakLoops LoopsFor(hardware::Isa isa) {
  switch (isa) {
    case hardware::Isa::kAmx:
      return amx::Loops();
    case hardware::Isa::kAvx512Bf16:
      return avx512_bf16::Loops();
    case hardware::Isa::kAvx512Vnni:
      return avx512_vnni::Loops();
    case hardware::Isa::kAvx512:
      return avx512::Loops();
    case hardware::Isa::kAvx2:
      return avx2::Loops();
    case hardware::Isa::kReference:
      return reference::Loops();
  }
  CHECK(false, "no peak loops for {}", hardware::IsaName(isa));
  return {};
}

PeakLoop LoopFor(hardware::Isa isa, ActivationFormat format) {
  const PeakLoops loops = LoopsFor(isa);
  switch (format) {
    case ActivationFormat::kF32:
      return loops.f32;
    case ActivationFormat::kBf16:
      return loops.bf16;
    case ActivationFormat::kInt8:
      return loops.int8;
  }
  CHECK(false, "format {}", static_cast<int>(format));
  return {};
}

}  // namespace

hardware::Rate MeasureDotPeak(hardware::ThreadPool& pool, hardware::Isa isa,
                              ActivationFormat format, double budget_s) {
  using Clock = std::chrono::steady_clock;
  const PeakLoop loop = LoopFor(isa, format);
  int64_t num_rounds = 1024;
  const auto run = [&] { pool.Run([&](int) { loop.run(num_rounds); }); };
  for (;;) {
    const Clock::time_point begin = Clock::now();
    run();
    if (Clock::now() - begin >= kPass) break;
    num_rounds *= 2;
  }
  return hardware::MeasureRate(budget_s, [&] {
    run();
    return static_cast<double>(loop.ops_per_round) * static_cast<double>(num_rounds) * pool.size();
  });
}

DotPeaks MeasureDotPeaks(hardware::ThreadPool& pool, hardware::Isa isa, double budget_s) {
  return {.f32 = MeasureDotPeak(pool, isa, ActivationFormat::kF32, budget_s / 3),
          .bf16 = MeasureDotPeak(pool, isa, ActivationFormat::kBf16, budget_s / 3),
          .int8 = MeasureDotPeak(pool, isa, ActivationFormat::kInt8, budget_s / 3)};
}

}  // namespace convene::kernels
