// A link between two tiers: the copies of a device's lane, each of which takes at least the time
// that a link of a stated rate would. Where the device is a set of cores, such a link is played on
// a machine that has none; what it cannot leave out is that copies take cores and memory, which a
// device's copy engines would not.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/result.h"
#include "memory/copy_lane.h"

namespace convene::runtime {

// One direction. One thread at a time.
class LimitedLink {
 public:
  // 0: as fast as the lane is.
  LimitedLink(std::unique_ptr<memory::CopyLane> lane, double bytes_per_second)
      : lane_(std::move(lane)), bytes_per_second_(bytes_per_second) {}

  // A transfer of several pieces: Begin, Copy each, End, which returns when the link is through,
  // with the lane's error.
  void Begin();
  void Copy(std::byte* to, const std::byte* from, size_t size_bytes);
  // As Copy, where only some of the bytes, which need not lie together, would pass the link.
  void CopyCounting(std::byte* to, const std::byte* from, size_t size_bytes, size_t counted_bytes);
  // Until the link has passed what was counted so far; where it has no rate, nothing.
  void Pause();
  Status End();

 private:
  std::unique_ptr<memory::CopyLane> lane_;
  double bytes_per_second_;
  std::chrono::steady_clock::time_point begin_;
  size_t done_bytes_ = 0;
};

}  // namespace convene::runtime
