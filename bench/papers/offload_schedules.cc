#include "bench/papers/offload_schedules.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "simulate/simulate.h"
#include "strategy/offload_pipeline.h"
#include "strategy/work.h"

namespace convene::papers {
namespace {

using schedule::LaneKind;
using schedule::Schedule;
using schedule::SizeKind;
using schedule::Task;
using schedule::TaskId;
using schedule::TaskKind;
using schedule::Work;

constexpr TaskId kNone = -1;

// A prompt is computed on the device, micro-batch by micro-batch, layer by layer; what goes down
// are its keys and values.
class PromptBuilder {
 public:
  PromptBuilder(const model::ModelSpec& spec, const OffloadPass& pass)
      : spec_(spec), pass_(pass), weights_(spec.num_layers() + 1, kNone) {}

  Schedule Run() {
    for (int n = 0; n < spec_.num_layers() * pass_.micro_batches; ++n) AddItem(n);
    return std::move(schedule_);
  }

 private:
  bool is_layerwise() const { return pass_.order == OffloadOrder::kLayerwise; }
  int LayerOf(int item) const { return item / pass_.micro_batches; }
  strategy::LayerWork WorkOf(int layer) const {
    layer = std::min(layer, spec_.num_layers() - 1);
    return {spec_, spec_.layers[layer], layer, options_};
  }

  TaskId Add(TaskKind kind, LaneKind lane, int item, Work work, std::vector<TaskId> after) {
    std::erase(after, kNone);
    Task task{.kind = kind,
              .lane = {0, lane},
              .layer = LayerOf(item),
              .micro_batch = item % pass_.micro_batches,
              .after = std::move(after),
              .work = std::move(work)};
    schedule_.tasks.push_back(std::move(task));
    return static_cast<TaskId>(schedule_.tasks.size()) - 1;
  }

  // The next layer's weights into the room of the last one's.
  void Load(int item, TaskId after) {
    const int next = LayerOf(item) + 1;
    weights_[next] =
        Add(TaskKind::kLoadPage, LaneKind::kLoad, item, WorkOf(next).LoadPage(1), {after});
  }

  void AddItem(int item) {
    const strategy::LayerWork work = WorkOf(LayerOf(item));
    if (!is_layerwise() && item % pass_.micro_batches == 0) Load(item, through_);
    const TaskId attended = Add(TaskKind::kAttention, LaneKind::kCompute, item,
                                work.Attention(0, /*is_projected=*/false), {});
    if (!is_layerwise()) {
      const double cached = 2.0 * spec_.layers[LayerOf(item)].attention.kv_dim();
      Add(TaskKind::kSendQkv, LaneKind::kStore, item,
          {.link_bytes = {{2 * cached, {.kind = SizeKind::kTokens, .from = 0}}}}, {attended});
    }
    Add(TaskKind::kRoute, LaneKind::kCompute, item, work.Route(0), {});
    Add(TaskKind::kExperts, LaneKind::kCompute, item, work.Experts(0, 0),
        {weights_[LayerOf(item)]});
    through_ = Add(TaskKind::kFinish, LaneKind::kCompute, item, work.Finish(0), {});
    if (is_layerwise() && (item + 1) % pass_.micro_batches == 0) Load(item, through_);
  }

  const model::ModelSpec& spec_;
  const OffloadPass& pass_;
  strategy::StepOptions options_;
  TaskId through_ = kNone;       // the last task of the item before
  std::vector<TaskId> weights_;  // by layer
  Schedule schedule_;
};

void Scale(schedule::Amount& amount, double factor) {
  for (schedule::Term& term : amount) term.factor *= factor;
}

Schedule BuildPass(const model::ModelSpec& spec, const OffloadPass& pass,
                   const OffloadRates& rates) {
  const bool is_cgo = pass.order == OffloadOrder::kCgo;
  Schedule schedule = pass.is_prompt ? PromptBuilder(spec, pass).Run()
                                     : strategy::BuildOffloadPipeline(
                                           spec, {.order = pass.order,
                                                  .micro_batches = pass.micro_batches,
                                                  .next_step = true,
                                                  .lead = std::min(2, pass.micro_batches),
                                                  .loads_behind = !is_cgo && pass.is_pageable});
  // A page is smaller by what is resident.
  const double streamed = 1 - pass.weights_resident;
  const bool is_pinned = !pass.is_pageable || (is_cgo && !pass.is_prompt);
  const double slower = is_pinned ? 1 : rates.link / rates.pageable_link;
  for (Task& task : schedule.tasks) {
    if (task.kind == TaskKind::kLoadPage) Scale(task.work.link_bytes, streamed * slower);
    if (task.kind == TaskKind::kStagePage) Scale(task.work.memory_bytes, streamed);
    if (task.kind == TaskKind::kAttend && strategy::AttendsOnHost(pass.order)) {
      Scale(task.work.memory_bytes, pass.cache_passes);
    }
  }
  return schedule;
}

// All micro-batches are alike; sizes of a whole step are asked for by the head alone.
cost::Sizes SizesOf(const model::ModelSpec& spec, const OffloadPass& pass) {
  const model::MoeSpec moe = *spec.layers.front().moe;
  const double length = pass.is_prompt ? pass.context : 1;
  const double tokens = pass.micro_batch * length;
  return [=](const schedule::Size& size) -> double {
    switch (size.kind) {
      case SizeKind::kRows:
      case SizeKind::kTokens:
        return tokens;
      case SizeKind::kWanted:
        return pass.micro_batch;
      case SizeKind::kKeys:
        return pass.micro_batch * (pass.is_prompt ? length * (length + 1) / 2 : pass.context);
      case SizeKind::kCached:
        return pass.micro_batch * pass.context;
      case SizeKind::kSlots:
        return tokens * moe.top_k;
      case SizeKind::kExperts:
        return moe.num_experts * (1 - std::pow(1 - double(moe.top_k) / moe.num_experts, tokens));
      default:
        return 0;
    }
  };
}

double SimulatedSeconds(const model::ModelSpec& spec, int num_layers, const OffloadPass& pass,
                        const OffloadRates& of_machine, const cost::Rates& rates) {
  model::ModelSpec few = spec;
  few.layers.resize(num_layers);
  const Schedule schedule = BuildPass(few, pass, of_machine);
  const Status valid = schedule::Validate(schedule);
  CHECK(valid.ok(), "{}", valid.error().message);
  return simulate::Simulate(schedule, rates, SizesOf(few, pass)).seconds();
}

}  // namespace

double SecondsOfPass(const model::ModelSpec& spec, const OffloadPass& pass,
                     const OffloadRates& rates) {
  cost::Rates all;
  cost::RankRates& rank = all.ranks.front();
  rank.flops = cost::ConstantRate(rates.device_flops);
  rank.memory = cost::ConstantRate(rates.device_memory);
  rank.host_flops = cost::ConstantRate(rates.host_flops);
  rank.host_memory = cost::ConstantRate(rates.host_memory);
  rank.load_bytes_per_second = rates.link;
  rank.store_bytes_per_second = rates.link;
  constexpr int kFew = 3;
  constexpr int kMore = 5;
  const double few = SimulatedSeconds(spec, kFew, pass, rates, all);
  const double more = SimulatedSeconds(spec, kMore, pass, rates, all);
  return more + (spec.num_layers() - kMore) * (more - few) / (kMore - kFew);
}

}  // namespace convene::papers
