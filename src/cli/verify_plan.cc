#include "cli/verify_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/plain_number.h"
#include "base/units.h"
#include "cli/plan_options.h"
#include "cli/plan_report.h"
#include "cost/expected_sizes.h"
#include "cost/refine_costs.h"
#include "planner/workload_figures.h"

namespace convene::cli {
namespace {

using evaluate::TrialRun;
using nlohmann::ordered_json;
using planner::Candidate;
using planner::PlanFigures;
using planner::Workload;

// Runs of a plan that costs are corrected by; more say no more.
constexpr size_t kMostLearntRuns = 4;

// Where two runs of one plan differ by more, somebody else was at work, and costs learn nothing.
constexpr double kMostNoise = 0.25;

// Batches that begin together: requests that arrive one by one are not tried.
Workload TrialWorkload(const Workload& workload, int batch) {
  Workload trial = workload;
  trial.batch = batch;
  trial.arrival_rate = 0;
  if (trial.objective == planner::Objective::kGoodput) {
    trial.objective = planner::Objective::kThroughput;
  }
  return trial;
}

// What is to be small.
double ScoreOf(const PhaseSeconds& seconds, const Workload& workload) {
  if (workload.objective == planner::Objective::kTtft) return seconds.prefill;
  if (workload.objective == planner::Objective::kTimePerToken && seconds.decode > 0) {
    return seconds.decode;
  }
  return seconds.prefill + std::max(0.0, workload.mean_gen_tokens() - 1) * seconds.decode +
         seconds.transition;
}

// Of the steps that are run, and what is between them: the search that found the plan is over, and
// trials sample nothing behind a step.
PhaseSeconds PhasesOf(const PlanFigures& figures, const PhaseSeconds& sampling) {
  return {.prefill = figures.ttft - figures.solver_seconds - sampling.prefill,
          .decode = figures.time_per_token - sampling.decode,
          .transition = figures.transition_seconds};
}

class Verifier {
 public:
  Verifier(const VerifyWish& wish, comm::Group& ranks, planner::PlanSearch& search,
           planner::PlanAnswer& answer, cost::MachineProfile* profile)
      : wish_(wish),
        ranks_(ranks),
        search_(search),
        answer_(answer),
        profile_(*profile),
        workload_(TrialWorkload(search.question().workload,
                                answer.candidates[answer.chosen].figures->batch)) {}

  Result<Verification> Run() {
    const Candidate& chosen = answer_.candidates[answer_.chosen];
    if (chosen.setup.num_ranks != ranks_.size()) {
      return Error{fmt::format(
          "the plan is for {}, and {} started: start as many with mpirun -n {} --bind-to none",
          FormatCount(static_cast<uint64_t>(chosen.setup.num_ranks), "rank"),
          ranks_.size() == 1 ? "1 was" : fmt::format("{} were", ranks_.size()),
          chosen.setup.num_ranks)};
    }
    const std::vector<int> plans = PlansToTry(answer_, wish_.most_plans);
    for (const int candidate : plans) found_.plans.push_back({.candidate = candidate});
    Result<evaluate::Trials> trials = evaluate::AskForTrials(
        ranks_, wish_.directory, TrialQuestionOf(wish_, search_, answer_, plans));
    if (!trials) return trials.error();
    found_.run_seconds = trials->run_seconds;
    std::vector<std::vector<double>> scores;
    for (size_t i = 0; i < found_.plans.size(); ++i) {
      Result<std::vector<double>> of_runs = Compare(trials->plans[i], found_.plans[i]);
      if (!of_runs) return of_runs.error();
      scores.push_back(*std::move(of_runs));
    }
    Judge(scores);
    Learn(*trials);
    return std::move(found_);
  }

 private:
  const Candidate& CandidateOf(const VerifiedPlan& plan) const {
    return answer_.candidates[plan.candidate];
  }

  cost::StepCosts& CostsOf(const Candidate& candidate) {
    const planner::RankSetup& setup = candidate.setup;
    cost::StepCosts* found = profile_.CostsOf(setup.num_ranks, setup.num_threads, setup.weights);
    CHECK(found != nullptr, "a plan was priced without costs");
    return *found;
  }

