#include "planner/disaggregated_turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "planner/disaggregated_layouts.h"

namespace convene::planner {
namespace {

using strategy::AttentionOrder;
using strategy::Pipeline;

// Layouts whose turns are searched, of all setups.
constexpr size_t kMostTurns = 6;
// What is so much slower than the best plan as proposed is not searched.
constexpr double kMostGain = 1.25;
// A number is varied in one direction until so many in a row are no better.
constexpr int kMostWorseTurns = 2;

constexpr double kWorstScore = std::numeric_limits<double>::infinity();
constexpr auto kFine = plan::DisaggregatedStrategy::kFine;

bool HasSharedExpert(const model::ModelSpec& spec) {
  return std::ranges::any_of(spec.layers, [](const model::LayerSpec& layer) {
    return layer.moe && layer.moe->shared_intermediate_size > 0;
  });
}

bool IsOfLayout(const Candidate& a, const Candidate& b) {
  return a.setup == b.setup && a.plan.layout == b.plan.layout && a.plan.wire == b.plan.wire;
}

// Numbers of chunks that are tried from any other one.
std::vector<int> ChunksToTry(int from) {
  std::vector<int> chunks = {1, 2, 3, 4, 6, 8, 12, 16, 24, kMostSolvedChunks};
  for (const int near : {from - 1, from, from + 1}) {
    if (near >= 1 && near <= kMostSolvedChunks) chunks.push_back(near);
  }
  std::ranges::sort(chunks);
  const auto twice = std::ranges::unique(chunks);
  chunks.erase(twice.begin(), twice.end());
  return chunks;
}

// Of the plans of one layout, from the best on. Of plans with lines it is the most that a step may
// have that is varied: lines that promise too much of more are kept from it.
class TurnsOfLayout {
 public:
  // Of plans with these lines, or none.
  TurnsOfLayout(PlanSearch& search, Candidate base, std::vector<plan::LaneLines> lines)
      : search_(search),
        base_(std::move(base)),
        wanted_(WantedTurnsOf(search)),
        has_orders_(lines.empty() && HasSharedExpert(search.question().spec)) {
    base_.figures.reset();
    base_.plan.lines = std::move(lines);
    for (const Candidate& one : search.candidates()) {
      if (!IsOfLayout(one, base_) || one.plan.lines != base_.plan.lines) continue;
      const double score = one.is_ranked() ? one.figures->score : kWorstScore;
      known_.emplace_back(one.plan.pipeline, score);
      if (score >= best_score_) continue;
      best_score_ = score;
      best_ = one.plan.pipeline;
    }
  }

  const Pipeline& best() const { return best_; }

  // Also from these turns on.
  void Search(const std::optional<Pipeline>& other = {}) {
    if (best_score_ == kWorstScore) return;
    if (other) Try({.chunks = other->chunks, .micro_batches = other->micro_batches});
    for (bool is_better = true; is_better;) {
      is_better = VaryMicroBatches();
      is_better = VaryChunks() || is_better;
      is_better = VaryBoth() || is_better;
      is_better = VaryOrder() || is_better;
      is_better = VaryChunksOfWholeSteps() || is_better;
    }
  }

 private:
  // Infinity: there is no such plan.
  double ScoreOf(const Pipeline& pipeline) {
    const auto is_same = [&](const auto& each) { return each.first == pipeline; };
    const auto known = std::ranges::find_if(known_, is_same);
    if (known != known_.end()) return known->second;
    if (!wanted_.Has(pipeline)) return kWorstScore;
    Candidate candidate = base_;
    candidate.plan.pipeline = pipeline;
    AddPriced(search_, std::move(candidate));
    const Candidate& added = search_.candidates().back();
    return known_.emplace_back(pipeline, added.is_ranked() ? added.figures->score : kWorstScore)
        .second;
  }

  bool Try(const Pipeline& pipeline) {
    const double score = ScoreOf(pipeline);
    if (score >= best_score_) return false;
    best_score_ = score;
    best_ = pipeline;
    return true;
  }

