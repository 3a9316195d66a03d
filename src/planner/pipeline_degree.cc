#include "planner/pipeline_degree.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <utility>

#include "cost/expected_sizes.h"
#include "cost/linear_fit.h"
#include "cost/prices.h"
#include "schedule/activity_graph.h"
#include "simulate/simulate.h"
#include "strategy/expert_cuts.h"

namespace convene::planner {
namespace {

using schedule::SizeKind;
using schedule::TaskKind;
using strategy::ChunkCut;
using strategy::Pipeline;

constexpr double kLeastGain = 1.1;
// Between powers of two what lies halfway.
constexpr std::array kChunks = {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};

// One layer with experts stands for all of them: layers do not overlap.
model::ModelSpec OneLayer(const model::ModelSpec& spec) {
  model::ModelSpec one = spec;
  one.encoder_layers.clear();
  one.vocab_size = 0;
  const auto is_moe = [](const model::LayerSpec& layer) { return layer.moe.has_value(); };
  const auto layer = std::find_if(spec.layers.begin(), spec.layers.end(), is_moe);
  one.layers.clear();
  if (layer != spec.layers.end()) one.layers.push_back(*layer);
  return one;
}

cost::ExpectedSizes SizesOf(const model::MoeSpec& moe, const strategy::Roles& roles,
                            const cost::ExpertShares& recorded, const Pipeline& pipeline,
                            double tokens) {
  const bool by_experts = pipeline.chunks > 1 && pipeline.cut == ChunkCut::kExperts;
  cost::ExpectedRouting routing{
      .top_k = moe.top_k,
      .shares = {recorded.empty() ? cost::UniformShares(moe.num_experts, moe.top_k) : recorded},
      .experts = {},
      .token_chunks = by_experts ? 1 : pipeline.chunks,
      .micro_batches = pipeline.micro_batches,
      .rows = std::vector<double>(static_cast<size_t>(roles.num_ranks()), tokens)};
  for (int rank = 0; rank < roles.num_ranks(); ++rank) {
    const strategy::Part experts = roles.ExpertsOf(rank, moe.num_experts);
    routing.experts.push_back(cost::CutIntoChunks(
        experts.first, strategy::ExpertEnds(by_experts ? pipeline : Pipeline{}, experts.size)));
    routing.tokens.push_back(tokens * roles.attention_parts());
  }
  return cost::ExpectedSizes(std::move(routing));
}

// Prices pipelines for one question.
class Pricer {
 public:
  explicit Pricer(const PipelineQuestion& question)
      : question_(question), spec_(OneLayer(question.spec)) {}

  const model::MoeSpec& moe() const { return *spec_.layers.front().moe; }

  double Seconds(const Pipeline& pipeline, double tokens) const {
    const cost::ExpectedSizes sizes =
        SizesOf(moe(), question_.roles, question_.shares, pipeline, tokens);
    return simulate::Simulate(Step(pipeline), RatesOf(pipeline), AsSizes(sizes)).seconds();
  }

