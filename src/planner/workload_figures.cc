#include "planner/workload_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/plain_number.h"
#include "base/units.h"
#include "planner/workload_steps.h"

namespace convene::planner {
namespace {

class Predictor {
 public:
  Predictor(const Workload& workload, const PhaseStepOptions& options, const StepPricer& pricer,
            int* num_simulated)
      : workload_(workload),
        options_(options),
        pricer_(pricer),
        num_simulated_(num_simulated),
        round_trip_(options.round_trip) {}

  Result<PlanFigures> AtBatch(int batch) {
    if (IsTooLong(batch)) {
      return Error{fmt::format(
          "of {} that run together a group of ranks has {}, and a step of at most {} has no room "
          "for a token of each: raise --chunk, or run fewer together",
          FormatCount(static_cast<uint64_t>(batch), "sequence"), OfGroup(batch),
          FormatCount(static_cast<uint64_t>(options_.step_tokens), "token"))};
    }
    batch_ = batch;
    const Result<WholeStep> prefill = Prefill(batch);
    if (!prefill) return prefill.error();
    const Result<WholeStep> decode = Decode(batch);
    if (!decode) return decode.error();
    if (Status found = FindRoundTrip(batch); !found) return found.error();
    // It returns to the division of prefill for the batch after it.
    return Figures(batch, *prefill, *decode, moves() && workload_.mean_gen_tokens() > 1 ? 1 : 0);
  }

  Result<PlanFigures> Goodput() {
    std::optional<PlanFigures> figures;
    for (int batch = workload_.batch; batch >= 1; batch /= 2) {
      if (options_.has_room && !options_.has_room(batch)) continue;
      if (IsTooLong(batch)) continue;
      const Result<PlanFigures> found = AtBatch(batch);
      if (!found) return found.error();
      figures = *found;
      if (MeetsLimits(*figures, figures->ttft - figures->solver_seconds)) return *figures;
    }
    if (!figures) return Error{"not even one sequence has the memory"};
    return Error{fmt::format(
        "a batch of 1 has {} s to the first token (limit {}) and {} s per token (limit {}; 0: "
        "none)",
        PlainNumber(figures->ttft), PlainNumber(workload_.limits.ttft),
        PlainNumber(figures->time_per_token), PlainNumber(workload_.limits.time_per_token))};
  }

