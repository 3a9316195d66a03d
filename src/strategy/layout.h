// The short form of a plan's roles: degrees of attention and experts. All ranks are alike up to the
// sizes of their shares of the experts, or there are two kinds of ranks, of which one has attention
// and the other the experts, or each rank has some of the layers. Which rank then has what is
// role.h's.
#pragma once

#include <algorithm>
#include <vector>

namespace convene::strategy {

// Heads are divided by attention_tp, sequences by attention_dp, experts into expert_ep shares, each
// expert into expert_tp slices. attention_tp * attention_dp == expert_ep * expert_tp == ranks,
// unless the layout disaggregates.
struct Layout {
  int attention_tp = 1;
  int attention_dp = 1;
  int expert_ep = 1;
  int expert_tp = 1;
  std::vector<int> expert_weights = {};  // of the expert_ep shares; none: shares are alike
  // Attention and experts are on different ranks.
  bool disaggregates = false;
  // Of a layout that disaggregates the ranks with attention, in increasing order, as many as it has
  // of them; none: the first ones. All other ranks have the experts.
  std::vector<int> attention_ranks = {};
  // Layers are divided instead (pipeline parallelism): consecutive ones of so many parts, each of
  // which one rank has whole. All degrees above are 1 then.
  int stages = 1;
  std::vector<int> stage_weights = {};  // of the stages; none: they are alike
  // The matrix that makes logits is divided by tokens of the vocabulary among all ranks, or
  // whole on rank 0. Where all ranks have attention and experts.
  bool divides_head = false;
  // Shared experts have slices as the routed ones have; or each rank has them whole, for its own
  // rows. Where all ranks have a slice of each expert (expert_ep is 1).
  bool divides_shared = false;
  // Dense blocks are divided along their intermediate size among the ranks that divide heads of the
  // same sequences; or each rank has them whole, for its own rows. With attention_tp above 1.
  bool divides_dense = false;

  int num_attention_ranks() const { return attention_tp * attention_dp; }
  int num_expert_ranks() const { return expert_ep * expert_tp; }
  int num_ranks() const {
    if (stages > 1) return stages;
    return num_attention_ranks() + (disaggregates ? num_expert_ranks() : 0);
  }

  // Whether a rank has attention.
  bool attends(int rank) const {
    if (!disaggregates) return true;
    if (attention_ranks.empty()) return rank < num_attention_ranks();
    return std::binary_search(attention_ranks.begin(), attention_ranks.end(), rank);
  }

  bool operator==(const Layout&) const = default;
};

// Part `index` of `parts` of `count` things: [first, first + size). Sizes differ by at most one,
// and powers of two that divide each other give aligned parts.
struct Part {
  int first = 0;
  int size = 0;

  bool operator==(const Part&) const = default;
};
constexpr Part PartOf(int count, int index, int parts) {
  const auto begin = [&](int i) {
    return static_cast<int>(static_cast<long long>(count) * i / parts);
  };
  return {begin(index), begin(index + 1) - begin(index)};
}

}  // namespace convene::strategy