  // What the experts of a layer take, one task after the other: computing, of the rank that takes
  // longest, and exchanging.
  std::pair<double, double> Alone(const Pipeline& pipeline) const {
    const cost::ExpectedSizes sizes =
        SizesOf(moe(), question_.roles, question_.shares, pipeline, question_.tokens_per_rank);
    const schedule::Schedule step = Step(pipeline);
    const schedule::ActivityGraph graph = schedule::BuildActivityGraph(step);
    const cost::Prices prices = PriceSchedule(step, graph, RatesOf(pipeline), AsSizes(sizes));
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
  static cost::Sizes AsSizes(const cost::ExpectedSizes& sizes) {
    return [&sizes](const schedule::Size& size) { return sizes.at(size); };
  }

  schedule::Schedule Step(const Pipeline& pipeline) const {
    schedule::Schedule step = strategy::BuildStep(spec_, {.roles = question_.roles,
                                                          .pipeline = pipeline,
                                                          .bytes = question_.bytes,
                                                          .prunes_last_layer = false});
    for (schedule::Task& task : step.tasks) {
      if (task.kind != TaskKind::kExperts) continue;
      const schedule::Term rows = task.work.flops.front();
      schedule::Size experts = rows.size;
      experts.kind = SizeKind::kExperts;
      task.work.flops.push_back(
          {rows.factor * question_.rates.of(task.lane.rank).rows_per_expert, experts});
    }
    return step;
  }

  cost::Rates RatesOf(const Pipeline& pipeline) const {
    const StepRates& from = question_.rates;
    cost::Rates rates{
        .ranks = {},
        .link = cost::LinkKind::kPerRank,
        .link_bytes_per_second = from.link_bytes_per_second,
        .link_latency = pipeline.chunks > 1 ? from.link_latency_beside : from.link_latency,
        .link_core_seconds_per_byte = from.link_core_seconds_per_byte};
    for (const RankStepRates& rank : from.ranks) {
      rates.ranks.push_back({.cores = rank.cores,
                             .flops = cost::LinearRate(rank.flops_per_second, rank.cores),
                             .memory = cost::LinearRate(rank.weight_bytes_per_second, rank.cores)});
    }
    rates.fixed_seconds[static_cast<size_t>(TaskKind::kExperts)] = from.task_seconds;
    return rates;
  }

  const PipelineQuestion& question_;
  model::ModelSpec spec_;
};

bool HasExperts(const PipelineQuestion& question) {
  return question.roles.num_ranks() > 1 && !OneLayer(question.spec).layers.empty();
}

int ExpertsPerRank(const model::ModelSpec& spec, const strategy::Roles& roles) {
  const int num_experts = OneLayer(spec).layers.front().moe->num_experts;
  return std::max(1, roles.expert_split().FewestExperts(num_experts));
}

ClosedForm FitClosedForm(const Pricer& pricer, const PipelineQuestion& question, ChunkCut cut) {
  ClosedForm form;
  std::tie(form.computation, form.communication) = pricer.Alone({});
  const double plain = form.computation + form.communication;
  std::vector<cost::Point> points;
  for (const Pipeline& pipeline : PipelineCandidates(question.spec, question.roles)) {
    if (pipeline.chunks == 1 || pipeline.cut != cut) continue;
    const auto [computation, communication] = pricer.Alone(pipeline);
    const double extra = std::max(0.0, computation + communication - plain);
    points.push_back({.x = double(pipeline.chunks), .y = extra});
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

}  // namespace

std::vector<Pipeline> PipelineCandidates(const model::ModelSpec& spec,
                                         const strategy::Roles& roles) {
  std::vector<Pipeline> candidates = {{}};
  if (roles.num_ranks() == 1 || OneLayer(spec).layers.empty()) return candidates;
  const int num_experts = ExpertsPerRank(spec, roles);
  for (const ChunkCut cut : {ChunkCut::kTokens, ChunkCut::kExperts}) {
    for (const int chunks : kChunks) {
      if (cut == ChunkCut::kExperts && chunks > num_experts) break;
      candidates.push_back({.chunks = chunks, .cut = cut});
    }
  }
  return candidates;
}

double ClosedForm::Gain(double num_chunks) const {
  return std::min(communication, computation) * (num_chunks - 1) / num_chunks -
         (per_chunk * num_chunks + once);
}

PipelineChoice ChoosePipeline(const PipelineQuestion& question) {
  PipelineChoice choice;
  if (!HasExperts(question)) return choice;
  const Pricer pricer(question);
  for (const Pipeline& pipeline : PipelineCandidates(question.spec, question.roles)) {
    const double seconds = pricer.Seconds(pipeline, question.tokens_per_rank);
    choice.candidates.push_back({pipeline, seconds});
  }
  choice.plain_seconds = choice.candidates.front().seconds;
  const auto best = std::ranges::min_element(
      choice.candidates, [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  const bool gains = best->seconds * kLeastGain <= choice.plain_seconds;
  const PricedPipeline& chosen = gains ? *best : choice.candidates.front();
  choice.pipeline = chosen.pipeline;
  choice.seconds = chosen.seconds;
  choice.closed_form = FitClosedForm(pricer, question, best->pipeline.cut);
  return choice;
}

double PredictLayerSeconds(const PipelineQuestion& question, const Pipeline& pipeline,
                           double tokens_per_rank) {
  return Pricer(question).Seconds(pipeline, tokens_per_rank);
}

int FasterFromTokens(const PipelineQuestion& question, const Pipeline& pipeline) {
  const Pricer pricer(question);
  int from = static_cast<int>(question.tokens_per_rank) + 1;
  for (int tokens = from - 1; tokens >= 1; tokens /= 2) {
    if (pricer.Seconds(pipeline, tokens) * kLeastGain > pricer.Seconds({}, tokens)) break;
    from = tokens;
  }
  return from;
}

std::string Describe(const PipelineChoice& choice, int from_tokens) {
  const ClosedForm& form = choice.closed_form;
  if (choice.pipeline.chunks == 1) {
    return fmt::format("pipeline: none, since no number of chunks gains 10 %; closed form {}",
                       form.chunks);
  }
  return fmt::format(
      "pipeline: {} chunks of {} from {} tokens per step (predicted {:.2f} x plain; closed form "
      "{})",
      choice.pipeline.chunks, choice.pipeline.cut == ChunkCut::kTokens ? "tokens" : "experts",
      from_tokens, choice.speedup(), form.chunks);
}

}  // namespace convene::planner
