#include "planner/hybrid_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/units.h"
#include "planner/cbc/solve_hybrid.h"
#include "planner/hybrid_search.h"

namespace convene::planner {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Of each setup, beside the solver's optimum: faster than one division, and so alternatives.
constexpr size_t kMostRunnersUp = 3;

// All at once, and prompts and answers both count: what a plan of one division takes is then the
// sum of two tables, by phase.
Workload WorkloadOfTables(PlanSearch& search) {
  Workload workload = search.question().workload;
  if (search.Best() != nullptr) workload.batch = search.Best()->figures->batch;
  workload.arrival_rate = 0;
  workload.objective = Objective::kThroughput;
  return workload;
}

// Steps of an epoch in a mixed stream. Moving experts takes `move` of each, a step `step`, and a
// prompt waits half an epoch: what a request of so many steps takes is least where
// n step / 2 + steps move / n is.
int EpochStepsOfStream(double move, double step, double steps) {
  if (!(step > 0)) return 1;
  return std::clamp(static_cast<int>(std::lround(std::sqrt(2 * steps * move / step))), 1,
                    plan::kMostEpochSteps);
}

// Where all requests are there at once.
int EpochStepsAtOnce(double steps) {
  return std::clamp(static_cast<int>(std::lround(steps)), 1, plan::kMostEpochSteps);
}

bool IsStream(const PlanSearch& search) { return search.question().workload.arrival_rate > 0; }

// Prompts wait for the end of an epoch: shorter ones, where limits ask for it.
void MeetLimits(PlanSearch& search, const RankSetup& setup, plan::Plan& plan) {
  const Workload& workload = search.question().workload;
  if (!IsStream(search) || workload.objective != Objective::kGoodput) return;
  plan::Plan shorter = plan;
  for (int& steps = shorter.phase_change.epoch_steps; steps >= 1; steps /= 2) {
    if (!search.FiguresOf(setup, shorter, workload)) continue;
    plan = shorter;
    return;
  }
}

// The program of one setup.
class HybridPass {
 public:
  HybridPass(PlanSearch& search, const RankSetup& setup, const Workload& workload)
      : search_(search), setup_(setup), workload_(workload) {}

  void Run() {
    ListStrategies();
    if (experts_.size() < 2) return;
    if (!PricePairs()) return;
    SetPhases();
    if (CannotWin()) return;
    SetTransitions();
    const double began = search_.question().clock();
    const Result<std::optional<HybridTriple>> solved = SolveHybrid(program_);
    search_.AddSolverSeconds(search_.question().clock() - began);
    // Tables that do not fit together are our own mistake; no optimum: no layout is possible.
    CHECK(solved.ok(), "the integer program: {}", solved.error().message);
    if (*solved) AddCandidates(**solved);
  }

 private:
  // How a triple comes from one division to the other, or why it cannot.
  struct Way {
    plan::Plan plan = {};
    RankMemory memory = {};
    double seconds = kNever;  // of all moves of a batch
    std::string rejected = {};
    // Where another way takes as long or longer: that one, if it is possible. Of both divisions in
    // memory the fastest way with less, of a backup that between the ranks.
    std::optional<std::pair<plan::Plan, RankMemory>> other = {};
  };

  void ListStrategies() {
    memory_limit_ = search_.question().memory_per_rank(setup_.num_ranks);
    for (const Candidate& candidate : search_.candidates()) {
      const strategy::Layout& layout = candidate.plan.layout;
      if (candidate.setup != setup_ || candidate.plan.decode || !layout.expert_weights.empty() ||
          layout.stages > 1 || layout.divides_head || candidate.plan.experts_in_memory ||
          candidate.rejected_by == "asked") {
        continue;
      }
      usual_ = candidate.plan;
      attention_.insert(layout.attention_tp);
      experts_.insert(layout.expert_tp);
      pairs_[{layout.attention_tp, layout.expert_tp}] = candidate;
    }
  }

  static int At(const std::set<int>& degrees, int i) { return *std::next(degrees.begin(), i); }

  const Candidate* PairOf(int a, int e) const {
    const auto found = pairs_.find({At(attention_, a), At(experts_, e)});
    return found == pairs_.end() ? nullptr : &found->second;
  }

