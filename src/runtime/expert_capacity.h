// A fixed number of places per expert, sequence and layer, as transformers has it for Switch
// Transformers: tokens take places in the order of their positions, and those that come too late
// get nothing from their expert (docs/families.md). For comparison with it; otherwise nothing is
// dropped.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace convene::runtime {

// What decides whether a row gets a place with its expert.
struct CapacityRow {
  int sequence = 0;    // tells the running sequences apart
  bool first = false;  // the first row of its sequence, for which all places are free
  bool counts = true;  // false: a generated token, which finds all places free and takes none
};

class ExpertCapacity {
 public:
  explicit ExpertCapacity(int capacity) : capacity_(capacity) {}

  bool is_limited() const { return capacity_ > 0; }

  // One expert for each row; the weight of rows that come too late becomes 0. Rows of a sequence
  // are in the order of their positions. Places taken are remembered until the sequence's first row
  // comes again, so that a prompt may come in pieces.
  void Apply(int layer, int num_experts, std::span<const CapacityRow> rows,
             std::span<const int32_t> experts, std::span<float> weights);

 private:
  int capacity_;                                           // 0: without limit
  std::map<std::pair<int, int>, std::vector<int>> taken_;  // of (sequence, layer), per expert
};

}  // namespace convene::runtime
