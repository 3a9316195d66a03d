// What the experts of a rank have to compute in a layer: rows and their pairs with experts, the
// rank's own and those that other ranks sent, and their order, by expert, in each chunk. How they
// come here is sent_rows.h and received_rows.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/expert_placement.h"
#include "device/row_parts.h"

namespace convene::device {

// A token with experts on this rank, pairs [first_pair, first_pair + num_pairs).
struct WorkRow {
  const std::byte* data = nullptr;  // null: own row `row`; otherwise as dispatched
  int32_t row = 0;
  int32_t first_pair = 0;
  int32_t num_pairs = 0;
  int32_t return_chunk = 0;
};

struct ExpertPair {
  uint16_t expert = 0;  // its number in the whole layer
  float weight = 0;
  int32_t work_row = -1;
  int32_t slot = -1;  // where its output is, once its chunk is selected
};

// The work of one experts task, sorted by expert: slots [first_slot[e], first_slot[e + 1]) are
// those of the rank's e-th expert.
struct ChunkSlots {
  std::vector<int32_t> first_slot;
  std::vector<int32_t> work_row;  // of each slot, from first_slot[0] on; -1: padding
};

// By chunk.
using ChunkLists = std::vector<std::vector<int32_t>>;
// So many, all empty.
void ClearLists(size_t count, ChunkLists& lists);
void AppendLists(const ChunkLists& from, ChunkLists& to);

class ExpertWork {
 public:
  // Keeps references.
  ExpertWork(const ExpertPlacement& placement, const RowParts& parts)
      : placement_(placement), parts_(parts) {}

  // The next layer: no work yet.
  void Begin();

  // Written by who brings work: own rows first, then what arrives.
  std::vector<WorkRow> rows;
  std::vector<ExpertPair> pairs;
  ChunkLists pairs_of_chunk;        // places in `pairs`, where chunks are cut by experts
  std::vector<int32_t> of_own_row;  // by own row: its place in `rows`; -1: none
  int32_t num_own_rows = 0;
  int32_t num_own_pairs = 0;

  // Gives pairs their slots, sorted by expert, behind those of calls before it: the listed ones of
  // a chunk that is cut by experts, or pairs [first, end). Each expert has `fewest_slots` at least.
  void GroupListed(int chunk, int fewest_slots);
  void GroupRange(int32_t first, int32_t end, int fewest_slots);
  // By the last of them.
  const ChunkSlots& slots() const { return slots_; }

 private:
  // The i-th pair is pair_at(i).
  template <typename F>
  void Group(int64_t num_pairs, int fewest_slots, F&& pair_at);

  const ExpertPlacement& placement_;
  const RowParts& parts_;
  ChunkSlots slots_;
  int num_slots_ = 0;
  std::vector<std::vector<int32_t>> next_slot_;  // by part and own expert
};

}  // namespace convene::device
