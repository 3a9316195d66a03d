// How a model's work is divided among ranks: attention by heads (tensor parallel) and by sequences
// (data parallel), experts by whole experts (expert parallel) and by slices of each.
#pragma once

namespace convene::strategy {

// attention_tp * attention_dp == expert_ep * expert_tp == ranks. Rank r computes heads
// r % attention_tp of the sequences of group r / attention_tp, and slice r % expert_tp of the
// experts of share r / expert_tp.
struct Layout {
  int attention_tp = 1;
  int attention_dp = 1;
  int expert_ep = 1;
  int expert_tp = 1;

  int num_ranks() const { return attention_tp * attention_dp; }
  int attention_part(int rank) const { return rank % attention_tp; }   // of the heads
  int attention_group(int rank) const { return rank / attention_tp; }  // of the sequences
  int expert_slice(int rank) const { return rank % expert_tp; }
  int expert_share(int rank) const { return rank / expert_tp; }

  bool operator==(const Layout&) const = default;
};

// Part `index` of `parts` of `count` things: [first, first + size). Sizes differ by at most one,
// and powers of two that divide each other give aligned parts.
struct Part {
  int first = 0;
  int size = 0;
};
constexpr Part PartOf(int count, int index, int parts) {
  const auto begin = [&](int i) {
    return static_cast<int>(static_cast<long long>(count) * i / parts);
  };
  return {begin(index), begin(index + 1) - begin(index)};
}

}  // namespace convene::strategy
