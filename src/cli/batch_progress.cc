#include "cli/batch_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace convene::cli {
namespace {

constexpr auto kLogInterval = std::chrono::minutes(1);

// "45 s", "2 min 10 s", "3 h 20 min".
std::string DescribeDuration(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

}  // namespace

std::string DescribeProgress(int64_t num_done, int64_t num_requests, int64_t num_tokens,
                             double elapsed_s) {
  std::string line = fmt::format("batch: {} of {} requests done, {:.1f} tokens/s",
                                 FormatCount(static_cast<uint64_t>(num_done)),
                                 FormatCount(static_cast<uint64_t>(num_requests)),
                                 static_cast<double>(num_tokens) / std::max(elapsed_s, 1e-9));
  if (num_done == 0) return line;
  const double seconds_each = elapsed_s / static_cast<double>(num_done);
  return line +
         fmt::format(", {} left",
                     DescribeDuration(seconds_each * static_cast<double>(num_requests - num_done)));
}

BatchProgress::BatchProgress(int64_t num_requests)
    : num_requests_(num_requests), line_(kLogInterval) {}

void BatchProgress::Update(int64_t num_done, int64_t num_tokens) {
  if (!line_.IsDue()) return;
  const std::chrono::duration<double> elapsed = ProgressLine::Clock::now() - start_;
  line_.Show(DescribeProgress(num_done, num_requests_, num_tokens, elapsed.count()));
}

}  // namespace convene::cli