  Result<PlanFigures> AtArrivalRate() {
    if (options_.spilled_of) {
      return Error{
          "keys and values on a disk are of batches, whose requests are all there at once: they "
          "have no arrival rate"};
    }
    const Result<WholeStep> prompt = Prefill(1);
    if (!prompt) return prompt.error();
    const double busy = workload_.arrival_rate * prompt->seconds;  // with prompts
    if (busy >= 1) {
      return Error{fmt::format("prompts alone take {} s each, and {} arrive in a second",
                               PlainNumber(prompt->seconds), PlainNumber(workload_.arrival_rate))};
    }
    if (Status found = FindRoundTrip(1); !found) return found.error();
    // Tokens that must be generated in a second, but for the first ones.
    const double wanted = workload_.arrival_rate * (workload_.mean_gen_tokens() - 1) / (1 - busy);
    Result<int> batch = BatchThatGives(wanted);
    if (!batch) return batch.error();
    const Result<WholeStep> decode = Decode(*batch);
    if (!decode) return decode.error();
    // Of each request: its prompt, and its part of the steps that generate.
    WholeStep prompts;
    Add(*prompt, *batch, prompts);
    PlanFigures figures = Figures(*batch, prompts, *decode, /*round_trips=*/0);
    figures.transition_seconds = moves() ? round_trip_.seconds : 0;
    // A prompt waits for what is under way, half of a prompt or of a step of decode, and for the
    // prompts that wait for the same (a queue with regular service, whose server does other work
    // when nobody waits). Nobody interrupts an epoch: it has the steps in it.
    const double decoding =
        moves() ? 0
                : std::min(1 - busy, workload_.arrival_rate * (workload_.mean_gen_tokens() - 1) *
                                         decode->seconds / *batch);
    double waiting = (busy * prompt->seconds + decoding * decode->seconds) / (2 * (1 - busy));
    if (moves()) waiting += options_.phase_change.epoch_steps * decode->seconds / 2;
    const auto stretch = [](cost::Interval& interval, double& value, double changed) {
      const double factor = value > 0 ? changed / value : 1;
      interval = {interval.low * factor, interval.high * factor};
      value = changed;
    };
    stretch(figures.ttft_interval, figures.ttft,
            prompt->seconds + waiting + options_.solver_seconds);
    stretch(figures.time_per_token_interval, figures.time_per_token, decode->seconds / (1 - busy));
    stretch(figures.throughput_interval, figures.throughput,
            workload_.arrival_rate * workload_.mean_gen_tokens());
    // Of one prompt or step, not of as many as run together. Whatever keeps up generates as many
    // tokens as are asked for: of throughput and goodput plans differ in what a request takes.
    const double decode_waiting = figures.time_per_token - decode->seconds;
    switch (workload_.objective) {
      case Objective::kTtft:
        Score(*prompt, 1, waiting, figures);
        break;
      case Objective::kTimePerToken:
        Score(*decode, 1, decode_waiting, figures);
        break;
      case Objective::kThroughput:
      case Objective::kGoodput: {
        const double steps = workload_.mean_gen_tokens() - 1;
        WholeStep request = *prompt;
        Add(*decode, steps, request);
        Score(request, 1, waiting + steps * decode_waiting, figures);
      }
    }
    const double ttft = figures.ttft - options_.solver_seconds;  // nor is it in the score
    if (workload_.objective == Objective::kGoodput && !MeetsLimits(figures, ttft)) {
      return Error{fmt::format(
          "at this rate of requests there are {} s to the first token and {} s per token, "
          "beyond the limits",
          PlainNumber(ttft), PlainNumber(figures.time_per_token))};
    }
    return figures;
  }

 private:
  // Of so many sequences those of the group of ranks that has the most.
  int OfGroup(int batch) const {
    const int num_groups = options_.roles.num_groups();
    return (batch + num_groups - 1) / num_groups;
  }

  int StepTokens(int batch) const { return std::max(options_.step_tokens, OfGroup(batch)); }

  // Whether so many would make steps longer than they may be.
  bool IsTooLong(int batch) const {
    return options_.keeps_step_tokens && StepTokens(batch) > options_.step_tokens;
  }

  // What a solver took decides nothing: `ttft` is without it.
  bool MeetsLimits(const PlanFigures& figures, double ttft) const {
    const ServiceLimits& limits = workload_.limits;
    return (limits.ttft <= 0 || ttft <= limits.ttft) &&
           (limits.time_per_token <= 0 || figures.time_per_token <= limits.time_per_token);
  }

  // What experts that come from a backup cost: by how much they hold up the step that they come
  // beside, the last one of the prompts, which has the fewest rows; and the way back.
  Status FindRoundTrip(int batch) {
    round_trip_ = options_.round_trip;
    if (!options_.loads || !moves()) return {};
    const std::vector<TypicalStep> steps = PrefillStepsOf(
        options_.whole_spec, TypicalSequences(workload_, batch), options_.roles, StepTokens(batch));
    const Result<WholeStep> without = Predict(steps.front().groups, options_.roles);
    if (!without) return without.error();
    const Result<WholeStep> with = Predict(steps.front().groups, options_.roles, options_.loads);
    if (!with) return with.error();
    WholeStep longer{.seconds = std::max(0.0, with->seconds - without->seconds)};
    longer.path[static_cast<size_t>(schedule::TaskKind::kLoadExperts)] = longer.seconds;
    Add(longer, 1, round_trip_);
    return {};
  }