  cost::MachineState StateOf(const Candidate& candidate, const TrialRun& run) {
    const cost::ReferenceSpeed& reference = CostsOf(candidate).reference;
    if (!(reference.read_bytes_per_second > 0 && reference.dot_operations_per_second > 0))
      return {};
    return reference.StateAt(run.speed);
  }

  // What the figures have besides the steps. Precondition: the search has priced the plan.
  PhaseSeconds SamplingOf(const Candidate& candidate, const PlanFigures& figures) const {
    const auto seconds = [&](const strategy::Layout& layout) {
      return planner::SamplingSeconds(search_.PricerOf(candidate), search_.question().spec, layout,
                                      figures.batch);
    };
    const plan::Plan& plan = candidate.plan;
    const bool has_decode = figures.time_per_token > 0;
    return {.prefill = seconds(plan.layout),
            .decode = has_decode ? seconds(plan.decode.value_or(plan.layout)) : 0};
  }

  // What of each run is to be small, on a machine as fast as when its costs were measured. With
  // what sampling is predicted to take: a plan that divides the head was measured with it.
  Result<std::vector<double>> Compare(const evaluate::TriedPlan& tried, VerifiedPlan& plan) {
    const Candidate& candidate = CandidateOf(plan);
    plan.why_not = tried.why_not;
    plan.load_seconds = tried.load_seconds;
    plan.loaded_anew = tried.loaded_anew;
    plan.num_runs = static_cast<int>(tried.runs.size());
    const std::vector<std::string>& learnt = CostsOf(candidate).learnt_from;
    plan.is_known =
        std::ranges::find(learnt, NameOfPlan(candidate, wish_.model_hash)) != learnt.end();
    const auto predict = [&](const cost::MachineState& state) {
      return search_.FiguresOf(candidate.setup, candidate.plan, workload_, {.machine = state});
    };
    const Result<PlanFigures> usual = predict({});
    if (!usual) return usual.error();
    const PhaseSeconds sampling = SamplingOf(candidate, *usual);
    const double usual_score = ScoreOf(PhasesOf(*usual, sampling), workload_);
    std::vector<double> scores;
    const auto share = 1.0 / static_cast<double>(std::max<size_t>(1, tried.runs.size()));
    for (const TrialRun& run : tried.runs) {
      const cost::MachineState state = StateOf(candidate, run);
      states_.push_back(state);
      const Result<PlanFigures> then = predict(state);
      if (!then) return then.error();
      const PhaseSeconds predicted = PhasesOf(*then, sampling);
      const PhaseSeconds measured{run.prefill_seconds, run.decode_seconds, run.transition_seconds};
      for (auto member :
           {&PhaseSeconds::prefill, &PhaseSeconds::decode, &PhaseSeconds::transition}) {
        plan.predicted.*member += share * predicted.*member;
        plan.measured.*member += share * measured.*member;
      }
      scores.push_back(ScoreOf(measured, workload_) * usual_score / ScoreOf(predicted, workload_) +
                       ScoreOf(sampling, workload_));
    }
    if (!scores.empty()) {
      const auto [least, most] = std::ranges::minmax(scores);
      plan.spread = most / least - 1;
    }
    return scores;
  }

  void Judge(const std::vector<std::vector<double>>& scores) {
    const evaluate::Judgement judgement = evaluate::Judge(scores);
    found_.noise = judgement.noise;
    for (const cost::MachineState& state : states_) {
      found_.state.memory *= std::pow(state.memory, 1.0 / static_cast<double>(states_.size()));
      found_.state.compute *= std::pow(state.compute, 1.0 / static_cast<double>(states_.size()));
    }
    const auto ran = std::ranges::count_if(scores, [](const auto& of) { return !of.empty(); });
    if (scores.front().empty()) {
      found_.verdict =
          fmt::format("the choice could not be run, and stays: {}", found_.plans.front().why_not);
    } else if (ran == 1) {
      found_.verdict = "the choice ran, and there was no other plan to compare it with: it stays";
    } else if (judgement.best == 0) {
      found_.is_confirmed = true;
      found_.verdict = fmt::format("confirmed: the chosen plan took the least of {} that ran", ran);
    } else {
      Decide(scores, judgement);
    }
  }

