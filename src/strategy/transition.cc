#include "strategy/transition.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "strategy/work.h"

namespace convene::strategy {
namespace {

// Of a layer's experts, how many `sender` has of those that `receiver` is to have.
double Moved(const Roles& from, int sender, const Roles& to, int receiver, int num_experts) {
  const Part has = from.ExpertsOf(sender, num_experts);
  const Part gets = to.ExpertsOf(receiver, num_experts);
  const int end = std::min(has.first + has.size, gets.first + gets.size);
  const int count = end - std::max(has.first, gets.first);
  if (sender == receiver || count <= 0) return 0;
  const ExpertRole& a = *from.of(sender).experts;
  const ExpertRole& b = *to.of(receiver).experts;
  const double slice_end = std::min((a.slice + 1.0) / a.slices, (b.slice + 1.0) / b.slices);
  const double slice_begin = std::max(double(a.slice) / a.slices, double(b.slice) / b.slices);
  return count * std::max(0.0, slice_end - slice_begin);
}

}  // namespace

schedule::Schedule BuildTransition(const model::ModelSpec& spec, const Roles& from, const Roles& to,
                                   double bytes) {
  const int num_ranks = from.num_ranks();
  CHECK(to.num_ranks() == num_ranks, "{} ranks become {}", num_ranks, to.num_ranks());
  schedule::Schedule moves{.num_ranks = num_ranks};
  int num_collectives = 0;
  const auto add_layer = [&](const model::MoeSpec& moe, int layer) {
    const double expert_bytes = ExpertElements(spec, moe) * bytes;
    std::vector<schedule::Work> works(static_cast<size_t>(num_ranks));
    bool moves_something = false;
    for (int rank = 0; rank < num_ranks; ++rank) {
      for (int other = 0; other < num_ranks; ++other) {
        const double sent = Moved(from, rank, to, other, moe.num_experts);
        if (sent > 0) works[rank].link_bytes.push_back({sent * expert_bytes, {.to = other}});
      }
      moves_something = moves_something || !works[rank].link_bytes.empty();
    }
    if (!moves_something) return;
    for (int rank = 0; rank < num_ranks; ++rank) {
      moves.tasks.push_back({.kind = schedule::TaskKind::kMoveExperts,
                             .lane = {rank, schedule::LaneKind::kSend},
                             .layer = layer,
                             .collective = num_collectives,
                             .work = std::move(works[rank])});
    }
    ++num_collectives;
  };
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    const std::optional<model::MoeSpec>& moe = spec.layers[layer].moe;
    if (moe) add_layer(*moe, layer);
  }
  const Status valid = Validate(moves);
  CHECK(valid.ok(), "{}", valid.error().message);
  return moves;
}

}  // namespace convene::strategy
