// Which way of asking memory for panels (panel_streaming.h) is the fastest on this machine.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "hardware/thread_pool.h"
#include "kernels/kernel_set.h"
#include "kernels/streaming_choice.h"
#include "kernels/timed_rounds.h"

namespace convene::kernels {

// Products of a format with so many rows and those up to the next of kStreamingRows, for which
// another way was faster than the usual one.
struct StreamingChange {
  WeightFormat format = WeightFormat::kF32;
  int rows = 0;
  PanelStreaming usual;
  PanelStreaming chosen;
  double time_ratio = 0;  // of the chosen way to the usual one, in the rounds that confirmed it
  int num_wins = 0;
  int num_rounds = 0;
};

// "int8 with 4 rows: ... instead of ..., 0.91 of the time, faster in 17 of 19 rounds".
std::string Describe(const StreamingChange& change);

struct MeasuredStreaming {
  StreamingChoice choice;
  std::vector<StreamingChange> changes;
  int num_measured = 0;  // combinations of format and rows; the others are as is usual
};

// Times ways in turn, for at most about `budget_s` in all, in each format and with each number of
// rows: those of kStreamingWays of which `kernels` know something different there. One is chosen
// in place of what CPUs of this kind get without a measurement where it takes less than 0.96 of
// the time and wins three of four rounds, and does so again in rounds with that one alone; of ways
// that are as good within 2 % the first of kStreamingWays, so that the same machine chooses the
// same again. Where the time is too short for enough rounds, the usual way stays.
//
// The weights of products are read from `weights`, aligned to 64 bytes, piece by piece: in all
// several times what the caches hold, or it is these that are measured; whatever they are, none of
// them may be a denormal number. A piece is `bytes_at_once`, or less, which hold a panel of 2,048
// floats deep, 512 KiB (CHECKed). Error: no memory to measure with.
Result<MeasuredStreaming> MeasureStreaming(hardware::ThreadPool& pool, const KernelSet& kernels,
                                           double budget_s, std::span<const std::byte> weights,
                                           size_t bytes_at_once, SecondsNow now = SteadySeconds);

}  // namespace convene::kernels
