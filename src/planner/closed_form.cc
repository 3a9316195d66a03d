#include "planner/closed_form.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "cost/linear_fit.h"
#include "cost/prices.h"
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

int ExpertsPerRank(const model::ModelSpec& spec, const strategy::Roles& roles) {
  return std::max(1, roles.expert_split().FewestExperts(LayerWithExperts(spec)->moe->num_experts));
}

struct Alone {
  double computation = 0;  // of the rank that takes longest
  double communication = 0;
};

// What the experts of a layer take, one task after the other.
Result<Alone> PriceAlone(const model::ModelSpec& layer, const ClosedFormQuestion& question,
                         const StepPricer& pricer, const Pipeline& pipeline) {
  const StepQuestion step_question =
      QuestionOfLayers(layer, question, pipeline, question.tokens_per_group);
  const schedule::Schedule step = strategy::BuildStep(layer, step_question.options);
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(step);
  const cost::ExpectedSizes sizes = ExpectSizes(step_question);
  const Result<SchedulePrices> prices =
      pricer.Price(layer, step, graph, [&](const schedule::Size& size) { return sizes.at(size); });
  if (!prices) return prices.error();
  std::vector<double> computation(static_cast<size_t>(question.roles.num_ranks()));
  Alone alone;
  for (int activity = 0; activity < graph.num_activities(); ++activity) {
    const schedule::Task& task = step.tasks[graph.tasks_of(activity).front()];
    const double seconds = SecondsAlone(prices->prices, activity);
    if (task.kind == TaskKind::kExperts || task.kind == TaskKind::kReduce) {
      computation[task.lane.rank] += seconds;
    }
    if (task.kind == TaskKind::kDispatch || task.kind == TaskKind::kCombine) {
      alone.communication += seconds;
    }
  }
  alone.computation = std::ranges::max(computation);
  return alone;
}

}  // namespace

double ClosedForm::Gain(double num_chunks) const {
  return std::min(communication, computation) * (num_chunks - 1) / num_chunks -
         (per_chunk * num_chunks + once);
}

const model::LayerSpec* LayerWithExperts(const model::ModelSpec& spec) {
  const auto is_moe = [](const model::LayerSpec& layer) { return layer.moe.has_value(); };
  const auto layer = std::find_if(spec.layers.begin(), spec.layers.end(), is_moe);
  return layer == spec.layers.end() ? nullptr : &*layer;
}

model::ModelSpec LayersWithExperts(const model::ModelSpec& spec, int count) {
  model::ModelSpec some = spec;
  some.encoder_layers.clear();
  some.vocab_size = 0;
  some.layers.assign(static_cast<size_t>(count), *LayerWithExperts(spec));
  return some;
}

StepQuestion QuestionOfLayers(const model::ModelSpec& layers, const ClosedFormQuestion& question,
                              const Pipeline& pipeline, int tokens_per_group) {
  StepQuestion step{.spec = layers,
                    .options = {.roles = question.roles,
                                .pipeline = pipeline,
                                .bytes = question.bytes,
                                .prunes_last_layer = false}};
  if (!question.shares.empty()) step.shares = {question.shares};
  std::vector<strategy::SequenceRows> sequences;
  for (int left = tokens_per_group; left > 0; left -= kPromptTokens) {
    const int length = std::min(left, kPromptTokens);
    sequences.push_back({.num_tokens = length, .prompt_length = length});
  }
  step.groups.assign(static_cast<size_t>(question.roles.num_groups()), sequences);
  return step;
}

std::vector<int> ChunksToCompare(const model::ModelSpec& spec, const strategy::Roles& roles,
                                 ChunkCut cut) {
  const int most = cut == ChunkCut::kExperts ? ExpertsPerRank(spec, roles) : kChunks.back();
  std::vector<int> counts;
  for (const int chunks : kChunks) {
    if (chunks <= most) counts.push_back(chunks);
  }
  return counts;
}

Result<ClosedForm> FitClosedForm(const ClosedFormQuestion& question, const StepPricer& pricer,
                                 ChunkCut cut) {
  const model::ModelSpec layer = LayersWithExperts(question.spec, 1);
  const Result<Alone> plain =
      PriceAlone(layer, question, pricer, {.micro_batches = question.micro_batches});
  if (!plain) return plain.error();
  ClosedForm form{.communication = plain->communication, .computation = plain->computation};
  std::vector<cost::Point> points;
  for (const int chunks : ChunksToCompare(question.spec, question.roles, cut)) {
    const Result<Alone> divided =
        PriceAlone(layer, question, pricer,
                   {.chunks = chunks, .cut = cut, .micro_batches = question.micro_batches});
    if (!divided) return divided.error();
    const double extra =
        divided->computation + divided->communication - plain->computation - plain->communication;
    points.push_back({.x = double(chunks), .y = std::max(0.0, extra)});
  }
  if (points.empty()) return form;
  const cost::LinearFit fit = cost::FitLinear(points);
  form.once = fit.alpha;
  form.per_chunk = fit.beta;
  const double most = ExpertsPerRank(question.spec, question.roles);
  const double hidden = std::min(form.communication, form.computation);
  const double best = form.per_chunk > 0 ? std::sqrt(hidden / form.per_chunk) : most;
  form.chunks = static_cast<int>(std::lround(std::clamp(best, 1.0, most)));
  return form;
}

}  // namespace convene::planner
