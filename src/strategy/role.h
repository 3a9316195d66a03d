// Roles: which part of a step each rank does, of attention, of the experts, and the head. Whoever
// asks which rank has what asks here; how fast a rank is stands in cost/rates.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/model_spec.h"
#include "strategy/layout.h"

namespace convene::strategy {

// Where nothing was measured (docs/results/latent_attention.md).
inline constexpr int kExpandFromTokens = 4;

// Heads of a layer's attention: KV heads, and the queries that read them.
struct HeadParts {
  Part query;
  Part kv;
};

// What is cached of a layer: of its KV heads, or of the one latent that stands for all heads.
struct CacheParts {
  Part heads;
  int copies = 1;  // parts of the group that have the same ones

  bool operator==(const CacheParts&) const = default;
};

// Some heads of a group's sequences. Ranks with attention also embed and own rows: the residual
// stream of a row lives on one of its group's ranks.
struct AttentionRole {
  int group = 0;  // of the sequences
  int part = 0;   // of `parts`, of the heads
  int parts = 1;

  // The form of latent attention: the positions of a prompt of so many tokens and more are computed
  // with expanded keys and values, all others on the latents as they lie in the cache; 0: none are
  // expanded. The two round differently (docs/decisions/0005-latent-attention.md), so all ranks
  // have the same number.
  int expand_from_tokens = kExpandFromTokens;

  bool Expands(int prompt_length) const {
    return expand_from_tokens > 0 && prompt_length >= expand_from_tokens;
  }
  // The rank's. Where there are more parts than KV heads, several hold the same KV head and divide
  // its queries. Precondition: so many heads can be divided so (weights/share.h).
  HeadParts HeadsOf(const model::AttentionSpec& whole) const;
  // What the rank's cache holds. A KV head that several parts hold is in the cache of each, as are
  // latents in that of all.
  CacheParts CacheOf(const model::AttentionSpec& whole) const;
  bool operator==(const AttentionRole&) const = default;
};

// A slice of each expert of one share.
struct ExpertRole {
  int share = 0;  // of Roles::expert_split
  int slice = 0;
  int slices = 1;
  bool operator==(const ExpertRole&) const = default;
};

// Some of the decoder's layers, where they are divided: of `of` equal parts those from `first` to
// before `end`.
struct StageRole {
  int first = 0;
  int end = 1;
  int of = 1;

  bool is_first() const { return first == 0; }
  bool is_last() const { return end == of; }
  Part LayersOf(int num_layers) const {
    const int begin = PartOf(num_layers, first, of).first;
    return {begin, end == of ? num_layers - begin : PartOf(num_layers, end, of).first - begin};
  }
  bool HasLayer(int layer, int num_layers) const {
    const Part layers = LayersOf(num_layers);
    return layer >= layers.first && layer < layers.first + layers.size;
  }
  bool operator==(const StageRole&) const = default;
};

// Rows of the matrix that makes logits: those of consecutive tokens of the vocabulary.
struct HeadRole {
  int part = 0;
  int parts = 1;

  // Parts begin where panels of a packed matrix do, so that those of a packed file are some of its
  // bytes. Precondition: the vocabulary has as many panels as there are parts.
  Part TokensOf(int vocab_size) const;
  bool operator==(const HeadRole&) const = default;
};
// Tokens of a panel (kernels/packed_matrix.h).
inline constexpr int kHeadPanelTokens = 64;

// What a rank does; what is unset, other ranks do. By default all of it.
struct Role {
  std::optional<AttentionRole> attention = AttentionRole{};
  std::optional<ExpertRole> experts = ExpertRole{};
  StageRole stage = {};  // where both are of some layers alone
  std::optional<HeadRole> head = HeadRole{};

  bool has_head() const { return head.has_value(); }
  bool owns_rows() const { return attention.has_value(); }
  bool has_experts() const { return experts.has_value(); }
  // Whether its rows are those that the head is computed of.
  bool gives_output() const { return owns_rows() && stage.is_last(); }
  // For messages and pictures: "attention" or "experts" of a rank that has one of them alone, ""
  // of one that has both.
  const char* name() const { return !experts ? "attention" : !attention ? "experts" : ""; }
  bool operator==(const Role&) const = default;
};

// How a layer's experts are divided into shares: consecutive ones, by the weights of the shares.
class ExpertSplit {
 public:
  // Weights are above 0. None: shares are alike, and experts(share, n) is PartOf(n, share, shares).
  // Implicit, so that a number of shares alone can stand for a split into like ones.
  ExpertSplit(int num_shares = 1, const std::vector<int>& weights = {});

