#include "planner/plan_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <span>
#include <tuple>
#include <utility>

#include "base/units.h"
#include "planner/asked_for.h"
#include "planner/spilled_steps.h"
#include "planner/step_turns.h"
#include "planner/workload_figures.h"
#include "planner/workload_steps.h"
#include "strategy/paging.h"

namespace convene::planner {
namespace {

// A gain of so much is taken even where its interval contains none: among measured plans the one
// that was predicted best lost 0 % in the median and 10.5 % at worst
// (docs/results/predictions.md).
constexpr double kCertainGain = 1.1;

// What is preferred where gains are not certain: the smaller, the simpler. One division of the work
// throughout, whichever it is, is simpler than two.
auto Complexity(const PlanSearch& search, const Candidate& candidate) {
  const plan::Plan& plan = candidate.plan;
  const bool is_present = search.question().present == plan;
  const bool is_usual = plan.layout == plan::DefaultLayout(candidate.setup.num_ranks);
  return std::tuple(!is_present, candidate.setup.num_ranks > 1,
                    plan.changes_layout() || plan.layout.disaggregates,
                    plan.experts_in_memory.has_value(), plan.spilled_kv.has_value(),
                    plan.step_tokens > 0, plan.pipeline.chunks > 1, !plan.pipeline.cuts.empty(),
                    plan.pipeline.micro_batches > 1, plan.cut_from_tokens > 0, plan.comm_budget > 0,
                    !is_usual, candidate.setup.num_ranks);
}

// Ranked ones first, the best before; then those that were rejected, in the order in which they
// were.
void Sort(std::vector<Candidate>& candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     if (a.is_ranked() != b.is_ranked()) return a.is_ranked();
                     return a.is_ranked() && a.figures->score < b.figures->score;
                   });
}

cost::Outline ScoredOf(const Candidate& one) {
  return {.seconds = one.figures->score,
          .by_kind = one.figures->path,
          .overlapped_seconds = one.figures->overlapped_seconds};
}

// Whether it is known of a plan that a faster one is faster.
bool IsCertainlySlower(const PlanSearch& search, const Candidate& slower, const Candidate& faster) {
  if (slower.figures->score >= faster.figures->score * kCertainGain) return true;
  return cost::IntervalOfDifference(ScoredOf(slower), ScoredOf(faster),
                                    search.PricerOf(faster).Errors())
             .low > 0;
}

void Choose(PlanSearch& search, PlanAnswer& answer) {
  const std::vector<Candidate>& candidates = answer.candidates;
  std::vector<const Candidate*> sorted;
  for (const Candidate& one : candidates) {
    if (one.is_ranked() && one.is_allowed()) sorted.push_back(&one);
  }
  CHECK(!sorted.empty(), "a search without a choice");
  const Candidate& fastest = *sorted.front();
  const Candidate& chosen = ChoiceOf(search, sorted);
  answer.fastest = static_cast<int>(&fastest - candidates.data());
  answer.chosen = static_cast<int>(&chosen - candidates.data());
  if (&chosen == &fastest) return;
  answer.why_chosen = fmt::format(
      "{} is predicted to take {:.1f} % less time, which is within the interval of the difference: "
      "{}",
      Describe(fastest), 100 * (1 - fastest.figures->score / chosen.figures->score),
      search.question().present == chosen.plan ? "the plan that runs now stays"
                                               : "the simpler plan is taken");
}

// 30,000 years: costs that were read from a file may be anything, and what comes after prices adds
// and multiplies them.
constexpr double kMostSeconds = 1e12;

Status CheckSeconds(std::initializer_list<double> predicted) {
  for (const double seconds : predicted) {
    if (seconds >= 0 && seconds <= kMostSeconds) continue;
    return Error{fmt::format("by these costs it takes {} s, which no machine does", seconds)};
  }
  return {};
}

