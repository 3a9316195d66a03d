// How often transfers that a system refuses for the moment (EAGAIN, EINTR) are begun again: as long
// as others get on, and some times without.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace convene::memory {

class RefusedTransfers {
 public:
  // So many transfers are under way at once at most.
  explicit RefusedTransfers(size_t num_at_once)
      : num_at_once_(static_cast<int>(std::max<size_t>(num_at_once, 1))) {}

  void SomeBytesCame() { num_in_turn_ = 0; }

  // Waits before one is begun again, longer each time that all were refused, since the reason may
  // pass: 26 ms for one transfer by itself, 0.8 s for 32. False: it has not passed.
  bool WaitToTryAgain() {
    const int times = num_in_turn_++ / num_at_once_;
    if (times >= kMostTimes) return false;
    std::this_thread::sleep_for(kFirstPause * (1 << times));
    return true;
  }

 private:
  static constexpr int kMostTimes = 8;
  static constexpr auto kFirstPause = std::chrono::microseconds(100);

  int num_at_once_;
  int num_in_turn_ = 0;  // refusals since bytes came
};

}  // namespace convene::memory
