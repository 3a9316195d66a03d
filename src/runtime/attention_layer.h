// The attention half of a layer: norm, projections, RoPE and cache, attention over the
// paged cache, output projection, residual.
#pragma once

#include <vector>

#include "runtime/attend.h"
#include "runtime/forward_context.h"
#include "runtime/kv_cache.h"
#include "runtime/latent_attention.h"
#include "runtime/layer.h"
#include "runtime/step_rows.h"

namespace convene::runtime {

class AttentionLayer {
 public:
  AttentionLayer(ForwardContext& context, KvCache& cache, Attender& attender,
                 const LatentOptions& latent_options)
      : context_(context),
        cache_(cache),
        attender_(attender),
        latent_(context, cache, attender_, latent_options) {}

  // Adds the layer's attention to the residual stream, hidden (rows). With `only_wanted` all rows'
  // keys and values are cached, but only the wanted rows go on: they are moved to the front of
  // hidden. Returns how many rows go on.
  int Run(const Layer& layer, const StepRows& rows, bool only_wanted);

 private:
  void PrepareQkv(const Layer& layer, const StepRows& rows);
  void Attend(const Layer& layer, const StepRows& rows, bool only_wanted);
  kernels::Attention Describe(const Layer& layer, const StepRows& rows,
                              const AttentionUnit& unit) const;

  ForwardContext& context_;
  KvCache& cache_;
  Attender& attender_;
  LatentAttention latent_;
  std::vector<AttentionUnit> units_;
  std::vector<kernels::Attention> calls_;
};

}  // namespace convene::runtime
