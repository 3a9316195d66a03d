#include "kernels/measure_peaks.h"

#include <gtest/gtest.h>

#include "hardware/affinity.h"
#include "kernels/peak_loops.h"

namespace convene::kernels {
namespace {

TEST(MeasurePeaks, MeasuresEveryFormatOnEverySupportedInstructionSet) {
  hardware::ThreadPool pool(*hardware::CurrentAffinity());
  for (const hardware::IsaCandidate& candidate : hardware::IsaCandidates()) {
    if (!candidate.missing().empty()) continue;
    const DotPeaks peaks = MeasureDotPeaks(pool, candidate.isa, 0.001);
    for (const hardware::Rate& rate : {peaks.f32, peaks.bf16, peaks.int8}) {
      EXPECT_GE(rate.num_passes, 3) << candidate.name;
      EXPECT_GT(rate.median, 0) << candidate.name;
      EXPECT_GE(rate.best, rate.median) << candidate.name;
    }
  }
}

TEST(MeasurePeaks, WiderFormatsCountMoreOperationsPerRound) {
  if (!hardware::ChooseIsa("avx512_bf16", hardware::IsaCandidates())) GTEST_SKIP();
  const PeakLoops loops = avx512_bf16::Loops();
  EXPECT_EQ(loops.f32.ops_per_round, 16 * 32);
  EXPECT_EQ(loops.bf16.ops_per_round, 2 * loops.f32.ops_per_round);
  EXPECT_EQ(loops.int8.ops_per_round, 4 * loops.f32.ops_per_round);
}

TEST(MeasurePeaks, WithVnniAloneBytesCountMoreThanWordsAndBf16IsFloats) {
  if (!hardware::ChooseIsa("avx512_vnni", hardware::IsaCandidates())) GTEST_SKIP();
  const PeakLoops loops = avx512_vnni::Loops();
  EXPECT_EQ(loops.bf16.ops_per_round, loops.f32.ops_per_round);
  EXPECT_EQ(loops.int8.ops_per_round, 2 * avx512::Loops().int8.ops_per_round);
}

}  // namespace
}  // namespace convene::kernels
