// Hierarchical rooflines as pictures: intensity to the right, FLOP/s upwards, both by powers of
// ten; roofs as lines, operations as points and dashed lines. It knows no model and no machine: the
// caller says what lies where.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace convene::drawing {

// min(flops_per_second, bytes_per_second * intensity); one of them may be 0, which is no limit.
struct Roof {
  std::string name;
  double bytes_per_second = 0;
  double flops_per_second = 0;
  std::string colour;  // "#2563eb"
};

// A point, and what leads to it: a dashed line from the axis up to it.
struct RooflineMark {
  std::string name;
  double intensity = 0;         // FLOPs per byte; above 0
  double flops_per_second = 0;  // above 0
  std::string colour;
  // Also a level line from the point to the right: what is reached at a higher intensity, too.
  bool is_level = false;
};

struct RooflineChart {
  std::string title;
  std::vector<Roof> roofs;
  std::vector<RooflineMark> marks;
};

// SVG, the charts below each other, each with its own axes. Marks of no intensity or speed are left
// out.
std::string RooflineSvg(std::span<const RooflineChart> charts);

}  // namespace convene::drawing
