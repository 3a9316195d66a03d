#include "planner/plan_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <span>
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

// Ranked ones first, the best before; then those that were rejected, in the order in which they
// were.
void Sort(std::vector<Candidate>& candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     if (a.is_ranked() != b.is_ranked()) return a.is_ranked();
                     return a.is_ranked() && a.figures->score < b.figures->score;
                   });
}

// "8 sequences that run together"
std::string TogetherWords(int batch) {
  return FormatCount(static_cast<uint64_t>(batch), "sequence") + " that run together";
}

double BestScore(const PlanSearch& search) {
  const Candidate* best = search.Best();
  return best != nullptr ? best->figures->score : 0;
}

}  // namespace

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
  Result<FittedPlan> fitted = Fit(candidate, question_.workload);
  if (!fitted) return Reject(candidate, fitted.error().message);
  candidate.plan = std::move(fitted->plan);
  candidate.figures = fitted->figures;
  if (!question_.memory_of) return;
  candidate.memory = fitted->memory;
  if (candidate.memory_limit == 0) return;
  candidate.memory_limit = candidate.memory.limit(candidate.memory_limit);
}

bool PlanSearch::CountsExperts(const Candidate& candidate) const {
  return candidate.plan.experts_in_memory && !candidate.plan.spilled_kv &&
         question_.experts_that_fit && candidate.memory_limit > 0;
}

Result<FittedPlan> PlanSearch::Fit(const Candidate& candidate, const Workload& workload) {
  const bool is_stream = workload.arrival_rate > 0;
  if (!CountsExperts(candidate) || is_stream || workload.objective != Objective::kGoodput) {
    return FitExperts(candidate, workload);
  }
  Workload fewer = workload;
  for (;; fewer.batch /= 2) {
    Candidate counted = candidate;
    const Result<int> experts = question_.experts_that_fit(candidate.setup, candidate.plan,
                                                           fewer.batch, candidate.memory_limit);
    if (experts) counted.plan.experts_in_memory = *experts;
    Result<FittedPlan> fitted =
        experts ? FitExperts(counted, fewer) : Result<FittedPlan>(experts.error());
    const bool is_found = fitted && fitted->figures.batch == fewer.batch;
    if (is_found || fewer.batch == 1) return fitted;
  }
}

Result<FittedPlan> PlanSearch::FitExperts(const Candidate& candidate, const Workload& workload) {
  FittedPlan fitted{.plan = candidate.plan, .figures = {}, .memory = candidate.memory};
  const bool is_stream = workload.arrival_rate > 0;
  for (;;) {
    Result<PlanFigures> figures = FiguresOf(candidate.setup, fitted.plan, workload);
    if (!figures) return figures.error();
    fitted.figures = *std::move(figures);
    if (!is_stream || !CountsExperts(candidate)) break;
    const Result<int> experts = question_.experts_that_fit(
        candidate.setup, fitted.plan, fitted.figures.batch, candidate.memory_limit);
    if (!experts) return experts.error().At(TogetherWords(fitted.figures.batch));
    if (*experts >= *fitted.plan.experts_in_memory) break;
    fitted.plan.experts_in_memory = *experts;
  }
  const int batch = fitted.figures.batch;
  if (fitted.plan.spilled_kv) fitted.plan.sequences = batch;
  // Of one without figures it is what CheckMemory says.
  const bool is_known = !candidate.figures && fitted.plan == candidate.plan &&
                        batch == FewestTogether(question_.workload);
  if (is_known || !question_.memory_of) return fitted;
  const Result<RankMemory> memory = question_.memory_of(candidate.setup, fitted.plan, batch);
  if (!memory) return memory.error();
  fitted.memory = *memory;
  if (candidate.memory_limit > 0 && !memory->fits(candidate.memory_limit)) {
    return Error{fmt::format("{} need {} per rank, of {}", TogetherWords(batch),
                             FormatBytes(memory->total()),
                             FormatBytes(memory->limit(candidate.memory_limit)))};
  }
  return fitted;
}

bool PlanSearch::CheckMemory(Candidate& candidate) {
  const Result<RankMemory> memory =
      question_.memory_of(candidate.setup, candidate.plan, FewestTogether(question_.workload));
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
  const auto make = [&] {
    const auto [found, is_new] = weight_bytes_.try_emplace(setup, 0);
    if (is_new) found->second = WeightBytesOf(question_, setup);
    Conditions with_weights = conditions;
    with_weights.weight_bytes = found->second;
    return question_.source.PricerOf(setup, with_weights, plan.comm_budget);
  };
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
      .keeps_step_tokens = question_.constraints.keeps_step_tokens,
      .changes_layout = plan.changes_layout(),
      .phase_change = plan.phase_change,
      .round_trip = *round_trip,
      .solver_seconds = plan.changes_layout() ? solver_seconds_ : 0};
  if (plan.loads_experts()) options.loads = LoadsOf(setup, plan, strategy::Phase::kDecode);
  if (question_.memory_of && !IsOff(question_, "memory")) {
    options.has_room = [&](int batch) {
      const Result<RankMemory> memory = question_.memory_of(setup, plan, batch);
      return memory && memory->fits(question_.memory_per_rank(setup.num_ranks));
    };
  }
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
    PassReport report{.name = std::string(pass.name),
                      .purpose = std::string(pass.purpose),
                      .is_off = IsOff(question, pass.name)};
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

}  // namespace convene::planner
