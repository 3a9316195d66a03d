#include "planner/pipeline_degree.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "planner/expert_cuts.h"
#include "planner/predict_step.h"

namespace convene::planner {
namespace {

using strategy::ChunkCut;
using strategy::Pipeline;

ClosedFormQuestion LayersOf(const PipelineQuestion& question) {
  return {.spec = question.spec,
          .roles = question.roles,
          .bytes = question.bytes,
          .tokens_per_group = question.tokens_per_group,
          .shares = question.shares,
          .micro_batches = question.micro_batches};
}

PricedPipeline Difference(PricedPipeline from, const PricedPipeline& what) {
  from.layer.seconds -= what.layer.seconds;
  for (size_t kind = 0; kind < from.layer.by_kind.size(); ++kind) {
    from.layer.by_kind[kind] -= what.layer.by_kind[kind];
  }
  // Of what is left, where exchanges run beside computation.
  if (from.layer.overlapped_seconds > 0) from.layer.overlapped_seconds = from.layer.seconds;
  return from;
}

// Prices pipelines for one question.
class Pricer {
 public:
  explicit Pricer(const PipelineQuestion& question)
      : question_(question),
        one_(LayersWithExperts(question.spec, 1)),
        two_(LayersWithExperts(question.spec, 2)) {}

  Result<PricedPipeline> Layer(const Pipeline& pipeline, int tokens) {
    // Micro-batches overlap the end of a layer with the beginning of the next.
    if (pipeline.micro_batches > 1) return Second(pipeline, tokens);
    const Result<PricedPipeline> ends = Ends(tokens);
    if (!ends) return ends.error();
    const Result<PricedPipeline> layer = Step(one_, pipeline, tokens);
    return layer ? Difference(*layer, *ends) : layer;
  }

 private:
  Result<PricedPipeline> Step(const model::ModelSpec& spec, const Pipeline& pipeline,
                              int tokens) const {
    const Result<PredictedStep> step =
        PredictStep(QuestionOfLayers(spec, LayersOf(question_), pipeline, tokens),
                    MeasuredPricer(question_.costs));
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

// What is simpler compares less.
auto ComplexityOfPipeline(const Pipeline& pipeline) {
  return std::tuple(pipeline.micro_batches, !pipeline.cuts.empty(), pipeline.chunks);
}

bool IsFaster(const PricedPipeline& a, const PricedPipeline& b) {
  return a.seconds() < b.seconds();
}

// Beside each candidate that comes near the fastest one the same chunks with better ends.
void AddCutsOfExperts(const PipelineQuestion& question, std::vector<PricedPipeline>& candidates) {
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
  for (const ChunkCut cut : {ChunkCut::kTokens, ChunkCut::kExperts}) {
    for (const int chunks : ChunksToCompare(question.spec, question.roles, cut)) {
      candidates.push_back({.chunks = chunks, .cut = cut, .micro_batches = question.micro_batches});
    }
  }
  if (question.micro_batches == 1 && question.tokens_per_group >= kMicroBatchesToChoose) {
    candidates.push_back({.micro_batches = kMicroBatchesToChoose});
  }
  return candidates;
}

bool SurelyBeats(const PricedPipeline& first, const PricedPipeline& second,
                 const cost::StepCosts& costs) {
  return cost::SurelyTakesLonger(second.layer, first.layer, cost::ErrorsOf(costs));
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
  AddCutsOfExperts(question, choice.candidates);
  choice.plain = choice.candidates.front();
  choice.fastest = *std::ranges::min_element(choice.candidates, IsFaster);
  choice.chosen = choice.fastest;
  for (const PricedPipeline& other : choice.candidates) {
    const bool is_simpler =
        ComplexityOfPipeline(other.pipeline) < ComplexityOfPipeline(choice.chosen.pipeline);
    if (is_simpler && !SurelyBeats(choice.fastest, other, question.costs)) choice.chosen = other;
  }
  choice.gain = cost::IntervalOfDifference(choice.plain.layer, choice.fastest.layer,
                                           cost::ErrorsOf(question.costs));
  const Result<ClosedForm> form = FitClosedForm(LayersOf(question), MeasuredPricer(question.costs),
                                                choice.fastest.pipeline.cut);
  if (!form) return form.error();
  choice.closed_form = *form;
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
