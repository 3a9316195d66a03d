// Attention of a layer to its own sequence: projections, RoPE and cache, attention over the paged
// cache. Norm, output projection and residual are step_runner.cc's.
#pragma once

#include <vector>

#include "runtime/attend.h"
#include "runtime/forward_context.h"
#include "runtime/frame.h"
#include "runtime/kv_cache.h"
#include "runtime/latent_attention.h"
#include "runtime/layer.h"

namespace convene::runtime {

class AttentionLayer {
 public:
  AttentionLayer(ForwardContext& context, KvCache& cache, Attender& attender,
                 const LatentOptions& latent_options)
      : context_(context),
        cache_(cache),
        attender_(attender),
        latent_(context, cache, attender_, latent_options) {}

  // Queries, keys and values of all rows, from normed to qkv. Leases what it reads.
  Status Project(const Layer& layer, const Frame& frame);

  // What Project made goes into the cache, and attention's output into attention_out, of all rows
  // or of the wanted ones only. Returns of how many. `is_normed`: queries and keys have had their
  // norm already. `weights`: leased by the caller.
  int Attend(const Layer& layer, const weights::LayerWeights& weights, const Frame& frame,
             bool only_wanted, bool is_normed);

 private:
  void PrepareQkv(const Layer& layer, const weights::LayerWeights& weights, const Frame& frame,
                  bool is_normed);
  void AttendRows(const Layer& layer, const weights::LayerWeights& weights, const Frame& frame,
                  bool only_wanted);
  kernels::Attention Describe(const Layer& layer, const weights::LayerWeights& weights,
                              const Frame& frame, const AttentionUnit& unit) const;

  ForwardContext& context_;
  KvCache& cache_;
  Attender& attender_;
  LatentAttention latent_;
  std::vector<AttentionUnit> units_;
  std::vector<kernels::Attention> calls_;
};

}  // namespace convene::runtime
