// Attention of a decoder's layer to the encoder's output. Its keys and values are made once per
// sequence and lie in the KV cache, in blocks of their own (SequenceStep::encoder_blocks).
#pragma once

#include <vector>

#include "device/cpu/attend.h"
#include "device/cpu/cpu_frame.h"
#include "device/cpu/cpu_kv_cache.h"
#include "device/cpu/forward_context.h"
#include "device/layer.h"

namespace convene::device {

class CrossAttention {
 public:
  CrossAttention(ForwardContext& context, CpuKvCache& cache, Attender& attender)
      : context_(context), cache_(cache), attender_(attender) {}

  // Keys and values of the encoder's output, `normed`, whose rows and blocks are the frame's.
  // Leases what it reads.
  Status Store(const Layer& layer, const Frame& frame);

  // From normed to attention_out, of all rows or of the wanted ones, which are in front. Returns of
  // how many. `weights`: leased by the caller.
  int Run(const Layer& layer, const weights::LayerWeights& weights, const Frame& frame,
          bool only_wanted);

 private:
  void Attend(const Layer& layer, const Frame& frame, bool only_wanted);

  ForwardContext& context_;
  CpuKvCache& cache_;
  Attender& attender_;
  std::vector<kernels::Attention> calls_;
};

}  // namespace convene::device
