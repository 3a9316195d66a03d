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
    case GateNormKind::kNone:
      return 1;
    case GateNormKind::kSum: {
      double sum = 0;
      for (int i = 0; i < gate.top_k; ++i) sum += weights[i];
      return static_cast<float>(sum);
    }
    case GateNormKind::kPNorm: {
      if (std::isinf(gate.norm_p)) return *std::max_element(weights, weights + gate.top_k);
      double sum = 0;
      for (int i = 0; i < gate.top_k; ++i) sum += std::pow(double{weights[i]}, gate.norm_p);
      return static_cast<float>(std::pow(sum, 1.0 / gate.norm_p));
    }
  }
  return 1;
}

}  // namespace

void SelectExperts(const Gate& gate, const float* logits, int32_t* experts, float* weights) {
  DCHECK(gate.top_k <= gate.num_experts && gate.top_k <= kMaxTopK);
  int found = 0;  // insertion into a list of the best so far, by decreasing logit
  for (int expert = 0; expert < gate.num_experts; ++expert) {
    int at = found;
    while (at > 0 && logits[expert] > logits[experts[at - 1]]) --at;
    if (at >= gate.top_k) continue;
    found = std::min(found + 1, gate.top_k);
    std::copy_backward(experts + at, experts + found - 1, experts + found);
    experts[at] = expert;
  }
  const float top = logits[experts[0]];
  std::sort(experts, experts + gate.top_k);
  double total = 0;
  for (int expert = 0; expert < gate.num_experts; ++expert) {
    total += std::exp(logits[expert] - top);
  }
  for (int i = 0; i < gate.top_k; ++i) {
    weights[i] = static_cast<float>(std::exp(logits[experts[i]] - top) / total);
  }
  const float norm = NormOf(gate, weights);
  for (int i = 0; i < gate.top_k; ++i) weights[i] /= norm;
}

void SortByExpert(int num_experts, int top_k, std::span<const int32_t> experts,
                  Dispatch* dispatch) {
  const auto num_slots = static_cast<int32_t>(experts.size());
  std::vector<int32_t>& first_slot = dispatch->first_slot;
  first_slot.assign(num_experts + 1, 0);
  for (const int32_t expert : experts) ++first_slot[expert + 1];
  for (int expert = 0; expert < num_experts; ++expert) first_slot[expert + 1] += first_slot[expert];
  dispatch->token_of_slot.resize(num_slots);
  dispatch->slot.resize(num_slots);
  // first_slot moves up while its expert's slots are filled, and is shifted back afterwards.
  for (int32_t i = 0; i < num_slots; ++i) {
    const int32_t slot = first_slot[experts[i]]++;
    dispatch->token_of_slot[slot] = i / top_k;
    dispatch->slot[i] = slot;
  }
  std::copy_backward(first_slot.begin(), first_slot.end() - 1, first_slot.end());
  first_slot[0] = 0;
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
