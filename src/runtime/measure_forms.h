// From which prompt length on the expanded form of latent attention is faster than the absorbed one
// (strategy/role.h). The two round differently, so where it changes from one to the other is
// measured once per machine and not decided anew for each prompt.
#pragma once

#include "base/result.h"
#include "hardware/thread_pool.h"
#include "kernels/kernel_set.h"

namespace convene::runtime {

// Times both forms in turn on an invented bf16 layer with the heads of DeepSeek-V2-Lite, for
// prompts of 1 to 256 tokens, for about `budget_s`. Returns the least of these lengths from which
// on expanded was faster, as AttentionRole::expand_from_tokens: 0, it never was. Error: no
// memory to measure with.
Result<int> MeasureExpandFromTokens(hardware::ThreadPool& pool, const kernels::KernelSet& kernels,
                                    double budget_s);

}  // namespace convene::runtime
