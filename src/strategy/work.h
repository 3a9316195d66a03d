// How much work a layer's parts are, per rank, as amounts over sizes that are known later. Counted
// from shapes alone. FLOPs are those of products and scores; memory are weights, the cache, and the
// passes over rows that come with them (norms, formats, sums), as if no cache kept anything.
#pragma once

#include <vector>

#include "model/model_spec.h"
#include "schedule/schedule.h"
#include "strategy/step.h"

namespace convene::strategy {

// Of all matrices of one expert.
double ExpertElements(const model::ModelSpec& spec, const model::MoeSpec& moe);

class LayerWork {
 public:
  // `prunes`: the layer goes on, after its keys and values, with the rows whose logits are wanted.
  LayerWork(const model::ModelSpec& spec, const model::LayerSpec& layer, int layer_idx,
            const StepOptions& options, bool prunes = false)
      : spec_(spec), layer_(layer), layer_idx_(layer_idx), options_(options), prunes_(prunes) {}

  // A rank's part of the heads, for all tokens of its group; `is_projected`: after Project, which
  // makes queries, keys and values where their norm needs all heads' sums (NormSums).
  schedule::Work Attention(int rank, bool is_projected) const;
  schedule::Work Project(int rank) const;
  schedule::Work NormSums(int rank) const;
  schedule::Work CrossAttention(int rank) const;
  // Attention in parts, where the host has the middle one: projections of queries, keys and values
  // on the device, these down, scores and values on the host, their sums up, output projection.
  schedule::Work PreAttention(int rank) const;
  schedule::Work SendQkv(int rank) const;
  schedule::Work Attend(int rank) const;
  schedule::Work SendHidden(int rank) const;
  schedule::Work PostAttention(int rank) const;
  // One of `num_pages` equal pages of the layer's feed-forward weights, routers and shared experts
  // apart: from pageable to pinned memory, and from there to the device.
  schedule::Work StagePage(int num_pages) const;
  schedule::Work LoadPage(int num_pages) const;
  // Keys and values of a layer to the device that attends there, and the new ones back.
  schedule::Work LoadKv(int rank) const;
  schedule::Work StoreKv(int rank) const;
  // What of a chunk's experts is not in memory, from the disk: of all of them, or of the chosen.
  schedule::Work ReadPages(int rank) const;
  schedule::Work ReadChosen(int rank, int chunk) const;
  // Where keys and values are spilled (SpilledKv), what comes before attention and behind it, which
  // with all its parts is as much as Attention.
  schedule::Work BeforeParts(int rank) const;
  schedule::Work BehindParts(int rank) const;
  // Of a part of the sequences: attention, once they are in memory; what of them is not there, from
  // the disk; and what is new of it, back.
  schedule::Work AttendPart(int rank) const;
  schedule::Work ReadKv(int rank) const;
  schedule::Work WriteKv(int rank) const;
  // Own rows to (or partial sums from) the other ranks that have heads of the same sequences.
  // `is_behind`: behind the layer's attention to itself.
  schedule::Work GatherNormed(int rank, double element_bytes, bool is_behind = false) const;
  schedule::Work ScatterSums(int rank, double element_bytes) const;
  // Something done to each own row, before attention and after it.
  schedule::Work RowsBefore(int rank, double bytes_per_row) const;
  schedule::Work Rows(int rank, double bytes_per_row) const;

  schedule::Work Dense(int rank) const;
  schedule::Work Route(int rank) const;
  schedule::Work Counts(int rank) const;
  schedule::Work Dispatch(int rank, int chunk) const;
  schedule::Work Shared(int rank) const;
  schedule::Work Experts(int rank, int chunk) const;
  schedule::Work Reduce(int rank, int chunk) const;
  schedule::Work Combine(int rank, int chunk) const;
  schedule::Work Finish(int rank) const;

 private:
  const Roles& roles() const { return options_.roles; }
  // Own rows behind attention; and of its tokens those whose attention is computed.
  schedule::Size RowsOf(int rank) const;
  schedule::Size Attended(schedule::SizeKind kind, int rank) const;
  schedule::Work LatentAttention(int rank) const;
  // With the heads of the rank's part, none without attention.
  model::AttentionSpec PartOfRank(model::AttentionSpec attention, int rank) const;
  // Of one token, in the rank's cache.
  double CachedElements(int rank) const;
  double hidden() const { return spec_.hidden_size; }
  bool HasShared() const { return layer_.moe->shared_intermediate_size > 0; }
  // The share of each expert that a rank computes.
  double slice() const { return 1.0 / roles().expert_slices(); }
  // Experts of a rank that a row is expected to visit; of a rank without experts: of any that has.
  double VisitsOf(int rank) const;
  // Other ranks that a row is expected to go to.
  double PeersOfRow(int rank) const;
  // Of the rows of these ranks, so wide.
  schedule::Work FeedForward(const model::ActivationSpec& activation, double intermediate,
                             const std::vector<int>& rows_of) const;
  double StreamedBytes() const;

  const model::ModelSpec& spec_;
  const model::LayerSpec& layer_;
  int layer_idx_;
  const StepOptions& options_;
  bool prunes_;
};

}  // namespace convene::strategy