  Result<WholeStep> Predict(const StepSequences& groups, const strategy::Roles& roles,
                            const std::optional<strategy::ExpertLoads>& loads = {}) {
    strategy::StepOptions step{
        .roles = roles, .pipeline = options_.pipeline, .bytes = options_.bytes, .loads = loads};
    if (options_.pipeline_of) step.pipeline = options_.pipeline_of(LoadOf(groups));
    if (NumTokens(groups) < options_.cut_from_tokens) step.pipeline = InOnePiece(step.pipeline);
    // Steps of fewer rows stay whole (runtime/step_memory.h).
    if (NumTokens(groups) < int64_t{1} * step.pipeline.micro_batches * roles.num_groups()) {
      step.pipeline.micro_batches = 1;
    }
    ++*num_simulated_;
    if (options_.paging_of) {
      step.paging = options_.paging_of(NumTokens(groups), /*encoder=*/false);
      step.pipeline = strategy::PipelineOf(step);
    }
    if (options_.spilled_of) step.spilled_kv = options_.spilled_of(batch_, groups);
    const bool overlaps = step.pipeline.micro_batches > 1 || step.paging.has_value();
    return PredictWholeStep(overlaps ? options_.overlapping_model : options_.model, step, groups,
                            pricer_);
  }

  // Its experts are where prefill has them, and its inputs stay whole.
  Result<WholeStep> PredictEncoder(const StepSequences& inputs) {
    strategy::StepOptions step{
        .roles = options_.roles, .pipeline = options_.pipeline, .bytes = options_.bytes};
    step.pipeline.micro_batches = 1;
    ++*num_simulated_;
    if (options_.paging_of) {
      step.paging = options_.paging_of(NumTokens(inputs), /*encoder=*/true);
      step.pipeline = strategy::PipelineOf(step);
    }
    return PredictWholeStep(step.paging ? *options_.overlapping_encoder : *options_.encoder_model,
                            step, inputs, pricer_);
  }

  Result<WholeStep> Prefill(int batch) {
    WholeStep sum;
    for (const TypicalStep& typical :
         PrefillStepsOf(options_.whole_spec, TypicalSequences(workload_, batch), options_.roles,
                        StepTokens(batch))) {
      const Result<WholeStep> step = Predict(typical.groups, options_.roles);
      if (!step) return step.error();
      Add(*step, typical.count, sum);
      if (typical.inputs.empty()) continue;
      const Result<WholeStep> encoder = PredictEncoder(typical.inputs);
      if (!encoder) return encoder.error();
      Add(*encoder, typical.count, sum);
    }
    Add(Sampling(options_.roles, batch), 1, sum);
    return sum;
  }

  // Of a token of each sequence.
  WholeStep Sampling(const strategy::Roles& roles, int batch) const {
    const double seconds = SamplingSeconds(pricer_, options_.model.spec, roles, batch);
    return {.seconds = seconds, .once_seconds = seconds};
  }

  bool is_stream() const { return workload_.arrival_rate > 0; }

  bool moves() const {
    return options_.changes_layout && (!is_stream() || options_.phase_change.epoch_steps > 0);
  }

  // A step; of a stream with its part of what it takes to move experts.
  Result<WholeStep> Decode(int batch) {
    if (!(workload_.mean_gen_tokens() > 1)) return WholeStep{};
    const strategy::Roles& roles = moves() ? options_.decode_roles : options_.roles;
    Result<WholeStep> step =
        Predict(DecodeStepOf(options_.whole_spec, workload_, batch, roles), roles);
    if (step) Add(Sampling(roles, batch), 1, *step);
    if (step && moves() && is_stream()) {
      Add(round_trip_, 1.0 / options_.phase_change.epoch_steps, *step);
    }
    return step;
  }

