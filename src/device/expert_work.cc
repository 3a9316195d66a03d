#include "device/expert_work.h"

#include <algorithm>
#include <utility>

namespace convene::device {

void ClearLists(size_t count, ChunkLists& lists) {
  if (lists.size() < count) lists.resize(count);
  for (std::vector<int32_t>& list : lists) list.clear();
}

void AppendLists(const ChunkLists& from, ChunkLists& to) {
  for (size_t i = 0; i < to.size(); ++i) to[i].insert(to[i].end(), from[i].begin(), from[i].end());
}

void ExpertWork::Begin() {
  num_slots_ = 0;
  ClearLists(static_cast<size_t>(placement_.num_chunks()), pairs_of_chunk);
}

void ExpertWork::GroupListed(int chunk, int fewest_slots) {
  const std::vector<int32_t>& listed = pairs_of_chunk[chunk];
  Group(std::ssize(listed), fewest_slots, [&](int64_t i) { return listed[i]; });
}

void ExpertWork::GroupRange(int32_t first, int32_t end, int fewest_slots) {
  Group(end - first, fewest_slots, [first](int64_t i) { return first + i; });
}

template <typename F>
void ExpertWork::Group(int64_t num_pairs, int fewest_slots, F&& pair_at) {
  const strategy::Part own = placement_.own();
  const auto num_local = static_cast<size_t>(own.size);
  const int num_parts = parts_.NumberFor(num_pairs);
  if (std::ssize(next_slot_) < num_parts) next_slot_.resize(static_cast<size_t>(num_parts));
  const auto expert_of = [&](const ExpertPair& pair) { return pair.expert - own.first; };
  parts_.Run(num_pairs, num_parts, [&](int part, int32_t first, int32_t end) {
    next_slot_[part].assign(num_local, 0);
    for (int32_t i = first; i < end; ++i) ++next_slot_[part][expert_of(pairs[pair_at(i)])];
  });
  const int first_slot = num_slots_;
  slots_.first_slot.assign(1, first_slot);
  for (size_t expert = 0; expert < num_local; ++expert) {
    for (int part = 0; part < num_parts; ++part) {
      num_slots_ += std::exchange(next_slot_[part][expert], num_slots_);
    }
    num_slots_ = std::max(num_slots_, slots_.first_slot.back() + fewest_slots);
    slots_.first_slot.push_back(num_slots_);
  }
  slots_.work_row.resize(static_cast<size_t>(num_slots_ - first_slot));
  if (fewest_slots > 0) std::ranges::fill(slots_.work_row, -1);
  parts_.Run(num_pairs, num_parts, [&](int part, int32_t first, int32_t end) {
    for (int32_t i = first; i < end; ++i) {
      ExpertPair& pair = pairs[pair_at(i)];
      pair.slot = next_slot_[part][expert_of(pair)]++;
      slots_.work_row[pair.slot - first_slot] = pair.work_row;
    }
  });
}

}  // namespace convene::device
