#include "kernels/route.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace convene::kernels {
namespace {

float NormOf(const Gate& gate, const float* weights) {
  switch (gate.norm) {
    case GateNorm::kNone:
      return 1;
    case GateNorm::kSum: {
      double sum = 0;
      for (int i = 0; i < gate.top_k; ++i) sum += weights[i];
      return static_cast<float>(sum + 1e-20);  // sigmoids of very negative logits may all be zero
    }
    case GateNorm::kPNorm: {
      if (std::isinf(gate.norm_p)) return *std::max_element(weights, weights + gate.top_k);
      double sum = 0;
      for (int i = 0; i < gate.top_k; ++i) sum += std::pow(double{weights[i]}, gate.norm_p);
      return static_cast<float>(std::pow(sum, 1.0 / gate.norm_p));
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
void Choose(const Gate& gate, const Value& value, int32_t* experts) {
  if (gate.num_groups == gate.top_groups) {
    TakeLargest(value, 0, gate.num_experts, gate.top_k, experts, 0);
    std::sort(experts, experts + gate.top_k);
    return;
  }
  DCHECK(gate.num_experts % gate.num_groups == 0 && gate.top_groups <= kMaxTopK);
  const int size = gate.num_experts / gate.num_groups;
  const auto group_value = [&](int group) {
    int32_t best[2];
    const int found = TakeLargest(value, group * size, (group + 1) * size, 2, best, 0);
    if (gate.group_score == GroupScore::kMax || found < 2) return value(best[0]);
    return value(best[0]) + value(best[1]);
  };
  std::array<int32_t, kMaxTopK> groups;
  TakeLargest(group_value, 0, gate.num_groups, gate.top_groups, groups.data(), 0);
  std::sort(groups.begin(), groups.begin() + gate.top_groups);
  int found = 0;
  for (int i = 0; i < gate.top_groups; ++i) {
    const int first = groups[i] * size;
    found = TakeLargest(value, first, first + size, gate.top_k, experts, found);
  }
  DCHECK(found == gate.top_k);
  std::sort(experts, experts + gate.top_k);
}

// Softmax keeps the order of the logits, so only the chosen experts' scores are computed.
void SelectBySoftmax(const Gate& gate, const float* logits, int32_t* experts, float* weights) {
  Choose(
      gate, [&](int expert) { return logits[expert]; }, experts);
  const float top = *std::max_element(logits, logits + gate.num_experts);
  double total = 0;
  for (int expert = 0; expert < gate.num_experts; ++expert) {
    total += std::exp(logits[expert] - top);
  }
  for (int i = 0; i < gate.top_k; ++i) {
    weights[i] = static_cast<float>(std::exp(logits[experts[i]] - top) / total);
  }
}

// The scores replace the logits; float32, as ties and corrections are decided among floats.
void SelectBySigmoid(const Gate& gate, float* logits, int32_t* experts, float* weights) {
  float total = 0;
  for (int expert = 0; expert < gate.num_experts; ++expert) {
    logits[expert] = static_cast<float>(1 / (1 + std::exp(-double{logits[expert]})));
    total += logits[expert];
  }
  const auto value = [&](int expert) {
    return gate.correction != nullptr ? logits[expert] + gate.correction[expert] : logits[expert];
  };
  Choose(gate, value, experts);
  for (int i = 0; i < gate.top_k; ++i) weights[i] = logits[experts[i]];
  // An expert whose score is NaN is not chosen; the token's result shall tell of it all the same.
  if (std::isnan(total)) std::fill_n(weights, gate.top_k, total);
}

}  // namespace

void SelectExperts(const Gate& gate, float* logits, int32_t* experts, float* weights) {
  DCHECK(gate.top_k <= gate.num_experts && gate.top_k <= kMaxTopK);
  if (gate.score == RouterScore::kSigmoid) {
    SelectBySigmoid(gate, logits, experts, weights);
  } else {
    DCHECK(gate.correction == nullptr);
    SelectBySoftmax(gate, logits, experts, weights);
  }
  const float norm = NormOf(gate, weights);
  for (int i = 0; i < gate.top_k; ++i) weights[i] = weights[i] / norm * gate.scale;
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