  void Decide(const std::vector<std::vector<double>>& scores,
              const evaluate::Judgement& judgement) {
    const auto mean = [&](size_t plan) {
      double sum = 0;
      for (const double each : scores[plan]) sum += each;
      return sum / static_cast<double>(scores[plan].size());
    };
    const auto best = static_cast<size_t>(judgement.best);
    const double gain = mean(0) / mean(best) - 1;
    const VerifiedPlan& faster = found_.plans[best];
    if (judgement.is_certain) {
      found_.is_corrected = true;
      found_.verdict = fmt::format(
          "corrected: {} was {:.1f} % faster than {}, in every run, and two runs of one plan "
          "differ by at most {:.1f} %",
          Describe(CandidateOf(faster)), 100 * gain, Describe(CandidateOf(found_.plans.front())),
          100 * judgement.noise);
      answer_.chosen = faster.candidate;
      answer_.why_chosen = found_.verdict;
      return;
    }
    if (scores[best].size() < evaluate::kFewestRuns) {
      found_.verdict = fmt::format(
          "the choice stays: {} was {:.1f} % faster, but {} of each are too few to be certain; "
          "give --verify more seconds",
          Describe(CandidateOf(faster)), 100 * gain, FormatCount(scores[best].size(), "run"));
      return;
    }
    found_.verdict = fmt::format(
        "the choice stays: {} was {:.1f} % faster on average, which is not beyond the {:.1f} % by "
        "which two runs of one plan differ",
        Describe(CandidateOf(faster)), 100 * gain, 100 * judgement.noise);
  }

  // All runs of one setup correct its costs.
  void Learn(const evaluate::Trials& trials) {
    if (found_.noise > kMostNoise) return;
    std::vector<cost::StepCosts*> done;
    for (const VerifiedPlan& plan : found_.plans) {
      cost::StepCosts& costs = CostsOf(CandidateOf(plan));
      if (std::ranges::find(done, &costs) != done.end()) continue;
      done.push_back(&costs);
      LearnFor(costs, trials);
    }
  }

  void LearnFor(cost::StepCosts& costs, const evaluate::Trials& trials) {
    std::vector<std::vector<cost::TaskParts>> parts;
    std::vector<cost::TracedCosts> traced;
    std::vector<std::string> names;
    for (size_t i = 0; i < found_.plans.size(); ++i) {
      const Candidate& candidate = CandidateOf(found_.plans[i]);
      if (&CostsOf(candidate) != &costs || trials.plans[i].runs.empty()) continue;
      names.push_back(NameOfPlan(candidate, wish_.model_hash));
      const size_t num_runs = std::min(kMostLearntRuns, trials.plans[i].runs.size());
      for (size_t run = 0; run < num_runs; ++run) {
        for (const runtime::RecordedStep& step : trials.plans[i].runs[run].steps) {
          parts.push_back(PartsOf(step));
          traced.push_back({.schedule = step.schedule.get(),
                            .timeline = &step.timeline,
                            .state = StateOf(candidate, trials.plans[i].runs[run])});
        }
      }
    }
    if (traced.empty()) return;
    for (size_t i = 0; i < traced.size(); ++i) traced[i].parts = parts[i];
    const bool int8_kv = search_.question().int8_kv;
    if (int8_kv) costs.SwapCaches();
    cost::Refinement refined =
        cost::RefineStepCosts(costs, traced, profile_.machine.last_level_cache_bytes);
    for (cost::StepCosts* swapped : {&costs, &refined.costs}) {
      if (int8_kv) swapped->SwapCaches();
    }
    found_.fits_caches |= refined.fits_caches;
    std::vector<std::string> changes;
    const auto tell = [&](std::string_view what, const std::optional<cost::KindRefinement>& found) {
      if (!found || !found->is_used) return;
      changes.push_back(fmt::format("{} x {:.3g}", what, found->factor));
    };
    for (size_t kind = 0; kind < refined.tasks.size(); ++kind) {
      tell(schedule::Name(static_cast<schedule::TaskKind>(kind)), refined.tasks[kind]);
    }
    tell("exchanges", refined.exchange);
    if (changes.empty()) return;
    costs = refined.costs;
    for (const std::string& name : names) costs.LearntFrom(name);
    found_.learnt.push_back(
        fmt::format("{} x {}, {}: {}", FormatCount(static_cast<uint64_t>(costs.num_ranks), "rank"),
                    FormatCount(static_cast<uint64_t>(costs.num_threads), "thread"), costs.weights,
                    fmt::join(changes, ", ")));
  }

