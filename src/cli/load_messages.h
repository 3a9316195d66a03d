// What a person sees on standard error while a model loads: memory, progress, time. A terminal gets
// a line that moves, a log file a line now and then.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/message.h"
#include "engine/loaded_model.h"

namespace convene::cli {

class LoadMessages {
 public:
  LoadMessages();

  // Refers to this object.
  engine::LoadObserver observer();

  // After loading, whether or not it succeeded.
  void Finish();

 private:
  using Clock = std::chrono::steady_clock;
  void ShowProgress(uint64_t done_bytes, uint64_t total_bytes);
  void Show(const char* what, uint64_t done_bytes, uint64_t total_bytes);

  ProgressLine line_;
  Clock::time_point start_ = Clock::now();
  uint64_t loaded_bytes_ = 0;
};

}  // namespace convene::cli
