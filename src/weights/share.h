// What of a model's weights a rank holds, and the model as it looks there: fewer heads, narrower
// experts. Reads nothing.
//
// Divided are the attention's heads, the experts, and each expert along its intermediate size,
// shared ones and dense blocks too where the layout says so, and the matrix that makes logits by
// tokens of the vocabulary; or the layers, of which a rank then has some whole, and the first one
// the embedding. Everything else is on every rank that has attention: dense blocks, shared experts,
// routers, norms, embeddings, the latents of latent attention. A bias of a sum over ranks is part
// 0's alone.
#pragma once

#include <optional>

#include "base/result.h"
#include "model/model_spec.h"
#include "strategy/role.h"
#include "weights/model_weights.h"

namespace convene::weights {

// Everything, by default.
struct Share {
  int attention_part = 0;  // of the heads
  int attention_parts = 1;
  int expert_share = 0;  // of the experts
  strategy::ExpertSplit expert_shares = {};
  int expert_slice = 0;  // of each expert
  int expert_slices = 1;
  std::optional<strategy::HeadRole> head = strategy::HeadRole{};  // of the matrix that makes logits
  // Where other ranks have the rest (strategy::Role): attention with all else that is done to rows,
  // and routed experts. At least one of them; the degrees above are those of the ranks that have
  // it.
  bool with_attention = true;
  bool with_experts = true;
  bool divides_shared = false;     // shared experts, as the routed ones
  bool divides_dense = false;      // dense blocks, into as many slices as heads have parts
  strategy::StageRole stage = {};  // of the decoder's layers those that it has

  // Of the decoder's experts in steps of generated tokens alone, where it is another part
  // (phased_weights.h). All above is of prefill.
  struct DecodeExperts {
    int share = 0;
    strategy::ExpertSplit shares = {};
    int slice = 0;
    int slices = 1;
    bool beside = false;  // those of prefill stay in memory meanwhile

    bool operator==(const DecodeExperts&) const = default;
  };
  std::optional<DecodeExperts> decode = {};

  bool with_head() const { return head.has_value(); }
  bool with_embedding() const { return with_attention && stage.is_first(); }
  bool operator==(const Share&) const = default;
};

Share ShareOf(const strategy::Roles& roles, int rank);
// The same, of a rank that has other experts in decode.
Share ShareOf(const strategy::Roles& roles, const strategy::Roles& decode_roles, bool beside,
              int rank);

// By what the matrices of a rank with whole layers and all experts would be cut: the parts of the
// heads and of each expert of prefill, alone.
Share PartsOf(const Share& share);

// As it is in decode.
Share InDecode(const Share& share);

// LocalSpec of both phases; each MoeSpec has the wider of its two slices, for those who need room
// for either.
Result<model::ModelSpec> WidestSpec(const model::ModelSpec& whole, const Share& share,
                                    const WeightFormats& formats);

// The model as a rank sees it whose weights are `share`: of each attention its own heads
// (HeadsOf), of each expert its slice (SliceOf); num_experts stays that of the router. What it has
// not has no heads, or an intermediate size of 0; of layers of other stages nothing is left.
// `tensors` stay those of the checkpoint. Errors: an encoder-decoder model without attention or
// experts, or in stages; degrees that do not fit, a share of the experts (any, so that all ranks
// find the same) that would be none; they say what fits.
Result<model::ModelSpec> LocalSpec(const model::ModelSpec& whole, const Share& share,
                                   const WeightFormats& formats);

// The steps of LocalSpec, of a `whole` model that the share fits.

using strategy::HeadParts;
HeadParts HeadsOf(const model::AttentionSpec& whole, const Share& share);

// None of a share without experts.
strategy::Part ExpertsOf(const model::MoeSpec& whole, const Share& share);

// Of the intermediate size. int4 is cut where groups begin, so that they are the whole matrix's.
strategy::Part SliceOf(const model::MoeSpec& whole, const Share& share,
                       const WeightFormats& formats);

// The same of the shared experts: all of them, unless the share divides these.
strategy::Part SharedSliceOf(const model::MoeSpec& whole, const Share& share,
                             const WeightFormats& formats);

// The same of a layer's dense block.
strategy::Part DenseSliceOf(const model::LayerSpec& whole, const Share& share,
                            const WeightFormats& formats);

}  // namespace convene::weights
