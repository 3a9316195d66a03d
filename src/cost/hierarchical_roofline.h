// The hierarchical roofline of two tiers of memory (Cao et al., "MoE-Lightning", ASPLOS 2025,
// section 3.2): how fast something can be computed whose data lie in a slow tier j, either there or
// in a fast tier i to which they are moved. Intensities are FLOPs per byte: I_j counts the bytes
// that lie in the slow tier and are read from there, I_i those that the fast tier's processor reads
// from its own memory. Pure arithmetic; what a model computes is planner/offload_model.h.
#pragma once

#include <optional>
#include <string_view>

#include "cost/memory_tiers.h"

namespace convene::cost {

struct TierWork {
  double flops = 0;
  double fast_bytes = 0;  // read from the fast tier where it is computed there
  double slow_bytes =
      0;  // read from the slow tier, by whoever computes; 0: all lie in the fast one

  double fast_intensity() const { return flops / fast_bytes; }
  double slow_intensity() const { return flops / slow_bytes; }
};

struct RooflinePoint {
  double intensity = 0;         // I_j
  double flops_per_second = 0;  // that is reached there
};

// What holds a computation in the fast tier back.
enum class RooflineBound { kFastCompute, kFastMemory, kLink };
std::string_view NameOf(RooflineBound bound);  // "compute", "memory", "link"

class HierarchicalRoofline {
 public:
  // Precondition: rates of the fast tier, and of the link from `slow` up to it.
  HierarchicalRoofline(const MemoryTier& fast, const MemoryTier& slow) : fast_(fast), slow_(slow) {}

  const MemoryTier& fast() const { return fast_; }
  const MemoryTier& slow() const { return slow_; }
  double link() const { return slow_.up_bytes_per_second; }  // B_ji

  // min(P_j, B_j I_j), Eq. 8; none where it is not known how fast the slow tier computes.
  std::optional<double> InSlow(double slow_intensity) const;
  // min(P_i, B_i I_i), Eq. 8: the fast tier as if all data lay there.
  double FastRoof(double fast_intensity) const;
  // min(P_i, B_i I_i, B_ji I_j), Eq. 7, of work whose flops and fast_bytes are above 0.
  double InFast(const TierWork& work) const;
  RooflineBound BoundInFast(const TierWork& work) const;

  // P1, Eq. 9: below it, it is of no use to move the data up. At an intensity of 0 where nothing
  // computes in the slow tier, or the link is no slower than the slow tier's memory.
  std::optional<RooflinePoint> FirstTurningPoint() const;
  // P2, Eq. 10, for work of such an intensity in the fast tier: below it the link is what holds it
  // back.
  RooflinePoint SecondTurningPoint(double fast_intensity) const;
  // Eq. 11, B_i I_i = B_ji I_j: from there on only a higher intensity in the fast tier helps. None
  // where the fast tier's processor is reached before its memory's rate is.
  std::optional<RooflinePoint> BalancePoint(double fast_intensity) const;

 private:
  MemoryTier fast_;
  MemoryTier slow_;
};

}  // namespace convene::cost
