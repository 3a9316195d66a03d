// Attention whose cache holds one latent per token (multi-head latent attention, DeepSeek-V2 2024,
// section 2.1), in two forms of the same product:
//
// Expanded, for prompts: keys and values of all heads are made from the cached latents, and a layer
// is attention as in other models. Absorbed, for generated tokens: the matrices that would make
// keys and values are applied to the query and to the output instead, and all heads attend to the
// latents themselves. Per layer, for one query and n keys, H heads, latent r, parts p and t (nope,
// rope), values v, in multiply-adds: expanded n H r (p + v) for all queries together, then
// n H (p + t + v) for each; absorbed H r (p + v) + n H (2 r + t) for each.
//
// Which form a token has depends on its sequence alone: the positions of a prompt that is long
// enough (strategy/role.h) are expanded, all others absorbed. So a token's result does not depend
// on chunks, but what a prompt leaves in the cache may be shared with such prompts only (engine/).
#pragma once

#include <span>
#include <vector>

#include "device/cpu/attend.h"
#include "device/cpu/cpu_frame.h"
#include "device/cpu/cpu_kv_cache.h"
#include "device/cpu/forward_context.h"
#include "device/layer.h"
#include "device/stream.h"

namespace convene::device {

class LatentAttention {
 public:
  LatentAttention(ForwardContext& context, CpuKvCache& cache, Attender& attender,
                  const StreamOptions& options)
      : context_(context),
        cache_(cache),
        attender_(attender),
        role_(options.roles.of(options.rank).attention.value_or(strategy::AttentionRole{})),
        longest_(options.shape.context) {}

  // From the projections in qkv to attention_wide, of all rows or of the wanted ones.
  void Run(const Layer& layer, const weights::LayerWeights& weights, const Frame& frame,
           bool only_wanted);

 private:
  // Consecutive tokens of one sequence.
  struct RowRun {
    int sequence_idx = 0;
    int first_row = 0;
    int num_rows = 0;
    int first_out_row = 0;
  };

  void CacheKeys();
  void PrepareQueries();
  void DivideRows(bool only_wanted);
  float* Query(int64_t row) const;

  void RunExpanded(const RowRun& run);
  void Expand(const SequenceStep& sequence, int end, int first_head, int num_heads);
  void StoreExpanded(int first_position, int count, int num_heads);
  void AttendExpanded(const RowRun& run, int first_head, int num_heads);
  // In expanded_blocks.
  int blocks_per_head() const { return (longest_ + kKvBlockTokens - 1) / kKvBlockTokens; }

  void RunAbsorbed();
  void AbsorbQueries(int num_rows);
  void AttendAbsorbed(int num_rows);
  void ProjectOutputs(int num_rows);
  void MultiplyHeads(std::span<const kernels::PackedMatrix> heads, int num_rows);
  template <typename F>
  void ForEachRow(F&& f) const;

  const StepRows& rows() const { return frame_->rows; }
  const Activations& activations() const { return ActivationsOf(*frame_); }
  const RotaryAngles& angles() const { return CpuFrameOf(*frame_).angles; }
  const model::AttentionSpec& shape() const { return layer_->spec.attention; }
  const model::LatentSpec& latent() const { return *shape().latent; }
  kernels::KvFormat compute_format() const {
    return cache_.format() == kernels::KvFormat::kF32 ? kernels::KvFormat::kF32
                                                      : kernels::KvFormat::kBf16;
  }

  ForwardContext& context_;
  CpuKvCache& cache_;
  Attender& attender_;
  strategy::AttentionRole role_;
  int longest_;  // sequence, in tokens
  // Of the run in work, null between runs.
  const Layer* layer_ = nullptr;
  const weights::LayerWeights* weights_ = nullptr;
  const Frame* frame_ = nullptr;
  std::vector<RowRun> expanded_;
  std::vector<RowRun> absorbed_;
  std::vector<std::byte*> expanded_blocks_;  // rows of the workspace's, head by head
  std::vector<int32_t> expanded_block_ids_;
  std::vector<RowRun> batch_;  // absorbed rows that are computed together
  std::vector<const float*> batch_queries_;
  std::vector<int> batch_out_rows_;
  std::vector<kernels::PackedMatrix> head_matrices_;
  std::vector<kernels::GemmGroup> groups_;
  std::vector<kernels::Attention> calls_;
};

}  // namespace convene::device
