#include "cost/hierarchical_roofline.h"

#include <algorithm>

namespace convene::cost {

std::string_view NameOf(RooflineBound bound) {
  switch (bound) {
    case RooflineBound::kFastCompute:
      return "compute";
    case RooflineBound::kFastMemory:
      return "memory";
    case RooflineBound::kLink:
      return "link";
  }
  return "";
}

std::optional<double> HierarchicalRoofline::InSlow(double slow_intensity) const {
  if (!slow_.flops) return std::nullopt;
  return std::min(*slow_.flops, slow_.bytes_per_second * slow_intensity);
}

double HierarchicalRoofline::FastRoof(double fast_intensity) const {
  return std::min(*fast_.flops, fast_.bytes_per_second * fast_intensity);
}

double HierarchicalRoofline::InFast(const TierWork& work) const {
  const double roof = FastRoof(work.fast_intensity());
  return work.slow_bytes > 0 ? std::min(roof, link() * work.slow_intensity()) : roof;
}

RooflineBound HierarchicalRoofline::BoundInFast(const TierWork& work) const {
  const double reached = InFast(work);
  if (work.slow_bytes > 0 && link() * work.slow_intensity() <= reached) return RooflineBound::kLink;
  return *fast_.flops <= reached ? RooflineBound::kFastCompute : RooflineBound::kFastMemory;
}

std::optional<RooflinePoint> HierarchicalRoofline::FirstTurningPoint() const {
  if (!slow_.flops) return std::nullopt;
  if (*slow_.flops <= 0 || slow_.bytes_per_second <= link()) return RooflinePoint{};
  return RooflinePoint{*slow_.flops / link(), *slow_.flops};
}

RooflinePoint HierarchicalRoofline::SecondTurningPoint(double fast_intensity) const {
  const double roof = FastRoof(fast_intensity);
  return {roof / link(), roof};
}

std::optional<RooflinePoint> HierarchicalRoofline::BalancePoint(double fast_intensity) const {
  const double memory_roof = fast_.bytes_per_second * fast_intensity;
  if (memory_roof > *fast_.flops) return std::nullopt;
  return RooflinePoint{memory_roof / link(), memory_roof};
}

}  // namespace convene::cost
