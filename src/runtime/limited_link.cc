#include "runtime/limited_link.h"

#include <algorithm>
#include <thread>

namespace convene::runtime {

namespace {

// Between two looks at the clock: a copy takes the memory's rate for so long, and then gives way.
constexpr size_t kPieceBytes = size_t{512} << 10;

}  // namespace

void LimitedLink::Begin() {
  begin_ = std::chrono::steady_clock::now();
  done_bytes_ = 0;
}

void LimitedLink::Copy(std::byte* to, const std::byte* from, size_t size_bytes) {
  if (bytes_per_second_ <= 0) return lane_->Copy(to, from, size_bytes);
  for (size_t done = 0; done < size_bytes;) {
    const size_t piece = std::min(kPieceBytes, size_bytes - done);
    CopyCounting(to + done, from + done, piece, piece);
    done += piece;
    if (done < size_bytes) Pause();
  }
}

void LimitedLink::CopyCounting(std::byte* to, const std::byte* from, size_t size_bytes,
                               size_t counted_bytes) {
  lane_->Copy(to, from, size_bytes);
  done_bytes_ += counted_bytes;
}

void LimitedLink::Pause() {
  if (bytes_per_second_ <= 0) return;
  const std::chrono::duration<double> taken(static_cast<double>(done_bytes_) / bytes_per_second_);
  std::this_thread::sleep_until(
      begin_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(taken));
}

Status LimitedLink::End() {
  const Status done = lane_->Wait();
  Pause();
  return done;
}

}  // namespace convene::runtime