// "naive", "fine with 2 micro-batches and 4 chunks, ASAS", or of what has lines, "micro-batches,
// chunks and order solved for each step, of at most 2 micro-batches and 4 chunks"
std::string WordsOfStrategy(const plan::Plan& plan) {
  const strategy::Pipeline& pipeline = plan.pipeline;
  if (!plan.lines.empty()) {
    return "micro-batches, chunks and order solved for each step, of at most " +
           WordsOfParts(pipeline.micro_batches, pipeline.chunks);
  }
  const plan::DisaggregatedStrategy chosen = plan::StrategyOf(pipeline);
  if (chosen == plan::DisaggregatedStrategy::kNaive) return std::string(plan::Name(chosen));
  return fmt::format("{} with {}", plan::Name(chosen),
                     Words(DisaggregatedPipeline{.micro_batches = pipeline.micro_batches,
                                                 .chunks = pipeline.chunks,
                                                 .order = pipeline.order}));
}

// ", keys and values of 256 sequences on the disk but for 64 blocks"
std::string WordsOfSpilled(const plan::Plan& plan) {
  const plan::SpilledKv& spilled = *plan.spilled_kv;
  std::string text = fmt::format(", keys and values of {} on the disk",
                                 FormatCount(static_cast<uint64_t>(plan.sequences), "sequence"));
  if (spilled.blocks_in_memory == 0) return text;
  return text + fmt::format(" but for {}",
                            FormatCount(static_cast<uint64_t>(spilled.blocks_in_memory), "block"));
}

double BestScore(const PlanSearch& search) {
  const Candidate* best = search.Best();
  return best != nullptr ? best->figures->score : 0;
}

}  // namespace

const Candidate& ChoiceOf(const PlanSearch& search, const std::vector<const Candidate*>& sorted) {
  CHECK(!sorted.empty());
  const Candidate* chosen = sorted.front();
  // The simplest so far, whether it may be as fast as the fastest or not.
  const Candidate* simplest = sorted.front();
  for (const Candidate* one : sorted) {
    if (!(Complexity(search, *one) < Complexity(search, *simplest))) continue;
    simplest = one;
    if (!IsCertainlySlower(search, *one, *sorted.front())) chosen = one;
  }
  return *chosen;
}

Status CheckInputs(const PlanQuestion& question) {
  if (!question.spec.has_encoder()) return {};
  int longest = 0;
  for (const RequestLengths& request : question.workload.requests) {
    longest = std::max(longest, request.prompt_tokens);
  }
  if (longest <= question.step_tokens) return {};
  return Error{fmt::format(
      "an input has {}, and an encoder sees all of them in one step of at most {}; raise --chunk",
      FormatCount(static_cast<uint64_t>(longest), "token"), question.step_tokens)};
}

Status CheckPasses(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    std::vector<std::string_view> known;
    bool is_known = false;
    for (const SearchPass& pass : SearchPasses()) {
      if (pass.can_be_off) known.push_back(pass.name);
      is_known = is_known || (pass.can_be_off && pass.name == name);
    }
    if (is_known) continue;
    return Error{fmt::format("there is no pass {} that could be switched off; there are {}", name,
                             fmt::join(known, ", "))};
  }
  return {};
}

PlanSearch::PlanSearch(const PlanQuestion& question)
    : question_(question), short_models_(ShortenFor(question.workload.routing)) {}

PlanSearch::ShortModels PlanSearch::ShortenFor(const Routing& routing) const {
  std::vector<cost::ExpertShares> shares;
  // Of another model it is refused by SearchPlan.
  if (CheckWorkload({.routing = routing}, question_.spec)) {
    shares = SharesOf(routing, question_.spec);
  }
  ShortModels models{.whole = Unshortened(question_.spec, shares),
                     .plain = Shorten(question_.spec, shares),
                     .overlapping = Shorten(question_.spec, shares, /*is_overlapping=*/true)};
  if (question_.spec.has_encoder()) {
    models.encoder = ShortenEncoder(question_.spec, shares);
    models.overlapping_encoder = ShortenEncoder(question_.spec, shares, /*is_overlapping=*/true);
  }
  return models;
}

Candidate* PlanSearch::Add(Candidate candidate) {
  for (const Candidate& other : candidates_) {
    if (other.setup == candidate.setup && other.plan == candidate.plan) return nullptr;
  }
  candidate.added_by = pass_;
  // What it was made from may take other memory.
  if (candidate.memory_limit > 0) candidate.memory = {};
  return &candidates_.emplace_back(std::move(candidate));
}

