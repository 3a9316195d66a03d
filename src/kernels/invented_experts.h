// Experts that nobody trained, as measurements multiply them: from memory that they walk through,
// so that what is read was last read when all the rest of it had not been. What is measured with
// them is measure_order.h and measure_streaming.h; their rows are invented_rows.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/packed_matrix.h"

namespace convene::kernels {

// Memory, piece by piece, and from the front again.
class MemoryWalk {
 public:
  explicit MemoryWalk(std::span<const std::byte> memory) : memory_(memory) {}

  size_t size_bytes() const { return memory_.size(); }

  // At most size_bytes (CHECKed).
  const std::byte* Take(size_t bytes) {
    CHECK(bytes <= memory_.size(), "{} of {} bytes", bytes, memory_.size());
    if (memory_.size() - at_ < bytes) at_ = 0;
    const std::byte* taken = memory_.data() + at_;
    at_ += bytes;
    return taken;
  }

 private:
  std::span<const std::byte> memory_;
  size_t at_ = 0;
};

// So many experts of `shape` as `bytes_at_once` hold. Where they do not hold one whole, it has
// fewer rows; they hold a panel (CHECKed).
inline std::vector<PackedMatrix> InventExperts(PackedMatrix shape, size_t bytes_at_once) {
  if (shape.size_bytes() > bytes_at_once) {
    const size_t panel_bytes = shape.panel(0).size_bytes();
    CHECK(panel_bytes <= bytes_at_once, "{} bytes, and {} of a panel", bytes_at_once, panel_bytes);
    shape.rows = static_cast<int>(bytes_at_once / panel_bytes) * kPanelRows;
  }
  return std::vector<PackedMatrix>(bytes_at_once / shape.size_bytes(), shape);
}

// Gives them the memory that comes next.
inline void PlaceNext(std::span<PackedMatrix> experts, MemoryWalk& memory) {
  const size_t expert_bytes = experts.front().size_bytes();
  const std::byte* at = memory.Take(expert_bytes * experts.size());
  for (PackedMatrix& expert : experts) {
    expert.data = at;
    at += expert_bytes;
  }
}

}  // namespace convene::kernels
