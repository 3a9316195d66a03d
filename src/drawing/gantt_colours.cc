#include "drawing/gantt_colours.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace convene::drawing {

namespace {

using enum schedule::TaskKind;

struct KindColour {
  schedule::TaskKind kind;
  std::string_view colour;
};

// Work in warm colours and blues, communication in greens and violets, copies in browns.
constexpr KindColour kColours[] = {
    {kEmbed, "#64748b"},       {kHead, "#64748b"},          {kJoinLogits, "#64748b"},
    {kAttention, "#2563eb"},   {kPreAttention, "#2563eb"},  {kNormalize, "#0ea5e9"},
    {kProject, "#0ea5e9"},     {kCrossStore, "#0ea5e9"},    {kAttend, "#7dd3fc"},
    {kAddPartials, "#1e3a8a"}, {kFinish, "#1e3a8a"},        {kPostAttention, "#f97316"},
    {kExperts, "#f97316"},     {kDense, "#b91c1c"},         {kShared, "#facc15"},
    {kRoute, "#db2777"},       {kReduce, "#fda4af"},        {kDispatch, "#16a34a"},
    {kSendHidden, "#16a34a"},  {kCombine, "#9333ea"},       {kSendQkv, "#9333ea"},
    {kCounts, "#111827"},      {kPassRows, "#0f766e"},      {kGatherNormed, "#0f766e"},
    {kGatherRows, "#0f766e"},  {kGatherLogits, "#0f766e"},  {kScatterSums, "#c084fc"},
    {kNormSums, "#c084fc"},    {kMoveExperts, "#92400e"},   {kLoadExperts, "#92400e"},
    {kLoadPage, "#92400e"},    {kStagePage, "#d6a77a"},     {kReadPages, "#92400e"},
    {kReadChosen, "#92400e"},  {kReadPredicted, "#d6a77a"}, {kReadNext, "#d6a77a"},
    {kReadKv, "#92400e"},      {kWriteKv, "#16a34a"},
};
static_assert(std::size(kColours) == schedule::kNumTaskKinds);

}  // namespace

std::string_view Colour(schedule::TaskKind kind) {
  return std::ranges::find(kColours, kind, &KindColour::kind)->colour;
}

bool IsDark(std::string_view colour) {
  const auto channel = [&](size_t place) {
    return std::stoi(std::string(colour.substr(place, 2)), nullptr, 16);
  };
  return 299 * channel(1) + 587 * channel(3) + 114 * channel(5) < 150'000;
}

}  // namespace convene::drawing
