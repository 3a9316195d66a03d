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

// Items are micro-batches of layers, in the order in which the device goes through them.
class Builder {
 public:
  Builder(const model::ModelSpec& spec, const OffloadPass& pass, double page_factor)
      : spec_(spec),
        pass_(pass),
        page_factor_(page_factor),
        loads_last_(pass.order == OffloadOrder::kLayerwise ||
                    (pass.is_pageable && !pass.is_prompt)),
        num_items_(spec.num_layers() * pass.micro_batches),
        through_(num_items_, kNone),
        arrived_(num_items_, kNone),
        weights_(spec.num_layers() + 1, kNone) {}

  Schedule Run() {
    if (pass_.is_prompt) {
      for (int n = 0; n < num_items_; ++n) Prompt(n);
    } else if (pass_.order == OffloadOrder::kS2 || pass_.order == OffloadOrder::kS3) {
      OnHost(pass_.order == OffloadOrder::kS2 ? 2 : 1);
    } else {
      for (int n = 0; n < num_items_; ++n) OnDevice(n);
    }
    return std::move(schedule_);
  }

 private:
  int LayerOf(int item) const { return item / pass_.micro_batches; }
  bool IsFirst(int item) const { return item % pass_.micro_batches == 0; }
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

  // The next layer's weights as a whole, into the room of the last one's, before a layer's first
  // item. The first layer's are there.
  void LoadBefore(int item) {
    if (loads_last_ || !IsFirst(item)) return;
    Load(item, item == 0 ? kNone : through_[item - 1]);
  }
  // Without overlap: behind a layer's last item.
  void LoadBehind(int item) {
    if (loads_last_ && IsFirst(item + 1)) Load(item, through_[item]);
  }
  void Load(int item, TaskId after) {
    const int next = LayerOf(item) + 1;
    Work work = WorkOf(next).LoadPage(1);
    for (schedule::Term& term : work.link_bytes) term.factor *= page_factor_;
    weights_[next] = Add(TaskKind::kLoadPage, LaneKind::kLoad, item, std::move(work), {after});
  }

  void Experts(int item) {
    const strategy::LayerWork work = WorkOf(LayerOf(item));
    const auto compute = [&](TaskKind kind, Work of, TaskId after) {
      through_[item] = Add(kind, LaneKind::kCompute, item, std::move(of), {after});
    };
    compute(TaskKind::kRoute, work.Route(0), kNone);
    compute(TaskKind::kExperts, work.Experts(0, 0), weights_[LayerOf(item)]);
    compute(TaskKind::kFinish, work.Finish(0), kNone);
  }

  // Attention in the host's memory, so many items ahead.
  void OnHost(int lead) {
    lead = std::min(lead, pass_.micro_batches);
    for (int n = 0; n < lead; ++n) Attend(n);
    for (int n = 0; n < num_items_; ++n) {
      const TaskId hidden = Add(TaskKind::kSendHidden, LaneKind::kLoad, n,
                                WorkOf(LayerOf(n)).SendHidden(0), {arrived_[n]});
      LoadBefore(n);
      Add(TaskKind::kPostAttention, LaneKind::kCompute, n, WorkOf(LayerOf(n)).PostAttention(0),
          {hidden});
      Experts(n);
      LoadBehind(n);
      if (n + lead < num_items_) Attend(n + lead);
    }
  }
  void Attend(int item) {
    const strategy::LayerWork work = WorkOf(LayerOf(item));
    const TaskId pre =
        Add(TaskKind::kPreAttention, LaneKind::kCompute, item, work.PreAttention(0), {});
    const TaskId down = Add(TaskKind::kSendQkv, LaneKind::kStore, item, work.SendQkv(0), {pre});
    Work attend = work.Attend(0);
    for (schedule::Term& term : attend.memory_bytes) term.factor *= pass_.cache_passes;
    arrived_[item] = Add(TaskKind::kAttend, LaneKind::kHost, item, std::move(attend), {down});
  }

  // Keys and values of an item go up while the item before it is computed; a layer of two items is
  // on the device.
  void LoadCache(int item) {
    if (item >= num_items_ || pass_.order == OffloadOrder::kLayerwise) return;
    const Work cache = WorkOf(LayerOf(item)).Attend(0);
    arrived_[item] =
        Add(TaskKind::kSendHidden, LaneKind::kLoad, item, {.link_bytes = cache.memory_bytes},
            {item >= 2 ? through_[item - 2] : kNone});
  }
  void OnDevice(int item) {
    const strategy::LayerWork work = WorkOf(LayerOf(item));
    if (item == 0) LoadCache(0);
    LoadBefore(item);
    LoadCache(item + 1);
    Add(TaskKind::kPreAttention, LaneKind::kCompute, item, work.PreAttention(0), {});
    Add(TaskKind::kAttend, LaneKind::kCompute, item, work.Attend(0), {arrived_[item]});
    Add(TaskKind::kPostAttention, LaneKind::kCompute, item, work.PostAttention(0), {});
    Experts(item);
    LoadBehind(item);
  }

  // A prompt is computed on the device; what goes down are its keys and values.
  void Prompt(int item) {
    const strategy::LayerWork work = WorkOf(LayerOf(item));
    const bool is_layerwise = pass_.order == OffloadOrder::kLayerwise;
    LoadBefore(item);
    const TaskId attended = Add(TaskKind::kAttention, LaneKind::kCompute, item,
                                work.Attention(0, /*is_projected=*/false), {});
    if (!is_layerwise) {
      const double cached = 2.0 * spec_.layers[LayerOf(item)].attention.kv_dim();
      Add(TaskKind::kSendQkv, LaneKind::kStore, item,
          {.link_bytes = {{2 * cached, {.kind = SizeKind::kTokens, .from = 0}}}}, {attended});
    }
    Experts(item);
    LoadBehind(item);
  }

  const model::ModelSpec& spec_;
  const OffloadPass& pass_;
  double page_factor_;  // of the bytes of a layer's weights
  bool loads_last_;
  strategy::StepOptions options_;
  int num_items_;
  std::vector<TaskId> through_;  // by item: its last task in the layer
  std::vector<TaskId> arrived_;  // by item: what its attention waits for
  std::vector<TaskId> weights_;  // by layer
  Schedule schedule_;
};

// CGOPipe of decode is what convene's own strategy builds; a page is smaller by what is resident.
Schedule BuildPass(const model::ModelSpec& spec, const OffloadPass& pass,
                   const OffloadRates& rates) {
  if (pass.order != OffloadOrder::kCgo || pass.is_prompt) {
    const double slower = pass.is_pageable ? rates.link / rates.pageable_link : 1;
    return Builder(spec, pass, (1 - pass.weights_resident) * slower).Run();
  }
  Schedule schedule =
      strategy::BuildOffloadPipeline(spec, {.micro_batches = pass.micro_batches,
                                            .next_step = true,
                                            .lead = std::min(2, pass.micro_batches)});
  for (Task& task : schedule.tasks) {
    if (task.kind != TaskKind::kLoadPage && task.kind != TaskKind::kStagePage) continue;
    for (schedule::Term& term : task.work.link_bytes) term.factor *= 1 - pass.weights_resident;
    for (schedule::Term& term : task.work.memory_bytes) term.factor *= 1 - pass.weights_resident;
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