void PlanSearch::Reject(Candidate& candidate, std::string reason) {
  candidate.rejected_by = pass_;
  candidate.reason = std::move(reason);
}

const Candidate* PlanSearch::Best() const {
  const Candidate* best = nullptr;
  for (const Candidate& candidate : candidates_) {
    if (!candidate.is_ranked() || !candidate.is_allowed()) continue;
    if (best == nullptr || candidate.figures->score < best->figures->score) best = &candidate;
  }
  return best;
}

void PlanSearch::Price(Candidate& candidate) {
  const bool is_unknown = candidate.memory_limit > 0 && candidate.memory.total() == 0;
  if (is_unknown && !CheckMemory(candidate)) return;
  Result<PlanFigures> figures = FiguresOf(candidate.setup, candidate.plan, question_.workload);
  if (!figures) return Reject(candidate, figures.error().message);
  if (candidate.plan.spilled_kv) candidate.plan.sequences = figures->batch;
  if (figures->batch != question_.workload.batch && question_.memory_of) {
    const auto memory = question_.memory_of(candidate.setup, candidate.plan, figures->batch);
    if (!memory) return Reject(candidate, memory.error().message);
    candidate.memory = *memory;
    if (candidate.memory_limit > 0) {
      candidate.memory_limit = memory->limit(candidate.memory_limit);
    }
    if (candidate.memory_limit > 0 && memory->total() > candidate.memory_limit) {
      return Reject(candidate,
                    fmt::format("{} that run together need {} per rank, of {}",
                                FormatCount(static_cast<uint64_t>(figures->batch), "sequence"),
                                FormatBytes(memory->total()), FormatBytes(candidate.memory_limit)));
    }
  }
  candidate.figures = *std::move(figures);
}

bool PlanSearch::CheckMemory(Candidate& candidate) {
  const Result<RankMemory> memory =
      question_.memory_of(candidate.setup, candidate.plan, question_.workload.batch);
  if (!memory) {
    Reject(candidate, memory.error().message);
    return false;
  }
  candidate.memory = *memory;
  candidate.memory_limit = memory->limit(question_.memory_per_rank(candidate.setup.num_ranks));
  if (memory->total() <= candidate.memory_limit) return true;
  Reject(candidate,
         fmt::format("a rank needs {} (weights {}, KV cache {}, working memory {}), and has {}",
                     FormatBytes(memory->total()), FormatBytes(memory->weights_bytes),
                     FormatBytes(memory->kv_bytes), FormatBytes(memory->working_bytes),
                     FormatBytes(candidate.memory_limit)));
  return false;
}

Result<const StepPricer*> PlanSearch::FindPricer(const RankSetup& setup, const plan::Plan& plan,
                                                 const Conditions& conditions) {
  const PricedAs priced_as = {setup, plan.comm_budget};
  const auto make = [&] { return question_.source.PricerOf(setup, conditions, plan.comm_budget); };
  if (conditions == Conditions{}) {
    const auto found = pricers_.find(priced_as);
    if (found != pricers_.end()) return found->second.get();
    Result<std::unique_ptr<StepPricer>> pricer = make();
    if (!pricer) return pricer.error();
    return pricers_.emplace(priced_as, *std::move(pricer)).first->second.get();
  }
  if (last_pricer_ == nullptr || last_pricer_of_.first != priced_as ||
      !(last_pricer_of_.second == conditions)) {
    Result<std::unique_ptr<StepPricer>> pricer = make();
    if (!pricer) return pricer.error();
    last_pricer_ = *std::move(pricer);
    last_pricer_of_ = {priced_as, conditions};
  }
  return last_pricer_.get();
}