  int num_shares() const { return static_cast<int>(bounds_.size()) - 1; }
  Part experts(int share, int num_experts) const;
  // Those of the smallest and the largest share.
  int FewestExperts(int num_experts) const;
  int MostExperts(int num_experts) const;
  // What a share has of an amount that is spread evenly over experts.
  double PartOfAmount(int share, double amount) const {
    return amount * (bounds_[share + 1] - bounds_[share]) / bounds_.back();
  }
  bool operator==(const ExpertSplit&) const = default;

 private:
  std::vector<int> bounds_ = {0};  // sums of the weights before each share, and of all
};

// Of all ranks, in one phase. Groups have equally many ranks, as have shares.
class Roles {
 public:
  // Implicit, because a layout is a short way to write roles. The head is on rank 0, also where
  // that has no attention: it samples, and the commands talk to it. Where it is divided, that rank
  // gets the logits of the others.
  Roles(const Layout& layout = {});
  // Attention on ranks 0 .. attention_ranks - 1, each with its own sequences; experts on those
  // after them, each with its own.
  static Roles Disaggregated(int attention_ranks, int expert_ranks) {
    return Layout{
        .attention_dp = attention_ranks, .expert_ep = expert_ranks, .disaggregates = true};
  }
  // The same, with this form of latent attention on all ranks.
  Roles ExpandingFrom(int tokens) const;

  int num_ranks() const { return static_cast<int>(roles_.size()); }
  const Role& of(int rank) const { return roles_[rank]; }
  int num_groups() const { return layout_.attention_dp; }
  int attention_parts() const { return layout_.attention_tp; }
  int expert_slices() const { return layout_.expert_tp; }
  const ExpertSplit& expert_split() const { return split_; }
  bool divides_head() const { return layout_.divides_head; }
  bool divides_shared() const { return layout_.divides_shared; }
  bool divides_dense() const { return layout_.divides_dense; }
  int num_expert_ranks() const { return layout_.num_expert_ranks(); }
  // Whether each rank has both attention and experts.
  bool are_whole() const { return !layout_.disaggregates; }
  // Ranks that have some layers each, one behind the other; 1: all ranks have all layers.
  int num_stages() const { return layout_.stages; }
  // As the rank of one stage sees them: it has attention and experts, and the others neither. With
  // one stage: as they are.
  Roles SeenFrom(int rank) const;

  // Where layers are divided: that of the last stage, whose rows the head is computed of.
  int RankOfPart(int group, int part) const {
    return attention_ranks_[group * attention_parts() + part];
  }
  int RankOfSlice(int share, int slice) const {
    return expert_ranks_[share * expert_slices() + slice];
  }
  // By rank, as Role::name; of stages "stage 1 of 2".
  std::vector<std::string> Names() const;
  // The rank's experts of a layer with so many; none of a rank that has no experts.
  Part ExpertsOf(int rank, int num_experts) const;
  bool operator==(const Roles&) const = default;

 private:
  void DivideLayers();

  Layout layout_;
  ExpertSplit split_;
  std::vector<Role> roles_;           // by rank
  std::vector<int> attention_ranks_;  // in increasing order, as are the next ones
  std::vector<int> expert_ranks_;
};

// Rows whose logits are computed at once (device/stream.h).
inline constexpr int kHeadRows = 128;

// In so many chunks ranks that divide the head go through so many wanted rows of them all.
inline int HeadChunksOf(const Roles& roles, int64_t num_wanted) {
  if (!roles.divides_head()) return 1;
  return static_cast<int>(std::max<int64_t>(1, (num_wanted + kHeadRows - 1) / kHeadRows));
}

// A part of serving whose steps may have roles of their own.
enum class Phase {
  kPrefill,  // steps with prompts in them
  kDecode,   // steps of generated tokens alone
};

}  // namespace convene::strategy
