#include "planner/pipeline_degree.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "cost/linear_fit.h"
#include "cost/prices.h"
#include "planner/expert_cuts.h"
#include "planner/predict_step.h"
#include "schedule/activity_graph.h"

namespace convene::planner {
namespace {

using schedule::TaskKind;
using strategy::ChunkCut;
using strategy::Pipeline;

// Between powers of two what lies halfway.
constexpr std::array kChunks = {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
// Tokens of a prompt, at most, in the step that is imagined.
constexpr int kPromptTokens = 512;

const model::LayerSpec* LayerWithExperts(const model::ModelSpec& spec) {
  const auto is_moe = [](const model::LayerSpec& layer) { return layer.moe.has_value(); };
  const auto layer = std::find_if(spec.layers.begin(), spec.layers.end(), is_moe);
  return layer == spec.layers.end() ? nullptr : &*layer;
}

// So many layers with experts, and nothing else of the model.
model::ModelSpec LayersOf(const model::ModelSpec& spec, int count) {
  model::ModelSpec some = spec;
  some.encoder_layers.clear();
  some.vocab_size = 0;
  some.layers.assign(static_cast<size_t>(count), *LayerWithExperts(spec));
  return some;
}

PricedPipeline Difference(PricedPipeline from, const PricedPipeline& what) {
  from.layer.seconds -= what.layer.seconds;
  for (size_t kind = 0; kind < from.layer.by_kind.size(); ++kind) {
    from.layer.by_kind[kind] -= what.layer.by_kind[kind];
  }
  return from;
}

// Prices pipelines for one question.
class Pricer {
 public:
  explicit Pricer(const PipelineQuestion& question)
      : question_(question), one_(LayersOf(question.spec, 1)), two_(LayersOf(question.spec, 2)) {}

  Result<PricedPipeline> Layer(const Pipeline& pipeline, int tokens) {
    // Micro-batches overlap the end of a layer with the beginning of the next.
    if (pipeline.micro_batches > 1) return Second(pipeline, tokens);
    const Result<PricedPipeline> ends = Ends(tokens);
    if (!ends) return ends.error();
    const Result<PricedPipeline> layer = Step(one_, pipeline, tokens);
    return layer ? Difference(*layer, *ends) : layer;
  }

  // What the experts of a layer take, one task after the other: computing, of the rank that takes
  // longest, and exchanging. Precondition: costs of all kinds of tasks.
  std::pair<double, double> Alone(const Pipeline& pipeline) const {
    const StepQuestion question = QuestionOf(one_, pipeline, question_.tokens_per_group);
    const schedule::Schedule step = strategy::BuildStep(one_, question.options);
    const schedule::ActivityGraph graph = schedule::BuildActivityGraph(step);
    const cost::ExpectedSizes sizes = ExpectSizes(question);
    const cost::Prices prices =
        PriceSchedule(step, graph, question_.costs,
                      [&sizes](const schedule::Size& size) { return sizes.at(size); });
    std::vector<double> computation(static_cast<size_t>(question_.roles.num_ranks()));
    double communication = 0;
    for (int activity = 0; activity < graph.num_activities(); ++activity) {
      const schedule::Task& task = step.tasks[graph.tasks_of(activity).front()];
      const double seconds = SecondsAlone(prices, activity);
      if (task.kind == TaskKind::kExperts || task.kind == TaskKind::kReduce) {
        computation[task.lane.rank] += seconds;
      }
      if (task.kind == TaskKind::kDispatch || task.kind == TaskKind::kCombine) {
        communication += seconds;
      }
    }
    return {*std::max_element(computation.begin(), computation.end()), communication};
  }

 private:
  StepQuestion QuestionOf(const model::ModelSpec& spec, const Pipeline& pipeline,
                          int tokens) const {
    StepQuestion question{.spec = spec,
                          .options = {.roles = question_.roles,
                                      .pipeline = pipeline,
                                      .bytes = question_.bytes,
                                      .prunes_last_layer = false}};
    if (!question_.shares.empty()) question.shares = {question_.shares};
    std::vector<strategy::SequenceRows> sequences;
    for (int left = tokens; left > 0; left -= kPromptTokens) {
      const int length = std::min(left, kPromptTokens);
      sequences.push_back({.num_tokens = length, .prompt_length = length});
    }
    question.groups.assign(static_cast<size_t>(question_.roles.num_groups()), sequences);
    return question;
  }

  Result<PricedPipeline> Step(const model::ModelSpec& spec, const Pipeline& pipeline,
                              int tokens) const {
    const Result<PredictedStep> step =
        PredictStep(QuestionOf(spec, pipeline, tokens), MeasuredPricer(question_.costs));
    if (!step) return step.error();
    return PricedPipeline{pipeline, OutlineOf(*step)};
  }

  Result<PricedPipeline> Second(const Pipeline& pipeline, int tokens) const {
    const Result<PricedPipeline> both = Step(two_, pipeline, tokens);
    if (!both) return both;
    const Result<PricedPipeline> first = Step(one_, pipeline, tokens);
    return first ? Difference(*both, *first) : first;
  }

  // What a step takes besides layers. Chunks do not change it.
  Result<PricedPipeline> Ends(int tokens) {
    if (const auto found = ends_.find(tokens); found != ends_.end()) return found->second;
    const Result<PricedPipeline> step = Step(one_, {}, tokens);
    if (!step) return step;
    const Result<PricedPipeline> layer = Second({}, tokens);
    if (!layer) return layer;
    return ends_[tokens] = Difference(*step, *layer);
  }

  const PipelineQuestion& question_;
  model::ModelSpec one_;
  model::ModelSpec two_;
  std::map<int, PricedPipeline> ends_;
};

int ExpertsPerRank(const PipelineQuestion& question) {
  const int num_experts = LayerWithExperts(question.spec)->moe->num_experts;
  return std::max(1, question.roles.expert_split().FewestExperts(num_experts));
}

ClosedForm FitClosedForm(const Pricer& pricer, const PipelineQuestion& question, ChunkCut cut) {
  ClosedForm form;
  std::tie(form.computation, form.communication) =
      pricer.Alone({.micro_batches = question.micro_batches});
  const double plain = form.computation + form.communication;
  std::vector<cost::Point> points;
  for (const Pipeline& pipeline : PipelineCandidates(question)) {
    if (pipeline.chunks == 1 || pipeline.cut != cut) continue;
    const auto [computation, communication] = pricer.Alone(pipeline);
    const double extra = std::max(0.0, computation + communication - plain);
    points.push_back({.x = double(pipeline.chunks), .y = extra});
  }
  if (points.empty()) return form;
  const cost::LinearFit fit = cost::FitLinear(points);
  form.once = fit.alpha;
  form.per_chunk = fit.beta;
  const double most = ExpertsPerRank(question);
  const double hidden = std::min(form.communication, form.computation);
  const double best = form.per_chunk > 0 ? std::sqrt(hidden / form.per_chunk) : most;
  form.chunks = static_cast<int>(std::lround(std::clamp(best, 1.0, most)));
  return form;
}

// What is simpler compares less.
auto Complexity(const Pipeline& pipeline) {
  return std::tuple(pipeline.micro_batches, !pipeline.cuts.empty(), pipeline.chunks);
}

bool IsFaster(const PricedPipeline& a, const PricedPipeline& b) {
  return a.seconds() < b.seconds();
}

// Beside each candidate that comes near the fastest one the same chunks with better ends.
void AddCuts(const PipelineQuestion& question, std::vector<PricedPipeline>& candidates) {
  const double limit = std::ranges::min_element(candidates, IsFaster)->seconds() * kMostGainOfCuts;
  std::vector<PricedPipeline> all;
  for (const PricedPipeline& candidate : candidates) {
    all.push_back(candidate);
    const bool is_cut = candidate.pipeline.chunks > 1 &&
                        candidate.pipeline.cut == ChunkCut::kExperts &&
                        candidate.seconds() <= limit;
    if (!is_cut) continue;
    PricedPipeline fitted = FitCuts(question, candidate.pipeline);
    if (!fitted.pipeline.cuts.empty()) all.push_back(std::move(fitted));
  }
  candidates = std::move(all);
}

}  // namespace

std::vector<Pipeline> PipelineCandidates(const PipelineQuestion& question) {
  std::vector<Pipeline> candidates = {{.micro_batches = question.micro_batches}};
  if (question.roles.num_ranks() == 1 || LayerWithExperts(question.spec) == nullptr) {
    return candidates;
  }
  const int num_experts = ExpertsPerRank(question);
  for (const ChunkCut cut : {ChunkCut::kTokens, ChunkCut::kExperts}) {
    for (const int chunks : kChunks) {
      if (cut == ChunkCut::kExperts && chunks > num_experts) break;
      candidates.push_back({.chunks = chunks, .cut = cut, .micro_batches = question.micro_batches});
    }
  }
  if (question.micro_batches == 1 && question.tokens_per_group >= kMicroBatchesToChoose) {
    candidates.push_back({.micro_batches = kMicroBatchesToChoose});
  }
  return candidates;
}

double ClosedForm::Gain(double num_chunks) const {
  return std::min(communication, computation) * (num_chunks - 1) / num_chunks -
         (per_chunk * num_chunks + once);
}

bool SurelyBeats(const PricedPipeline& first, const PricedPipeline& second,
                 const cost::StepCosts& costs) {
  return cost::IntervalOfDifference(second.layer, first.layer, cost::ErrorsOf(costs)).low > 0;
}

Result<PipelineChoice> ChoosePipeline(const PipelineQuestion& question) {
  PipelineChoice choice;
  const bool has_choice =
      question.roles.num_ranks() > 1 && LayerWithExperts(question.spec) != nullptr;
  if (!has_choice) return choice;
  Pricer pricer(question);
  for (const Pipeline& pipeline : PipelineCandidates(question)) {
    const Result<PricedPipeline> priced = pricer.Layer(pipeline, question.tokens_per_group);
    if (!priced) return priced.error();
    choice.candidates.push_back(*priced);
  }
  AddCuts(question, choice.candidates);
  choice.plain = choice.candidates.front();
  choice.fastest = *std::ranges::min_element(choice.candidates, IsFaster);
  choice.chosen = choice.fastest;
  for (const PricedPipeline& other : choice.candidates) {
    const bool is_simpler = Complexity(other.pipeline) < Complexity(choice.chosen.pipeline);
    if (is_simpler && !SurelyBeats(choice.fastest, other, question.costs)) choice.chosen = other;
  }
  choice.gain = cost::IntervalOfDifference(choice.plain.layer, choice.fastest.layer,
                                           cost::ErrorsOf(question.costs));
  choice.closed_form = FitClosedForm(pricer, question, choice.fastest.pipeline.cut);
  return choice;
}

PricedPipeline PricePipeline(const PipelineQuestion& question, const Pipeline& pipeline,
                             int tokens_per_group) {
  return *Pricer(question).Layer(pipeline, tokens_per_group);
}

int FasterFromTokens(const PipelineQuestion& question, const Pipeline& pipeline) {
  Pricer pricer(question);
  const Pipeline plain{.micro_batches = question.micro_batches};
  int from = question.tokens_per_group + 1;
  for (int tokens = from - 1; tokens >= pipeline.micro_batches; tokens /= 2) {
    if (!SurelyBeats(*pricer.Layer(pipeline, tokens), *pricer.Layer(plain, tokens),
                     question.costs)) {
      break;
    }
    from = tokens;
  }
  return from;
}

std::string Words(const Pipeline& pipeline) {
  if (pipeline.chunks == 1 && pipeline.micro_batches == 1) return "none";
  if (pipeline.chunks == 1) return fmt::format("{} micro-batches", pipeline.micro_batches);
  return fmt::format("{} chunks of {}{}", pipeline.chunks,
                     pipeline.cut == ChunkCut::kTokens ? "tokens" : "experts",
                     pipeline.cuts.empty() ? "" : " of unlike size");
}

std::string Describe(const PipelineChoice& choice, int from_tokens) {
  const ClosedForm& form = choice.closed_form;
  if (choice.chosen.pipeline == choice.plain.pipeline) {
    if (choice.fastest.pipeline == choice.plain.pipeline) {
      return fmt::format("pipeline: none, which is predicted to be fastest; closed form {}",
                         form.chunks);
    }
    return fmt::format(
        "pipeline: none, since no other is surely faster; {} would be {:.2f} x plain, and gain "
        "{:.2f} to {:.2f} ms of {:.2f} ms a layer; closed form {}",
        Words(choice.fastest.pipeline), choice.Speedup(choice.fastest), 1e3 * choice.gain.low,
        1e3 * choice.gain.high, 1e3 * choice.plain.seconds(), form.chunks);
  }
  return fmt::format(
      "pipeline: {} from {} tokens per step (predicted {:.2f} x plain; closed form "
      "{})",
      Words(choice.chosen.pipeline), from_tokens, choice.Speedup(choice.chosen), form.chunks);
}

}  // namespace convene::planner