Result<PlanFigures> PlanSearch::FiguresOf(const RankSetup& setup, const plan::Plan& plan,
                                          const Workload& workload, const Conditions& conditions) {
  const Result<const StepPricer*> pricer = FindPricer(setup, plan, conditions);
  if (!pricer) return pricer.error();
  const Result<WholeStep> round_trip = RoundTripOf(setup, plan, conditions);
  if (!round_trip) return round_trip.error();
  const bool same_routing = workload.routing == question_.workload.routing;
  ShortModels other;
  if (!same_routing) other = ShortenFor(workload.routing);
  const ShortModels& models = same_routing ? short_models_ : other;
  const bool divides_layers = plan.layout.stages > 1;
  PhaseStepOptions options{
      .whole_spec = question_.spec,
      .model = divides_layers ? models.whole : models.plain,
      .overlapping_model = divides_layers ? models.whole : models.overlapping,
      .encoder_model = models.encoder ? &*models.encoder : nullptr,
      .overlapping_encoder = models.overlapping_encoder ? &*models.overlapping_encoder : nullptr,
      .roles = strategy::Roles(plan.layout).ExpandingFrom(question_.expand_from_tokens),
      .decode_roles = strategy::Roles(plan.decode.value_or(plan.layout))
                          .ExpandingFrom(question_.expand_from_tokens),
      .pipeline = plan.pipeline,
      .cut_from_tokens = plan.cut_from_tokens,
      .bytes = question_.bytes_of(setup.weights, plan.wire),
      .step_tokens = plan.step_tokens_or(question_.step_tokens),
      .changes_layout = plan.changes_layout(),
      .phase_change = plan.phase_change,
      .round_trip = *round_trip,
      .solver_seconds = plan.changes_layout() ? solver_seconds_ : 0};
  if (plan.loads_experts()) options.loads = LoadsOf(setup, plan, strategy::Phase::kDecode);
  if (!plan.lines.empty()) {
    options.pipeline_of = [turns = StepTurns(plan.lines, plan.pipeline)](
                              const strategy::StepLoad& load) mutable { return turns.For(load); };
  }
  if (plan.experts_in_memory) {
    options.paging_of = [&](int64_t num_tokens, bool encoder) {
      return PagingOf(plan, num_tokens, encoder);
    };
  }
  if (plan.spilled_kv) {
    options.spilled_of = [&](int batch, const StepSequences& groups) {
      return SpilledOf(plan, workload, batch, groups);
    };
  }
  Result<PlanFigures> figures = PredictWorkload(workload, options, **pricer, &num_simulated_);
  if (!figures) return figures;
  Status makes_sense = CheckSeconds(
      {figures->ttft, figures->time_per_token, figures->score, figures->transition_seconds});
  if (!makes_sense) return makes_sense.error();
  return figures;
}

strategy::Paging PlanSearch::PagingOf(const plan::Plan& plan, int64_t num_tokens,
                                      bool encoder) const {
  return strategy::PagingOf(question_.spec, encoder, *plan.experts_in_memory, num_tokens,
                            strategy::LargestOwner(question_.spec, plan.layout));
}

std::optional<strategy::SpilledKv> PlanSearch::SpilledOf(const plan::Plan& plan,
                                                         const Workload& workload, int batch,
                                                         const StepSequences& groups) {
  const int blocks =
      batch * BlocksOfSequence(workload.mean_prompt_tokens() + workload.mean_gen_tokens());
  return SpilledStepOf(*plan.spilled_kv, blocks, groups);
}

Result<WholeStep> PlanSearch::RoundTripOf(const RankSetup& setup, const plan::Plan& plan,
                                          const Conditions& conditions) {
  WholeStep both;
  if (!plan.changes_layout() || plan.phase_change.keeps_both) return both;
  const Result<const StepPricer*> pricer = FindPricer(setup, plan, conditions);
  if (!pricer) return pricer.error();
  // To decode they come beside the last prompts.
  if (plan.loads_experts()) {
    return PredictLoads(short_models_.plain, LoadsOf(setup, plan, strategy::Phase::kPrefill),
                        **pricer);
  }
  const double bytes = question_.bytes_of(setup.weights, plan.wire).weights;
  for (const auto& [from, to] :
       {std::pair(plan.layout, *plan.decode), std::pair(*plan.decode, plan.layout)}) {
    Result<WholeStep> moved = PredictTransition(short_models_.plain, from, to, bytes, **pricer);
    if (!moved) return moved.error();
    planner::Add(*moved, 1, both);
  }
  if (Status makes_sense = CheckSeconds({both.seconds}); !makes_sense) return makes_sense.error();
  return both;
}

