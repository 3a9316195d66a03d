// Whether a disk that is read while a model runs has become much slower than it was. It reads no
// clock: who reads tells it how much came in how long.
#pragma once

#include <cstdint>
#include <optional>

namespace convene::memory {

class ReadPace {
 public:
  struct Slower {
    double bytes_per_second = 0;
    double best_bytes_per_second = 0;  // that it once had
  };

  // So many bytes more came in so many seconds in which something was under way. Returns once what
  // has happened when the last kWindowBytes came at less than a kSlower-th of the best rate that as
  // many ever had; it tells so again only after at least half of that rate was reached.
  std::optional<Slower> Add(uint64_t size_bytes, double seconds);

  static constexpr uint64_t kWindowBytes = uint64_t{256} << 20;
  static constexpr double kSlower = 4;

 private:
  uint64_t window_bytes_ = 0;
  double window_seconds_ = 0;
  double best_ = 0;
  bool is_slow_ = false;
};

}  // namespace convene::memory
