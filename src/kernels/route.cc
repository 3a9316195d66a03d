#include "kernels/route.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace convene::kernels {
namespace {

float NormOf(const Router& router, const float* weights) {
  switch (router.norm) {
    case RouterNorm::kNone:
      return 1;
    case RouterNorm::kSum: {
      double sum = 0;
      for (int i = 0; i < router.top_k; ++i) sum += weights[i];
      return static_cast<float>(sum + 1e-20);  // sigmoids of very negative logits may all be zero
    }
    case RouterNorm::kPNorm: {
      if (std::isinf(router.norm_p)) return *std::max_element(weights, weights + router.top_k);
      double sum = 0;
      for (int i = 0; i < router.top_k; ++i) sum += std::pow(double{weights[i]}, router.norm_p);
      return static_cast<float>(std::pow(sum, 1.0 / router.norm_p));
    }
  }
  return 1;
}

// The `wanted` indices in [begin, end) with the largest value(index), by decreasing value, the
// lowest index first on ties. The best of what came before, `found` of them, are in `best`; returns
// how many there are now.
template <typename Value>
int TakeLargest(const Value& value, int begin, int end, int wanted, int32_t* best, int found) {
  for (int index = begin; index < end; ++index) {
    int at = found;
    while (at > 0 && value(index) > value(best[at - 1])) --at;
    if (at >= wanted) continue;
    found = std::min(found + 1, wanted);
    std::copy_backward(best + at, best + found - 1, best + found);
    best[at] = index;
  }
  return found;
}

// The chosen experts in increasing order; the largest value(expert) is the best.
template <typename Value>
void Choose(const Router& router, const Value& value, int32_t* experts) {
  if (router.num_expert_groups == router.top_expert_groups) {
    TakeLargest(value, 0, router.num_experts, router.top_k, experts, 0);
    std::sort(experts, experts + router.top_k);
    return;
  }
  DCHECK(router.num_experts % router.num_expert_groups == 0 &&
         router.top_expert_groups <= kMaxTopK);
  const int size = router.num_experts / router.num_expert_groups;
  const auto group_value = [&](int group) {
    int32_t best[2];
    const int found = TakeLargest(value, group * size, (group + 1) * size, 2, best, 0);
    if (router.group_score == GroupScore::kMax || found < 2) return value(best[0]);
    return value(best[0]) + value(best[1]);
  };
  std::array<int32_t, kMaxTopK> groups;
  TakeLargest(group_value, 0, router.num_expert_groups, router.top_expert_groups, groups.data(), 0);
  std::sort(groups.begin(), groups.begin() + router.top_expert_groups);
  int found = 0;
  for (int i = 0; i < router.top_expert_groups; ++i) {
    const int first = groups[i] * size;
    found = TakeLargest(value, first, first + size, router.top_k, experts, found);
  }
  DCHECK(found == router.top_k);
  std::sort(experts, experts + router.top_k);
}

// Softmax keeps the order of the logits, so only the chosen experts' scores are computed.
void SelectBySoftmax(const Router& router, const float* logits, int32_t* experts, float* weights) {
  Choose(
      router, [&](int expert) { return logits[expert]; }, experts);
  const float top = *std::max_element(logits, logits + router.num_experts);
  double total = 0;
  for (int expert = 0; expert < router.num_experts; ++expert) {
    total += std::exp(logits[expert] - top);
  }
  for (int i = 0; i < router.top_k; ++i) {
    weights[i] = static_cast<float>(std::exp(logits[experts[i]] - top) / total);
  }
}

// The scores replace the logits; float32, as ties and corrections are decided among floats.
void SelectBySigmoid(const Router& router, float* logits, int32_t* experts, float* weights) {
  float total = 0;
  for (int expert = 0; expert < router.num_experts; ++expert) {
    logits[expert] = static_cast<float>(1 / (1 + std::exp(-double{logits[expert]})));
    total += logits[expert];
  }
  const auto value = [&](int expert) {
    return router.correction != nullptr ? logits[expert] + router.correction[expert]
                                        : logits[expert];
  };
  Choose(router, value, experts);
  for (int i = 0; i < router.top_k; ++i) weights[i] = logits[experts[i]];
  // An expert whose score is NaN is not chosen; the token's result shall tell of it all the same.
  if (std::isnan(total)) std::fill_n(weights, router.top_k, total);
}

}  // namespace

void SelectExperts(const Router& router, float* logits, int32_t* experts, float* weights) {
  DCHECK(router.top_k <= router.num_experts && router.top_k <= kMaxTopK);
  if (router.score == RouterScore::kSigmoid) {
    SelectBySigmoid(router, logits, experts, weights);
  } else {
    DCHECK(router.correction == nullptr);
    SelectBySoftmax(router, logits, experts, weights);
  }
  const float norm = NormOf(router, weights);
  for (int i = 0; i < router.top_k; ++i) weights[i] = weights[i] / norm * router.scale;
}

void TreeMerges(const int32_t* experts, int count, Merge* merges) {
  DCHECK(count <= kMaxTopK);
  // Sums still open, the leftmost leaf of each and the level at which it meets its right neighbour.
  struct Open {
    int16_t leaf;
    int level;
  };
  std::array<Open, kMaxTopK> open;
  int depth = 0;
  int written = 0;
  for (int i = 0; i < count; ++i) {
    const int level = i + 1 < count
                          ? std::bit_width(static_cast<uint32_t>(experts[i] ^ experts[i + 1]))
                          : std::numeric_limits<int>::max();
    auto leaf = static_cast<int16_t>(i);
    while (depth > 0 && open[depth - 1].level < level) {
      --depth;
      merges[written++] = {open[depth].leaf, leaf};
      leaf = open[depth].leaf;
    }
    open[depth++] = {leaf, level};
  }
  DCHECK(written == std::max(0, count - 1));
}

}  // namespace convene::kernels
