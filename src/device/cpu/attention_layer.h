// Attention of a layer to its own sequence: projections, RoPE and cache, attention over the paged
// cache. Norm, output projection and residual are cpu_stream.cc's.
#pragma once

#include <array>
#include <vector>

#include "device/cpu/attend.h"
#include "device/cpu/cpu_frame.h"
#include "device/cpu/cpu_kv_cache.h"
#include "device/cpu/distance_biases.h"
#include "device/cpu/forward_context.h"
#include "device/cpu/latent_attention.h"
#include "device/layer.h"
#include "device/stream.h"

namespace convene::device {

// Consecutive tokens of one sequence times query heads of one KV head, as one attention kernel
// call.
struct AttentionUnit {
  int sequence_idx = 0;
  int kv_head = 0;
  int first_head = 0;
  int num_heads = 0;
  int first_token = 0;  // in the sequence's tokens of this step
  int num_tokens = 0;
  int first_out_row = 0;
};

class AttentionLayer {
 public:
  AttentionLayer(ForwardContext& context, CpuKvCache& cache, Attender& attender,
                 const StreamOptions& options)
      : context_(context),
        cache_(cache),
        attender_(attender),
        latent_(context, cache, attender_, options),
        biases_(context.weights) {}

  // Queries, keys and values of all rows, from normed to qkv. Leases what it reads.
  Status Project(const Layer& layer, const Frame& frame);

  // What Project made goes into the cache, and attention's output into attention_out, of all rows
  // or of the wanted ones only. Returns of how many. `is_normed`: queries and keys have had their
  // norm already. `weights`: leased by the caller.
  int Attend(const Layer& layer, const weights::LayerWeights& weights, const Frame& frame,
             bool only_wanted, bool is_normed);

  // The same in parts, without latents (Stream::BeginAttention): norms, RoPE and queries of all
  // rows; of some sequences the cache and attention_wide; attention_out of all, which returns how
  // many rows these are.
  void Prepare(const Layer& layer, const weights::LayerWeights& weights, const Frame& frame) {
    PrepareQkv(layer, weights, frame, /*is_normed=*/false);
  }
  void AttendSequences(const Layer& layer, const weights::LayerWeights& weights, const Frame& frame,
                       Stream::SequenceRange sequences, bool only_wanted);
  int Narrow(const Layer& layer, const Frame& frame, bool only_wanted);

  // Between these parts, from one stream to another one (Stream::PackAttention).
  int64_t RowBytes(AttentionRows kind, const Layer& layer) const;
  void Pack(AttentionRows kind, const Layer& layer, const Frame& frame, std::byte* to) const;
  void Unpack(AttentionRows kind, const Layer& layer, const std::byte* from,
              const Frame& frame) const;

 private:
  // A part of a row that travels, and where rows have it.
  struct Piece {
    RowBuffer rows;
    int64_t offset = 0;
    int64_t size_bytes = 0;
  };
  std::array<Piece, 2> PiecesOf(AttentionRows kind, const Layer& layer,
                                const Activations& buffers) const;
  // Of all rows; keys and values are left in qkv.
  void PrepareQkv(const Layer& layer, const weights::LayerWeights& weights, const Frame& frame,
                  bool is_normed);
  // Of all rows of these sequences, each writing output row = row; or of the wanted rows only, the
  // i-th of all wanted ones writing output row i.
  void DivideIntoUnits(const StepRows& rows, const model::AttentionSpec& attention,
                       Stream::SequenceRange sequences, bool only_wanted);
  kernels::Attention Describe(const Layer& layer, const weights::LayerWeights& weights,
                              const Frame& frame, const AttentionUnit& unit) const;

  ForwardContext& context_;
  CpuKvCache& cache_;
  Attender& attender_;
  LatentAttention latent_;
  DistanceBiases biases_;
  std::vector<AttentionUnit> units_;
  std::vector<kernels::Attention> calls_;
};

}  // namespace convene::device