strategy::ExpertLoads PlanSearch::LoadsOf(const RankSetup& setup, const plan::Plan& plan,
                                          strategy::Phase to) const {
  const bool to_decode = to == strategy::Phase::kDecode;
  return {.from = to_decode ? plan.layout : *plan.decode,
          .to = to_decode ? *plan.decode : plan.layout,
          .bytes = question_.bytes_of(setup.weights, plan.wire).weights,
          .rounded = to_decode};
}

Result<PredictedStep> PlanSearch::DrawStep(const RankSetup& setup, const plan::Plan& plan,
                                           strategy::Phase phase) {
  const Result<const StepPricer*> pricer = FindPricer(setup, plan, {});
  if (!pricer) return pricer.error();
  const bool is_decode = phase == strategy::Phase::kDecode;
  const strategy::Roles roles =
      strategy::Roles(is_decode ? plan.decode.value_or(plan.layout) : plan.layout)
          .ExpandingFrom(question_.expand_from_tokens);
  const Workload& workload = question_.workload;
  bool draws_encoder = false;
  StepSequences groups = DecodeStepOf(question_.spec, workload, workload.batch, roles);
  if (!is_decode) {
    // Sorted by rows: the last one has the most.
    TypicalStep largest =
        PrefillStepsOf(question_.spec, TypicalSequences(workload, workload.batch), roles,
                       plan.step_tokens_for(workload.batch, question_.step_tokens))
            .back();
    draws_encoder = !largest.inputs.empty();
    groups = draws_encoder ? std::move(largest.inputs) : std::move(largest.groups);
  }
  strategy::StepOptions options{.roles = roles,
                                .pipeline = plan.pipeline,
                                .bytes = question_.bytes_of(setup.weights, plan.wire)};
  if (plan.loads_experts() && !is_decode)
    options.loads = LoadsOf(setup, plan, strategy::Phase::kDecode);
  if (!plan.lines.empty()) {
    options.pipeline = StepTurns(plan.lines, plan.pipeline).For(LoadOf(groups));
  }
  if (NumTokens(groups) < plan.cut_from_tokens) options.pipeline = InOnePiece(options.pipeline);
  if (draws_encoder ||
      NumTokens(groups) < int64_t{1} * options.pipeline.micro_batches * roles.num_groups()) {
    options.pipeline.micro_batches = 1;
  }
  if (plan.experts_in_memory) {
    options.paging = PagingOf(plan, NumTokens(groups), draws_encoder);
    options.pipeline = strategy::PipelineOf(options);
  }
  if (plan.spilled_kv) options.spilled_kv = SpilledOf(plan, workload, workload.batch, groups);
  const ShortModel& model = draws_encoder && options.paging ? *short_models_.overlapping_encoder
                            : draws_encoder                 ? *short_models_.encoder
                            : plan.layout.stages > 1        ? short_models_.whole
                            : options.paging                ? short_models_.overlapping
                                                            : short_models_.plain;
  return PredictStep({.spec = model.spec,
                      .options = std::move(options),
                      .groups = std::move(groups),
                      .shares = model.shares,
                      .is_encoder = draws_encoder},
                     **pricer);
}

Result<PlanAnswer> SearchPlan(const PlanQuestion& question) {
  PlanSearch search(question);
  return SearchPlan(search);
}

