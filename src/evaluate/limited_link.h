// A link between two tiers, of a stated rate in each direction, played on a machine that has none:
// real copies, each of which takes at least the time that the link would. What it cannot leave out
// is that they take cores and memory, which a device's copy engines would not.
#pragma once

#include <chrono>
#include <cstddef>

namespace convene::evaluate {

// One direction. One thread at a time.
class LimitedLink {
 public:
  // 0: without a limit.
  explicit LimitedLink(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // A transfer of several pieces: Begin, Copy each, End, which returns when the link is through.
  void Begin();
  void Copy(std::byte* to, const std::byte* from, size_t size_bytes);
  // As Copy, where only some of the bytes, which need not lie together, would pass the link.
  void CopyCounting(std::byte* to, const std::byte* from, size_t size_bytes, size_t counted_bytes);
  // Until the link has passed what was counted so far.
  void Pause();
  void End() { Pause(); }

 private:
  double bytes_per_second_;
  std::chrono::steady_clock::time_point begin_;
  size_t done_bytes_ = 0;
};

}  // namespace convene::evaluate
