// The attention half of a layer: norm, projections, RoPE and cache, attention over the
// paged cache, output projection, residual.
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

  // Queries, keys and values of all rows, from normed to qkv.
  void Project(const Layer& layer, const Frame& frame);

  // What Project made goes into the cache, and attention's output into attention_out, of all rows
  // or of the wanted ones only. Returns of how many. `is_normed`: queries and keys have had their
  // norm already.
  int Attend(const Layer& layer, const Frame& frame, bool only_wanted, bool is_normed);

  // attention_out through the output projection to `out`.
  void Output(const Layer& layer, const Frame& frame, int num_rows, kernels::Epilogue epilogue,
              float scale, const RowBuffer& out);

 private:
  void PrepareQkv(const Layer& layer, const Frame& frame, bool is_normed);
  void AttendRows(const Layer& layer, const Frame& frame, bool only_wanted);
  kernels::Attention Describe(const Layer& layer, const Frame& frame,
                              const AttentionUnit& unit) const;

  ForwardContext& context_;
  KvCache& cache_;
  Attender& attender_;
  LatentAttention latent_;
  std::vector<AttentionUnit> units_;
  std::vector<kernels::Attention> calls_;
};

}  // namespace convene::runtime
