#include "memory/read_pace.h"

#include <algorithm>

namespace convene::memory {

std::optional<ReadPace::Slower> ReadPace::Add(uint64_t size_bytes, double seconds) {
  window_bytes_ += size_bytes;
  window_seconds_ += seconds;
  if (window_bytes_ < kWindowBytes || window_seconds_ <= 0) return std::nullopt;
  const double rate = static_cast<double>(window_bytes_) / window_seconds_;
  window_bytes_ = 0;
  window_seconds_ = 0;
  best_ = std::max(best_, rate);
  if (rate * 2 >= best_) is_slow_ = false;
  if (is_slow_ || rate * kSlower >= best_) return std::nullopt;
  is_slow_ = true;
  return Slower{.bytes_per_second = rate, .best_bytes_per_second = best_};
}

}  // namespace convene::memory