  static std::vector<cost::TaskParts> PartsOf(const runtime::RecordedStep& step) {
    cost::RecordedSizes sizes;
    for (const auto& [size, value] : step.sizes) sizes.Set(size, value);
    std::vector<cost::TaskParts> parts;
    for (const schedule::Task& task : step.schedule->tasks) {
      parts.push_back(
          cost::PartsOf(task, [&](const schedule::Size& size) { return sizes.at(size); }));
    }
    return parts;
  }

  const VerifyWish& wish_;
  comm::Group& ranks_;
  planner::PlanSearch& search_;
  planner::PlanAnswer& answer_;
  cost::MachineProfile& profile_;
  Workload workload_;
  std::vector<cost::MachineState> states_;
  Verification found_;
};

std::string PhaseLine(const char* name, double predicted, double measured) {
  if (!(measured > 0)) return "";
  return fmt::format("     {:<9}predicted {:>9}, measured {:>9}  ({:+.1f} %)\n", name,
                     FormatSeconds(predicted), FormatSeconds(measured),
                     100 * (predicted / measured - 1));
}

}  // namespace

evaluate::TrialQuestion TrialQuestionOf(const VerifyWish& wish, const planner::PlanSearch& search,
                                        const planner::PlanAnswer& answer,
                                        std::span<const int> plans) {
  const planner::PlanQuestion& asked = search.question();
  const Workload workload = TrialWorkload(
      asked.workload, answer.candidates[static_cast<size_t>(plans.front())].figures->batch);
  evaluate::TrialQuestion question{
      .sequences = TypicalSequences(workload, workload.batch),
      .prompt_tokens = static_cast<int>(workload.mean_prompt_tokens()),
      .context = workload.mean_gen_tokens() > 1
                     ? std::max(1, static_cast<int>(workload.mean_context()))
                     : 0,
      .step_tokens = asked.step_tokens,
      .expand_from_tokens = asked.expand_from_tokens,
      .router = RouterOverrideOf(workload.routing, asked.spec),
      .memory_budgets = wish.memory_budgets,
      .seconds = wish.seconds,
      .most_load_seconds = wish.most_load_seconds};
  for (const int index : plans) {
    const Candidate& candidate = answer.candidates[static_cast<size_t>(index)];
    plan::Plan plan = candidate.plan;
    plan.weights = candidate.setup.weights;
    if (candidate.setup.int8_kv) plan.kv_cache = "int8";
    plan.num_threads = candidate.setup.num_threads;
    question.plans.push_back(std::move(plan));
  }
  return question;
}

std::string NameOfPlan(const Candidate& candidate, const std::string& model_hash) {
  return fmt::format("{} of model {}", Describe(candidate), model_hash);
}

std::vector<int> PlansToTry(const planner::PlanAnswer& answer, size_t most) {
  const Candidate& chosen = answer.candidates[answer.chosen];
  std::vector<int> plans = {answer.chosen};
  const auto is_in_memory = [](const Candidate& one) {
    return !one.plan.experts_in_memory && !one.plan.spilled_kv;
  };
  if (!is_in_memory(chosen)) return plans;
  for (int i = 0; i < std::ssize(answer.candidates) && plans.size() < most; ++i) {
    const Candidate& one = answer.candidates[i];
    const bool runs_here = one.setup.num_ranks == chosen.setup.num_ranks &&
                           one.setup.num_threads == chosen.setup.num_threads && is_in_memory(one);
    if (i != answer.chosen && one.is_ranked() && one.is_allowed() && runs_here) plans.push_back(i);
  }
  return plans;
}

Result<Verification> VerifyPlans(const VerifyWish& wish, comm::Group& ranks,
                                 planner::PlanSearch& search, planner::PlanAnswer& answer,
                                 cost::MachineProfile* profile) {
  return Verifier(wish, ranks, search, answer, profile).Run();
}

std::string ToText(const Verification& verification, const planner::PlanAnswer& answer) {
  std::string text =
      fmt::format("verified by running, for {:.1f} s, in turn and in reverse order\n",
                  verification.run_seconds);
  int number = 0;
  for (const VerifiedPlan& plan : verification.plans) {
    text += fmt::format("  {}  {}\n", ++number, Describe(answer.candidates[plan.candidate]));
    if (!plan.why_not.empty()) {
      text += fmt::format("     did not run: {}\n", plan.why_not);
      continue;
    }
    text += PhaseLine("prefill", plan.predicted.prefill, plan.measured.prefill);
    text += PhaseLine("decode", plan.predicted.decode, plan.measured.decode);
    const plan::Plan& tried = answer.candidates[plan.candidate].plan;
    if (tried.changes_layout() && !tried.phase_change.keeps_both) {
      text += PhaseLine("moves", plan.predicted.transition, plan.measured.transition);
    }
    text += fmt::format("     {} within {:.1f} %; {}\n",
                        FormatCount(static_cast<uint64_t>(plan.num_runs), "run"), 100 * plan.spread,
                        plan.loaded_anew ? fmt::format("weights loaded in {} s, which is not "
                                                       "counted",
                                                       PlainNumber(plan.load_seconds, 2))
                                         : "on weights that were there");
    if (plan.is_known) {
      text += "     its costs had learnt from this plan before: no test of a prediction\n";
    }
  }
  const cost::MachineState& state = verification.state;
  text += fmt::format(
      "  memory took {:.2f} x and cores {:.2f} x the time of when costs were measured, which these "
      "predictions take into account\n  {}\n",
      state.memory, state.compute, verification.verdict);
  for (const std::string& learnt : verification.learnt) {
    text += fmt::format("  learnt, for later searches: {}\n", learnt);
  }
  if (verification.learnt.empty()) {
    text += verification.noise > kMostNoise
                ? "  learnt: nothing, since runs of one plan differ too much\n"
                : "  learnt: nothing, costs stay as they are\n";
  }
  if (verification.fits_caches) {
    text +=
        "  its weights fit into the caches, which those of larger models do not: costs of tasks "
        "learn nothing from it\n";
  }
  return text;
}

ordered_json ToJson(const Verification& verification, const planner::PlanAnswer& answer) {
  ordered_json plans = ordered_json::array();
  for (const VerifiedPlan& plan : verification.plans) {
    const Candidate& candidate = answer.candidates[plan.candidate];
    plans.push_back({{"name", Describe(candidate)},
                     {"why_not", plan.why_not},
                     {"load_seconds", plan.load_seconds},
                     {"loaded_anew", plan.loaded_anew},
                     {"runs", plan.num_runs},
                     {"predicted_prefill_s", plan.predicted.prefill},
                     {"measured_prefill_s", plan.measured.prefill},
                     {"predicted_decode_s", plan.predicted.decode},
                     {"measured_decode_s", plan.measured.decode},
                     {"predicted_transition_s", plan.predicted.transition},
                     {"measured_transition_s", plan.measured.transition},
                     {"spread", plan.spread},
                     {"costs_knew_it", plan.is_known}});
  }
  return {{"run_seconds", verification.run_seconds},
          {"noise", verification.noise},
          {"confirmed", verification.is_confirmed},
          {"corrected", verification.is_corrected},
          {"verdict", verification.verdict},
          {"memory_state", verification.state.memory},
          {"compute_state", verification.state.compute},
          {"learnt", verification.learnt},
          {"plans", plans}};
}

}  // namespace convene::cli
