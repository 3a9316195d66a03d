// A run of MoE-Lightning's evaluation (Cao et al., ASPLOS 2025) in simulation, under one of three
// sets of constants. What the paper publishes is moe_lightning_published.h; scores are
// moe_lightning.cc, figures are moe_lightning_figures.h.
#pragma once

#include "bench/papers/moe_lightning_published.h"
#include "bench/papers/offload_schedules.h"
#include "planner/offload_policy.h"

namespace convene::papers {

inline constexpr double kGib = double{1 << 30};
// What the public code's optimizer leaves of each memory to its policies.
inline constexpr double kDeviceShare = 0.86;
inline constexpr double kHostShare = 0.8;

// Which constants are taken.
enum class Constants {
  kPeaks,     // A: of the public code, of all systems alike
  kProfiled,  // B: what its authors measured besides: Fig. 9's rates, and FlexGen's rate of copies
  // C: the same, and all systems compute prompts at the GPU's rate without tensor cores. Nobody
  // published that they do. It is calibrated: chosen since it agrees with what the published times
  // of Fig. 7 on S1 and S2 leave for prompts.
  kScalarPrompts,
};

// Runs on S1 and S2: C was read from those of Fig. 7 there, and others of them were looked at to
// see whether they agree. Scores without these are no fits.
bool IsCalibrationRun(const PublishedRun& run);

// From Fig. 9 on S2's machine, at micro-batch 64 and context 512, as shares of its constants: keys
// and values to the device, attention on the host, experts on the device.
struct Shares {
  double link = 1;
  double host_memory = 1;
  double device_memory = 1;
};
Shares MeasuredShares();

// Tensor parallelism multiplies what a device has, and shares host and link (section 4.3; the
// public code does the same).
OffloadRates RatesOf(const PaperMachine& machine, double num_gpus, double share_of_host,
                     Constants constants);

// What policies there are on a machine, by the public code's constants.
planner::OffloadQuestion AskOffload(const model::ModelSpec& spec, const PaperMachine& machine,
                                    int num_gpus, int prompt_tokens, int gen_tokens,
                                    int most_batch);

// The schedule of a system's decode.
OffloadOrder OrderOf(PaperSystem system);

struct SimulatedRun {
  planner::OffloadPolicy policy;
  double prefill = 0;  // seconds
  double step = 0;     // of decode
  double tokens_per_second = 0;
};
SimulatedRun SimulateRun(const PublishedRun& run, OffloadOrder order, Constants constants);

}  // namespace convene::papers