  strategy::Layout LayoutOf(int a, int e) const {
    const int attention = At(attention_, a);
    const int slices = At(experts_, e);
    return {.attention_tp = attention,
            .attention_dp = setup_.num_ranks / attention,
            .expert_ep = setup_.num_ranks / slices,
            .expert_tp = slices};
  }

  int num_attention() const { return static_cast<int>(attention_.size()); }
  int num_experts() const { return static_cast<int>(experts_.size()); }

  // Figures of one division for the tables' workload: those of the search, where it is its own.
  bool PricePairs() {
    const bool is_same = workload_ == search_.question().workload;
    bool any = false;
    for (auto& [degrees, pair] : pairs_) {
      if (pair.rejected_by.empty() && is_same) {
        any = any || pair.figures.has_value();
        continue;
      }
      pair.figures.reset();
      // What does not fit memory in one division does not in two.
      if (!pair.rejected_by.empty() && pair.rejected_by != "prices") continue;
      const Result<PlanFigures> figures = search_.FiguresOf(setup_, pair.plan, workload_);
      if (figures) {
        pair.figures = *figures;
      } else {
        pair.reason = figures.error().message;
      }
      any = any || pair.figures.has_value();
    }
    return any;
  }

  // Whole phases were simulated: attention has what it takes with the experts that are fastest
  // beside it, and what is between both has the rest.
  PhaseCosts TableOf(double PlanFigures::*seconds) const {
    PhaseCosts costs{
        .attention = {}, .experts = std::vector<double>(experts_.size(), 0), .between = {}};
    for (int a = 0; a < num_attention(); ++a) {
      std::vector<double> of_pairs(experts_.size(), 0);
      double least = kNever;
      for (int e = 0; e < num_experts(); ++e) {
        const Candidate* pair = PairOf(a, e);
        if (pair == nullptr || !pair->figures) continue;
        of_pairs[e] = *pair->figures.*seconds;
        least = std::min(least, of_pairs[e]);
      }
      if (!std::isfinite(least)) least = 0;
      for (double& of_pair : of_pairs) of_pair -= least;
      costs.attention.push_back(least);
      costs.between.push_back(std::move(of_pairs));
    }
    return costs;
  }

  void SetPhases() {
    program_.num_layers = 1;  // whole steps
    program_.prefill_steps = 1;
    program_.decode_steps = workload_.mean_gen_tokens() - 1;  // the first token is prefill's
    program_.prefill = TableOf(&PlanFigures::ttft);
    program_.decode = TableOf(&PlanFigures::time_per_token);
  }

  // Whether other ranks with one division are faster than any two divisions of these, even if
  // nothing had to move: then the pair that would be best is rejected for all.
  bool CannotWin() {
    HybridTriple best = {-1, 0, 0};
    double least = kNever;
    for (int a = 0; a < num_attention(); ++a) {
      for (int p = 0; p < num_experts(); ++p) {
        for (int d = 0; d < num_experts(); ++d) {
          const Candidate* first = PairOf(a, p);
          const Candidate* second = PairOf(a, d);
          if (p == d || first == nullptr || second == nullptr) continue;
          if (!first->figures || !second->figures) continue;
          const double seconds =
              first->figures->ttft + program_.decode_steps * second->figures->time_per_token;
          if (seconds >= least) continue;
          least = seconds;
          best = {a, p, d};
        }
      }
    }
    if (best.attention < 0) return true;
    const double score = least / (workload_.batch * workload_.mean_gen_tokens());
    const Candidate* fastest = nullptr;
    for (const Candidate& other : search_.candidates()) {
      if (!other.is_ranked() || other.setup.weights != setup_.weights) continue;
      if (fastest == nullptr || other.figures->score < fastest->figures->score) fastest = &other;
    }
    // Other workloads have scores of their own.
    const bool is_comparable = workload_ == search_.question().workload;
    if (!is_comparable || fastest == nullptr || fastest->setup == setup_ ||
        score < fastest->figures->score) {
      return false;
    }
    Way way{.plan = usual_};
    way.plan.layout = LayoutOf(best.attention, best.prefill);
    way.plan.decode = LayoutOf(best.attention, best.decode);
    way.memory = PairOf(best.attention, best.prefill)->memory;
    Reject(way, fmt::format("the best pair of divisions of these ranks, and {:.1f} % slower than "
                            "{}, even if nothing had to move between them",
                            100 * (score / fastest->figures->score - 1), Describe(*fastest)));
    return true;
  }

