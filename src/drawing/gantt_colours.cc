#include "drawing/gantt_colours.h"

#include <string>

namespace convene::drawing {

using schedule::TaskKind;

// Work in warm colours and blues, communication in greens and violets, copies in browns.
std::string_view Colour(TaskKind kind) {
  switch (kind) {
    case TaskKind::kEmbed:
    case TaskKind::kHead:
      return "#64748b";
    case TaskKind::kAttention:
    case TaskKind::kPreAttention:
      return "#2563eb";
    case TaskKind::kNormalize:
    case TaskKind::kProject:
    case TaskKind::kCrossStore:
      return "#0ea5e9";
    case TaskKind::kAttend:
      return "#7dd3fc";
    case TaskKind::kAddPartials:
    case TaskKind::kFinish:
      return "#1e3a8a";
    case TaskKind::kPostAttention:
    case TaskKind::kExperts:
      return "#f97316";
    case TaskKind::kDense:
      return "#b91c1c";
    case TaskKind::kShared:
      return "#facc15";
    case TaskKind::kRoute:
      return "#db2777";
    case TaskKind::kReduce:
      return "#fda4af";
    case TaskKind::kDispatch:
    case TaskKind::kSendHidden:
      return "#16a34a";
    case TaskKind::kCombine:
    case TaskKind::kSendQkv:
      return "#9333ea";
    case TaskKind::kCounts:
      return "#111827";
    case TaskKind::kGatherNormed:
    case TaskKind::kGatherRows:
      return "#0f766e";
    case TaskKind::kScatterSums:
    case TaskKind::kNormSums:
      return "#c084fc";
    case TaskKind::kMoveExperts:
    case TaskKind::kLoadPage:
      return "#92400e";
    case TaskKind::kStagePage:
      return "#d6a77a";
  }
  return "#000000";
}

bool IsDark(std::string_view colour) {
  const auto channel = [&](size_t place) {
    return std::stoi(std::string(colour.substr(place, 2)), nullptr, 16);
  };
  return 299 * channel(1) + 587 * channel(3) + 114 * channel(5) < 150'000;
}

}  // namespace convene::drawing