  // `start` with one number after the other, until so many in a row are no better than the best of
  // these; `least`: its score so far.
  template <class Numbers, class Set>
  bool Walk(const Numbers& numbers, const Pipeline& start, double least, const Set& set) {
    bool is_better = false;
    int worse = 0;
    for (const int number : numbers) {
      Pipeline pipeline = start;
      set(number, pipeline);
      const double score = ScoreOf(pipeline);
      worse = score < least ? 0 : worse + 1;
      least = std::min(least, score);
      is_better = Try(pipeline) || is_better;
      if (worse == kMostWorseTurns) break;
    }
    return is_better;
  }

  // From the best on `numbers` on both sides of `from`.
  template <class Set>
  bool Vary(const std::vector<int>& numbers, int from, const Set& set) {
    const Pipeline start = best_;
    const double least = best_score_;
    const auto middle = std::ranges::lower_bound(numbers, from);
    const auto after = std::ranges::upper_bound(numbers, from);
    const bool up = Walk(std::ranges::subrange(after, numbers.end()), start, least, set);
    const bool down =
        Walk(std::ranges::subrange(std::make_reverse_iterator(middle), numbers.rend()), start,
             least, set);
    return up || down;
  }

  // PPPipe and naive have one.
  static void SetChunks(int number, Pipeline& pipeline) {
    pipeline.chunks = number;
    if (number > 1) pipeline.dispatch_after_shared = false;
  }

  bool VaryMicroBatches() {
    if (wanted_.micro_batches) return false;
    std::vector<int> numbers;
    for (int number = 1; number <= kMostSolvedMicroBatches; ++number) numbers.push_back(number);
    return Vary(numbers, best_.micro_batches,
                [](int number, Pipeline& pipeline) { pipeline.micro_batches = number; });
  }

  bool VaryChunks() {
    if (wanted_.chunks) return false;
    return Vary(ChunksToTry(best_.chunks), best_.chunks, SetChunks);
  }

  // Of a step that is one micro-batch, which reads weights once.
  bool VaryChunksOfWholeSteps() {
    if (wanted_.micro_batches || wanted_.chunks || best_.micro_batches == 1) return false;
    Pipeline whole = best_;
    whole.micro_batches = 1;
    return Walk(ChunksToTry(1), whole, kWorstScore, SetChunks);
  }

  // More of the one for less of the other: as many parts in all, or next to. Either way alone may
  // be uphill.
  bool VaryBoth() {
    if (wanted_.micro_batches || wanted_.chunks) return false;
    const Pipeline start = best_;
    const int r1 = start.micro_batches;
    const int r2 = start.chunks;
    bool is_better = false;
    for (const auto& [micro_batches, chunks] : std::array<std::pair<int, int>, 4>{
             {{r1 / 2, r2 * 2}, {r1 * 2, r2 / 2}, {r1 - 1, r2 + 1}, {r1 + 1, r2 - 1}}}) {
      const bool is_possible = micro_batches >= 1 && micro_batches <= kMostSolvedMicroBatches &&
                               chunks >= 1 && chunks <= kMostSolvedChunks;
      if (!is_possible) continue;
      Pipeline pipeline = start;
      pipeline.micro_batches = micro_batches;
      SetChunks(chunks, pipeline);
      is_better = Try(pipeline) || is_better;
    }
    return is_better;
  }

  // Without shared experts all are the same.
  bool VaryOrder() {
    if (!has_orders_) return false;
    const Pipeline start = best_;
    bool is_better = false;
    struct Order {
      AttentionOrder order = AttentionOrder::kAsas;
      bool after_shared = false;
    };
    for (const Order& each : {Order{}, Order{AttentionOrder::kAass},
                              Order{AttentionOrder::kAsas, /*after_shared=*/true}}) {
      if (each.after_shared && start.chunks > 1) continue;
      Pipeline pipeline = start;
      pipeline.order = each.order;
      pipeline.dispatch_after_shared = each.after_shared;
      is_better = Try(pipeline) || is_better;
    }
    return is_better;
  }

