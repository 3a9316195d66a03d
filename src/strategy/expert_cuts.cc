#include "strategy/expert_cuts.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace convene::strategy {

std::vector<int> ExpertEnds(const Pipeline& pipeline, int num_experts) {
  const int chunks = pipeline.chunks;
  CHECK(pipeline.cuts.empty() || std::ssize(pipeline.cuts) == chunks - 1, "{} cuts of {} chunks",
        pipeline.cuts.size(), chunks);
  std::vector<int> ends;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    int end = num_experts;
    if (pipeline.cuts.empty()) {
      end = static_cast<int>((int64_t{chunk + 1} * num_experts + chunks - 1) / chunks);
    } else if (chunk + 1 < chunks) {
      end = static_cast<int>(std::lround(pipeline.cuts[chunk] * num_experts));
    }
    const int before = ends.empty() ? 0 : ends.back();
    const int least = std::min(before + 1, num_experts);
    const int most = std::max(least, num_experts - (chunks - 1 - chunk));
    ends.push_back(std::clamp(end, least, most));
  }
  return ends;
}

}  // namespace convene::strategy