  void SetTransitions() {
    const size_t size = experts_.size();
    ways_.resize(attention_.size() * size * size);
    program_.transition.assign(attention_.size(),
                               std::vector(size, std::vector<double>(size, kNever)));
    TripleTable share(attention_.size(), std::vector(size, std::vector<double>(size, 0)));
    for (int a = 0; a < num_attention(); ++a) {
      for (int p = 0; p < num_experts(); ++p) {
        for (int d = 0; d < num_experts(); ++d) {
          const HybridTriple triple = {a, p, d};
          const Way& way = ways_[PlaceOf(triple)] = WayOf(triple);
          program_.transition[a][p][d] = way.seconds;
          // Of what the rank has that takes most of it: ranks may be unlike.
          const uint64_t limit = std::max<uint64_t>(1, way.memory.limit(memory_limit_));
          share[a][p][d] = static_cast<double>(way.memory.total()) / static_cast<double>(limit);
        }
      }
    }
    // As the memory plan counts it for the plan that would be executed: both divisions, the rooms
    // between them, caches and steps.
    program_.memory = {{.name = "memory",
                        .attention = std::vector<double>(attention_.size(), 0),
                        .prefill = std::vector<double>(size, 0),
                        .decode = std::vector<double>(size, 0),
                        .capacity = 1,
                        .together = std::move(share)}};
  }

  size_t PlaceOf(const HybridTriple& triple) const {
    const size_t size = experts_.size();
    return (triple.attention * size + triple.prefill) * size + triple.decode;
  }

  Way WayOf(const HybridTriple& triple) {
    const auto& [a, p, d] = triple;
    Way way{.plan = usual_};
    way.plan.layout = LayoutOf(a, p);
    if (p != d) way.plan.decode = LayoutOf(a, d);
    for (const int e : {p, d}) {
      const Candidate* pair = PairOf(a, e);
      if (pair != nullptr && pair->figures) continue;
      way.rejected = pair == nullptr
                         ? "a division that no pass priced"
                         : fmt::format("{} alone: {}", plan::ToText(LayoutOf(a, e)), pair->reason);
      return way;
    }
    way.memory = PairOf(a, p)->memory;
    if (p == d) {
      way.seconds = 0;
      return way;
    }
    for (const int e : {p, d}) {
      for (const model::LayerSpec& layer : search_.question().spec.layers) {
        if (!layer.moe) continue;
        way.rejected = WhySplitsGroups(*layer.moe, setup_.num_ranks / At(experts_, e));
        if (!way.rejected.empty()) return way;
      }
    }
    SetMoves(triple, way);
    return way;
  }

  // How experts come from one division to the other.
  enum class How { kBothStay, kLoad, kMove };

  // What experts that come from a backup cost, and their way back: as the figures of such a plan
  // have it, since they come beside its prompts.
  Result<double> LoadSeconds(const plan::Plan& plan) {
    const Result<PlanFigures> figures = search_.FiguresOf(setup_, plan, workload_);
    if (!figures) return figures.error();
    return figures->transition_seconds;
  }

  // There and back. Attention has no part in it.
  Result<double> MoveSeconds(const HybridTriple& triple, const plan::Plan& plan) {
    const auto found = moves_.find({triple.prefill, triple.decode});
    if (found != moves_.end()) return found->second;
    const Result<WholeStep> moved = search_.RoundTripOf(setup_, plan);
    if (!moved) return moved.error();
    return moves_[{triple.prefill, triple.decode}] = moved->seconds;
  }

  // Both divisions stay in memory where it suffices. Otherwise the experts move between ranks, or
  // where it is allowed and takes less time, come from a backup.
  void SetMoves(const HybridTriple& triple, Way& way) {
    const Result<double> moved = MoveSeconds(triple, way.plan);
    if (!moved) {
      way.rejected = moved.error().message;
      return;
    }
    const plan::Plan plan = way.plan;
    Way both = WayBy(How::kBothStay, 0, triple, plan);
    way = WayBy(How::kMove, *moved, triple, plan);
    if (CanLoad(search_.question(), setup_)) {
      Way loading = WayByLoading(triple, plan);
      // The plan that computes the same numbers stays, where it is as fast.
      if (loading.rejected.empty() && (!way.rejected.empty() || loading.seconds < way.seconds)) {
        std::swap(loading, way);
      }
      if (loading.rejected.empty()) {
        way.other = {loading.plan, loading.memory};
      } else {
        impossible_.push_back(std::move(loading));
      }
    }
    if (!both.rejected.empty()) return;
    if (way.rejected.empty()) both.other = {way.plan, way.memory};
    way = std::move(both);
  }