  // The smallest that generates so many tokens in a second; larger ones generate more.
  Result<int> BatchThatGives(double tokens_per_second) {
    const auto gives = [&](int batch) -> Result<bool> {
      const Result<WholeStep> step = Decode(batch);
      if (!step) return step.error();
      return batch >= tokens_per_second * step->seconds;
    };
    int too_few = 0;
    int enough = 1;
    const int most = std::min(options_.step_tokens * options_.roles.num_groups(), kMostSequences);
    for (;; enough = std::min(enough * 2, most)) {
      const Result<bool> suffices = gives(enough);
      if (!suffices) return suffices.error();
      if (*suffices) break;
      too_few = enough;
      if (enough >= most) {
        return Error{fmt::format(
            "{} that run together do not generate the {} tokens per second that are asked for",
            FormatCount(static_cast<uint64_t>(enough), "sequence"),
            PlainNumber(tokens_per_second))};
      }
    }
    while (enough - too_few > 1) {
      const int middle = too_few + (enough - too_few) / 2;
      const Result<bool> suffices = gives(middle);
      if (!suffices) return suffices.error();
      (*suffices ? enough : too_few) = middle;
    }
    return enough;
  }

  PlanFigures Figures(int batch, WholeStep prefill, const WholeStep& decode,
                      double round_trips) const {
    const double gen_tokens = workload_.mean_gen_tokens();
    WholeStep all = prefill;
    Add(decode, gen_tokens - 1, all);
    Add(round_trip_, round_trips, all);
    const bool is_ttft = workload_.objective == Objective::kTtft;
    const bool is_step = workload_.objective == Objective::kTimePerToken;
    PlanFigures figures;
    Score(is_ttft   ? prefill
          : is_step ? decode
                    : all,
          is_ttft || is_step ? 1 : batch * gen_tokens, /*waiting=*/0, figures);
    const WholeStep solver = {.seconds = options_.solver_seconds,
                              .once_seconds = options_.solver_seconds};
    Add(solver, 1, prefill);
    Add(solver, 1, all);
    const double tokens = batch * gen_tokens;
    const auto interval = [errors = pricer_.Errors()](const WholeStep& of) {
      return cost::IntervalOf(OutlineOf(of), errors);
    };
    const cost::Interval total = interval(all);
    figures.batch = batch;
    figures.ttft = prefill.seconds;
    figures.time_per_token = decode.seconds;
    figures.throughput = tokens / all.seconds;
    figures.ttft_interval = interval(prefill);
    figures.time_per_token_interval = interval(decode);
    figures.throughput_interval = {tokens / total.high, tokens / std::max(total.low, 1e-12)};
    figures.extrapolated_share = all.extrapolated_share;
    figures.imbalance = all.imbalance;
    figures.transition_seconds = round_trips * round_trip_.seconds;
    figures.solver_seconds = options_.solver_seconds;
    return figures;
  }

  // What plans are compared by, without the solver's time, which depends on what runs beside it:
  // one question has one answer.
  static void Score(const WholeStep& scored, double per, double waiting, PlanFigures& figures) {
    figures.score = scored.seconds / per + waiting;
    figures.overlapped_seconds = scored.overlapped_seconds / per;
    figures.waiting_seconds = waiting;
    for (size_t kind = 0; kind < figures.path.size(); ++kind) {
      figures.path[kind] = scored.path[kind] / per;
    }
  }

  const Workload& workload_;
  const PhaseStepOptions& options_;
  const StepPricer& pricer_;
  int* num_simulated_;
  int batch_ = 1;  // whose steps are predicted
  WholeStep round_trip_;
};

}  // namespace

// Rank 0 looks for the largest logit of one sequence after the other (engine/step_sampling.h),
// whatever its threads. Where ranks divide the head, each does so in its own part, and rank 0 when
// it joins these (runtime/head.h): the costs of these tasks were measured so.
double SamplingSeconds(const StepPricer& pricer, const model::ModelSpec& spec,
                       const strategy::Roles& roles, int batch) {
  return roles.divides_head() ? 0 : batch * pricer.SamplingSeconds(spec);
}

Result<PlanFigures> PredictWorkload(const Workload& workload, const PhaseStepOptions& options,
                                    const StepPricer& pricer, int* num_simulated) {
  Predictor predictor(workload, options, pricer, num_simulated);
  if (workload.arrival_rate > 0) return predictor.AtArrivalRate();
  if (workload.objective == Objective::kGoodput) return predictor.Goodput();
  return predictor.AtBatch(workload.batch);
}

}  // namespace convene::planner
