// The pauses of a thread that waits by asking again and again: none at first, then longer and
// longer, so that a long wait leaves its core to others and a short one stays short.
#pragma once

#include <chrono>
#include <thread>

namespace convene::comm {

class SleepingPoll {
 public:
  // To be called after each question that was answered with no.
  void Pause() {
    const Clock::duration waited = Clock::now() - start_;
    if (waited < kAwake) {
      std::this_thread::yield();
    } else {
      // An eighth of the wait so far: it ends at most that much too late.
      std::this_thread::sleep_for(waited / 8 < kLongest ? waited / 8 : kLongest);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kAwake{100};
  static constexpr Clock::duration kLongest = std::chrono::milliseconds(1);

  Clock::time_point start_ = Clock::now();
};

}  // namespace convene::comm