  Way WayByLoading(const HybridTriple& triple, plan::Plan plan) {
    plan.phase_change.transition = plan::Transition::kInt4;
    const Result<double> loaded = LoadSeconds(plan);
    if (loaded) return WayBy(How::kLoad, *loaded, triple, plan);
    Way way{.plan = plan, .rejected = loaded.error().message};
    way.memory = PairOf(triple.attention, triple.prefill)->memory;
    return way;
  }

  Way WayBy(How how, double seconds, const HybridTriple& triple, const plan::Plan& plan) {
    Way way{.plan = plan};
    const double step = PairOf(triple.attention, triple.decode)->figures->time_per_token;
    const double steps = program_.decode_steps;
    plan::PhaseChange& change = way.plan.phase_change;
    change.keeps_both = how == How::kBothStay;
    change.epoch_steps =
        is_stream() ? EpochStepsOfStream(seconds, step, steps) : EpochStepsAtOnce(steps);
    const Result<RankMemory> memory =
        search_.question().memory_of(setup_, way.plan, workload_.batch);
    if (!memory || !memory->fits(memory_limit_)) {
      way.memory = PairOf(triple.attention, triple.prefill)->memory;
      way.rejected =
          !memory
              ? memory.error().message
              : fmt::format("a rank needs {} with the experts of both phases{}, and has {}",
                            FormatBytes(memory->total()),
                            how == How::kLoad ? ", of decode's in int4 what is not prefill's" : "",
                            FormatBytes(memory->limit(memory_limit_)));
      return way;
    }
    way.memory = *memory;
    way.seconds = is_stream() ? seconds * steps / change.epoch_steps : seconds;
    return way;
  }

  bool is_stream() const { return IsStream(search_); }

  void AddCandidates(const HybridTriple& optimum) {
    for (const Way& way : impossible_) Reject(way, way.rejected);
    std::vector<HybridTriple> triples;
    HybridTriple best_single = {-1, 0, 0};
    for (int a = 0; a < num_attention(); ++a) {
      for (int p = 0; p < num_experts(); ++p) {
        for (int d = 0; d < num_experts(); ++d) {
          if (p != d) triples.push_back({a, p, d});
        }
        const HybridTriple single = {a, p, p};
        if (!IsFeasible(program_, single)) continue;
        if (best_single.attention < 0 ||
            SecondsOf(program_, single) < SecondsOf(program_, best_single))
          best_single = single;
      }
    }
    std::stable_sort(triples.begin(), triples.end(),
                     [&](const HybridTriple& x, const HybridTriple& y) {
                       return std::pair(x != optimum, SecondsOf(program_, x)) <
                              std::pair(y != optimum, SecondsOf(program_, y));
                     });
    const double single = best_single.attention < 0 ? kNever : SecondsOf(program_, best_single);
    size_t num_kept = 0;
    for (const HybridTriple& triple : triples) {
      const Way& way = ways_[PlaceOf(triple)];
      if (!way.rejected.empty()) {
        Reject(way, way.rejected);
      } else if (triple != optimum && !(SecondsOf(program_, triple) < single)) {
        Reject(way, WhySlower(triple, best_single));
      } else if (num_kept > kMostRunnersUp) {
        Reject(way, fmt::format("{} other pairs of divisions of these ranks are faster", num_kept));
      } else {
        ++num_kept;
        Keep(way, triple == optimum);
      }
    }
  }

  std::string WhySlower(const HybridTriple& triple, const HybridTriple& single) const {
    const Way& way = ways_[PlaceOf(triple)];
    const char* const verb = way.plan.loads_experts()
                                 ? "experts come from an int4 backup, and go back,"
                                 : "experts move there and back";
    const std::string moves =
        way.plan.phase_change.keeps_both ? "both divisions stay in memory"
        : is_stream()
            ? fmt::format(
                  "{} in {:.3g} s for each epoch, best of {}", verb,
                  way.seconds * way.plan.phase_change.epoch_steps / program_.decode_steps,
                  FormatCount(static_cast<uint64_t>(way.plan.phase_change.epoch_steps), "step"))
            : fmt::format("{} in {:.3g} s", verb, way.seconds);
    return fmt::format("{:.1f} % slower than {} in both phases, where nothing moves; here {}",
                       100 * (SecondsOf(program_, triple) / SecondsOf(program_, single) - 1),
                       plan::ToText(LayoutOf(single.attention, single.prefill)), moves);
  }