Result<PlanAnswer> SearchPlan(PlanSearch& search) {
  const PlanQuestion& question = search.question();
  if (Status checked = CheckPasses(question.passes_off); !checked) return checked.error();
  if (Status sense = CheckWorkload(question.workload, question.spec); !sense) return sense.error();
  if (Status fits = CheckInputs(question); !fits) return fits.error();
  if (Status together = CheckConstraints(question); !together) return together.error();
  PlanAnswer answer;
  const double start = question.clock();
  for (const SearchPass& pass : SearchPasses()) {
    const auto& off = question.passes_off;
    PassReport report{.name = std::string(pass.name),
                      .purpose = std::string(pass.purpose),
                      .is_off = std::find(off.begin(), off.end(), pass.name) != off.end()};
    if (!report.is_off) {
      const auto count_rejected = [&] {
        return std::count_if(search.candidates().begin(), search.candidates().end(),
                             [](const Candidate& one) { return !one.rejected_by.empty(); });
      };
      const double began = question.clock();
      const auto num_before = std::ssize(search.candidates());
      const auto num_rejected = count_rejected();
      const int num_simulated = search.num_simulated();
      report.best_before = BestScore(search);
      search.UsePass(report.name);
      pass.run(search);
      report.num_added = static_cast<int>(std::ssize(search.candidates()) - num_before);
      report.num_rejected = static_cast<int>(count_rejected() - num_rejected);
      report.num_simulated = search.num_simulated() - num_simulated;
      report.best_after = BestScore(search);
      report.remark = search.TakeRemark();
      report.seconds = question.clock() - began;
    }
    answer.passes.push_back(std::move(report));
  }
  answer.candidates = search.candidates();
  if (search.Best() == nullptr) return WhyNothing(search);
  Sort(answer.candidates);
  Choose(search, answer);
  answer.seconds = question.clock() - start;
  answer.num_simulated = search.num_simulated();
  return answer;
}

std::string Describe(const Candidate& candidate) {
  const RankSetup& setup = candidate.setup;
  const plan::Plan& plan = candidate.plan;
  std::string text =
      fmt::format("{} x {}, {}", FormatCount(static_cast<uint64_t>(setup.num_ranks), "rank"),
                  FormatCount(static_cast<uint64_t>(setup.num_threads), "thread"), setup.weights);
  if (plan.experts_in_memory) {
    text += fmt::format(", {} {}in memory and the others read from the disk",
                        FormatCount(static_cast<uint64_t>(*plan.experts_in_memory), "expert"),
                        setup.num_ranks > 1 ? "of each " : "");
  }
  if (plan.spilled_kv) text += WordsOfSpilled(plan);
  if (plan.step_tokens > 0) {
    text += fmt::format(", steps of at most {}",
                        FormatCount(static_cast<uint64_t>(plan.step_tokens), "token"));
  }
  if (setup.num_ranks == 1) return text;
  text += ", " + plan::ToText(plan.layout);
  if (plan.decode) {
    text += ", decode experts=" + plan::ExpertsText(*plan.decode);
    if (plan.phase_change.keeps_both) text += ", both in memory";
    if (plan.loads_experts()) text += " from an int4 backup";
  }
  if (plan.layout.disaggregates) text += ", " + WordsOfStrategy(plan);
  if (plan.pipeline.chunks > 1 && !plan.layout.disaggregates) {
    text += fmt::format(", {} chunks of {}", plan.pipeline.chunks,
                        plan.pipeline.cut == strategy::ChunkCut::kTokens ? "tokens" : "experts");
    if (!plan.pipeline.cuts.empty()) {
      std::vector<int> percent;
      for (const double cut : plan.pipeline.cuts)
        percent.push_back(static_cast<int>(std::lround(100 * cut)));
      text += fmt::format(" cut at {} %", fmt::join(percent, ", "));
    }
  }
  if (plan.pipeline.micro_batches > 1 && !plan.layout.disaggregates) {
    text += fmt::format(", {} micro-batches", plan.pipeline.micro_batches);
  }
  if (plan.cut_from_tokens > 0) {
    text += fmt::format(" in steps of {} and more",
                        FormatCount(static_cast<uint64_t>(plan.cut_from_tokens), "token"));
  }
  if (!plan.pipeline.overlap) text += ", no overlap";
  if (plan.comm_budget > 0) {
    text += fmt::format(", {} multiprocessors or threads left to exchanges", plan.comm_budget);
  }
  if (plan::Rounds(plan.wire)) {
    text += fmt::format(", {} between ranks", plan::Name(plan.wire));
  }
  return text;
}

bool KeepsLogits(const model::ModelSpec& spec, const plan::Plan& plan, bool one_host) {
  if (plan.layout.num_ranks() == 1) return true;
  const bool is_exact =
      plan.wire == plan::Wire::kF32 || (plan.wire == plan::Wire::kAuto && one_host);
  return is_exact && CutsNothing(spec, plan.layout) &&
         (!plan.decode || CutsNothing(spec, *plan.decode));
}

}  // namespace convene::planner