  PlanSearch& search_;
  Candidate base_;
  const WantedTurns wanted_;
  const bool has_orders_;
  std::vector<std::pair<Pipeline, double>> known_;  // with scores
  Pipeline best_ = {};
  double best_score_ = kWorstScore;
};

// Of each setup and layout the best candidate as proposed, by its place in the search; those that
// may be chosen first, then by score.
std::vector<size_t> BestOfLayouts(PlanSearch& search) {
  const std::vector<Candidate>& all = search.candidates();
  std::vector<size_t> best;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].plan.layout.disaggregates || !all[i].is_ranked()) continue;
    const auto same =
        std::ranges::find_if(best, [&](size_t other) { return IsOfLayout(all[other], all[i]); });
    if (same == best.end()) {
      best.push_back(i);
    } else if (all[i].figures->score < all[*same].figures->score) {
      *same = i;
    }
  }
  std::ranges::stable_sort(best, [&](size_t a, size_t b) {
    if (all[a].is_allowed() != all[b].is_allowed()) return all[a].is_allowed();
    return all[a].figures->score < all[b].figures->score;
  });
  return best;
}

// With fixed turns, and with those that are solved for each step.
void RefineLayout(PlanSearch& search, const Candidate& of_layout) {
  const Candidate base = of_layout;
  const auto solved = std::ranges::find_if(search.candidates(), [&](const Candidate& one) {
    return one.is_ranked() && IsOfLayout(one, base) && !one.plan.lines.empty();
  });
  std::vector<plan::LaneLines> lines;
  if (solved != search.candidates().end()) lines = solved->plan.lines;
  TurnsOfLayout fixed(search, base, {});
  fixed.Search();
  if (!lines.empty()) TurnsOfLayout(search, base, std::move(lines)).Search(fixed.best());
}

}  // namespace

bool WantedTurns::allow_lines() const {
  return !micro_batches && !chunks && !order && strategy.value_or(kFine) == kFine;
}

bool WantedTurns::Has(const Pipeline& pipeline) const { return Adapt(pipeline) == pipeline; }

Pipeline WantedTurns::Adapt(Pipeline pipeline) const {
  pipeline.micro_batches = micro_batches.value_or(pipeline.micro_batches);
  pipeline.chunks = chunks.value_or(pipeline.chunks);
  pipeline.order = order.value_or(pipeline.order);
  // A shared expert directly behind attention is no order of its own.
  if (order == AttentionOrder::kAass) pipeline.dispatch_after_shared = false;
  if (!strategy) return pipeline;
  pipeline.dispatch_after_shared = *strategy != kFine;
  if (*strategy == kFine) return pipeline;
  pipeline.chunks = 1;
  pipeline.order = AttentionOrder::kAsas;
  if (*strategy == plan::DisaggregatedStrategy::kNaive) {
    pipeline.micro_batches = 1;
  } else if (!micro_batches) {
    pipeline.micro_batches = std::max(2, pipeline.micro_batches);
  }
  return pipeline;
}

WantedTurns WantedTurnsOf(const PlanSearch& search) {
  const Constraints& constraints = search.question().constraints;
  WantedTurns wanted{.micro_batches = constraints.micro_batches,
                     .strategy = constraints.strategy,
                     .order = constraints.order};
  if (constraints.pipeline) wanted.chunks = constraints.pipeline->chunks;
  return wanted;
}

void AddPriced(PlanSearch& search, Candidate candidate) {
  Candidate* const added = search.Add(std::move(candidate));
  if (added != nullptr && search.CheckMemory(*added)) search.Price(*added);
}

void RefineTurns(PlanSearch& search) {
  const std::vector<size_t> layouts = BestOfLayouts(search);
  const Candidate* best = search.Best();
  const double least = best != nullptr ? best->figures->score : kWorstScore;
  size_t num_refined = 0;
  for (const size_t i : layouts) {
    Candidate& candidate = search.candidates()[i];
    // The best that may be chosen is told beside the chosen plan, however far behind it is.
    const bool is_told = i == layouts.front();
    if (!is_told && candidate.figures->score > kMostGain * least) {
      candidate.not_refined = fmt::format("it is {:.1f} % slower than the best plan as proposed",
                                          100 * (candidate.figures->score / least - 1));
    } else if (num_refined == kMostTurns) {
      candidate.not_refined = fmt::format("{} others are faster as proposed", kMostTurns);
    } else {
      ++num_refined;
      RefineLayout(search, candidate);
    }
  }
}

}  // namespace convene::planner