  Candidate CandidateOf(const Way& way) const {
    return {.setup = setup_,
            .plan = way.plan,
            .memory = way.memory,
            .memory_limit = way.memory.limit(memory_limit_)};
  }

  void Reject(const Way& way, std::string reason) {
    Candidate* const added = search_.Add(CandidateOf(way));
    if (added != nullptr) search_.Reject(*added, std::move(reason));
  }

  void Keep(const Way& way, bool is_optimum) {
    Candidate candidate = CandidateOf(way);
    MeetLimits(search_, setup_, candidate.plan);
    search_.Add(candidate);
    if (!is_optimum || !way.other) return;
    std::tie(candidate.plan, candidate.memory) = *way.other;
    MeetLimits(search_, setup_, candidate.plan);
    search_.Add(std::move(candidate));
  }

  PlanSearch& search_;
  RankSetup setup_;
  const Workload& workload_;
  plan::Plan usual_ = {};
  uint64_t memory_limit_ = 0;
  // Degrees in which heads, and experts, are cut: other degrees follow from the number of ranks.
  std::set<int> attention_;
  std::set<int> experts_;
  std::map<std::pair<int, int>, Candidate> pairs_;
  HybridProgram program_;
  std::vector<Way> ways_;                        // by triple
  std::vector<Way> impossible_;                  // of triples that have another way
  std::map<std::pair<int, int>, double> moves_;  // there and back, by divisions of the experts
};

}  // namespace

bool CanLoad(const PlanQuestion& question, const RankSetup& setup) {
  return question.allowed.transition && (setup.weights == "bf16" || setup.weights == "f32");
}

void SetEpochs(PlanSearch& search, const RankSetup& setup, plan::Plan& plan) {
  const Workload workload = WorkloadOfTables(search);
  const double steps = workload.mean_gen_tokens() - 1;  // the first token is prefill's
  if (!IsStream(search)) {
    plan.phase_change.epoch_steps = EpochStepsAtOnce(steps);
    return;
  }
  plan::Plan decode = plan;
  decode.layout = *plan.decode;
  decode.decode.reset();
  decode.phase_change = {};
  const Result<PlanFigures> figures = search.FiguresOf(setup, decode, workload);
  const Result<WholeStep> moves = search.RoundTripOf(setup, plan);
  if (!figures || !moves) return;  // nor has the plan a price, which will say why
  plan.phase_change.epoch_steps =
      EpochStepsOfStream(moves->seconds, figures->time_per_token, steps);
  MeetLimits(search, setup, plan);
}

void AddHybrids(PlanSearch& search) {
  const PlanQuestion& question = search.question();
  const Workload& asked = question.workload;
  // One phase alone is best in one division, and an answer of one token has no decode.
  if (asked.objective == Objective::kTtft || asked.objective == Objective::kTimePerToken) return;
  if (question.constraints.layout || question.constraints.decode_experts) return;
  if (!(asked.mean_gen_tokens() > 1)) return;
  if (question.spec.has_encoder()) {
    // The program's tables are of one stack of layers in both phases.
    search.Remark(
        "not looked for: prefill of an encoder-decoder is mostly the encoder's, whose experts are "
        "not the decoder's");
    return;
  }
  const auto& layers = question.spec.layers;
  const bool has_experts =
      std::any_of(layers.begin(), layers.end(),
                  [](const model::LayerSpec& layer) { return layer.moe.has_value(); });
  if (!has_experts) return;
  std::set<RankSetup> setups;
  for (const Candidate& candidate : search.candidates()) {
    if (candidate.setup.num_ranks > 1 && candidate.rejected_by != "setups" &&
        !search.IsForComparison(candidate)) {
      setups.insert(candidate.setup);
    }
  }
  const Workload workload = WorkloadOfTables(search);
  for (const RankSetup& setup : setups) HybridPass(search, setup, workload).Run();
}

}  // namespace convene::planner
