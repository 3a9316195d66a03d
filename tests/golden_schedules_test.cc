// Schedules of two systems, of the transition between phases, and of steps whose experts and keys
// and values lie on a disk, as text and as times computed by hand.

#include <gtest/gtest.h>

#include <algorithm>

#include "simulate/simulate.h"
#include "strategy/disaggregated_experts.h"
#include "strategy/offload_pipeline.h"
#include "strategy/step.h"
#include "strategy/transition.h"
#include "tests/golden_schedule.h"

namespace convene {
namespace {

using schedule::LaneKind;
using schedule::Schedule;
using schedule::TaskKind;
using schedule::Timeline;
using strategy::AttentionOrder;
using strategy::BuildOffloadPipeline;
using strategy::DisaggregatedExperts;

double NoSizes(const schedule::Size&) { return 0; }

// Fine-grained disaggregation: two layers, one attention rank and one expert rank. By linear costs
// a micro-batch takes A = 4, S = 2; a chunk of half of it A2E = 1, E = 2, E2A = 1; all else
// nothing.

model::ModelSpec Layers(int num_layers) {
  model::ModelSpec spec;
  spec.vocab_size = 50;
  spec.hidden_size = 16;
  for (int i = 0; i < num_layers; ++i) {
    model::LayerSpec& layer = spec.layers.emplace_back();
    layer.attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 4, .value_dim = 4};
    layer.moe.emplace();
    layer.moe->num_experts = 6;
    layer.moe->top_k = 2;
    layer.moe->intermediate_size = 8;
    layer.moe->shared_intermediate_size = 12;
  }
  return spec;
}

DisaggregatedExperts Disaggregated(int micro_batches, int chunks, AttentionOrder order) {
  return {.micro_batches = micro_batches, .chunks = chunks, .order = order};
}

cost::Rates UnitCosts(const DisaggregatedExperts& parameters) {
  cost::Rates rates;
  const double part = 2.0 / parameters.micro_batches;
  const double chunk = part / parameters.chunks;
  const auto set = [&](TaskKind kind, double seconds) {
    rates.fixed_seconds[static_cast<size_t>(kind)] = seconds;
  };
  set(TaskKind::kAttention, 4 * part);
  set(TaskKind::kShared, 2 * part);
  set(TaskKind::kDispatch, 2 * chunk);
  set(TaskKind::kExperts, 4 * chunk);
  set(TaskKind::kCombine, 2 * chunk);
  return rates;
}

double Makespan(const DisaggregatedExperts& parameters) {
  const Schedule schedule = BuildDisaggregatedExperts(Layers(2), parameters);
  return simulate::Simulate(schedule, UnitCosts(parameters), NoSizes).seconds();
}

TEST(GoldenSchedules, DisaggregatedExpertsInBothOrders) {
  ExpectGolden(BuildDisaggregatedExperts(Layers(2), Disaggregated(2, 2, AttentionOrder::kAsas)),
               "disaggregated_experts_asas");
  ExpectGolden(BuildDisaggregatedExperts(Layers(2), Disaggregated(2, 2, AttentionOrder::kAass)),
               "disaggregated_experts_aass");
}

DisaggregatedExperts AfterShared(int micro_batches) {
  DisaggregatedExperts parameters = Disaggregated(micro_batches, 1, AttentionOrder::kAsas);
  parameters.dispatch_after_shared = true;
  return parameters;
}

// Two ranks of each kind: their exchanges are of attention ranks with expert ranks alone.
TEST(GoldenSchedules, DisaggregatedExpertsWithoutPipelineAndInMicroBatches) {
  DisaggregatedExperts naive = AfterShared(1);
  naive.attention_ranks = naive.expert_ranks = 2;
  ExpectGolden(BuildDisaggregatedExperts(Layers(2), naive), "disaggregated_experts_naive");
  ExpectGolden(BuildDisaggregatedExperts(Layers(2), AfterShared(3)),
               "disaggregated_experts_pppipe");
}

TEST(GoldenSchedules, DisaggregatedExpertsTakeAsLongAsComputedByHand) {
  // A0 0-4, S0 4-6, A1 6-10, S1 10-12; E2A(0,1) ends at 10, E2A(1,1) at 16. Second layer: A0 12-16,
  // S0 16-18, A1 18-22, A2E(1,.) 22-24, E(1,.) 23-27, E2A(1,1) 27-28.
  EXPECT_NEAR(Makespan(Disaggregated(2, 2, AttentionOrder::kAsas)), 28, 1e-9);
  // A0 0-4, A1 4-8, S0 8-10, S1 10-12; E2A(0,1) ends at 10, E2A(1,1) at 14. Second layer: A0 12-16,
  // A1 16-20, A2E(1,.) 20-22, E(1,.) 21-25, E2A(1,1) 25-26.
  EXPECT_NEAR(Makespan(Disaggregated(2, 2, AttentionOrder::kAass)), 26, 1e-9);
}

TEST(GoldenSchedules, CoarserPipelinesTakeLonger) {
  // Of one micro-batch only the shared expert overlaps: 8 + 4 + 8 + 4 per layer. Naive waits for
  // it, too: 8 + 4 + 4 + 8 + 4.
  EXPECT_NEAR(Makespan(Disaggregated(1, 1, AttentionOrder::kAsas)), 48, 1e-9);
  EXPECT_NEAR(Makespan(AfterShared(1)), 56, 1e-9);
  // PPPipe: A0 S0 0-6, A1 S1 6-12; A2E 6-8 and 12-14, E 8-12 and 14-18, E2A 12-14 and 18-20.
  // Second layer: A0 S0 14-20, A1 S1 20-26, A2E 26-28, E 28-32, E2A 32-34.
  EXPECT_NEAR(Makespan(AfterShared(2)), 34, 1e-9);
}

// From whole experts, three of which rank 0 has and six of which rank 1, to slices of all: each
// sends the other a slice of what it has.
TEST(GoldenSchedules, TransitionFromUnequalSharesToSlices) {
  model::ModelSpec spec = Layers(3);
  spec.layers[0].moe.reset();
  for (model::LayerSpec& layer : spec.layers) {
    if (layer.moe) layer.moe->num_experts = 9;
  }
  const strategy::Layout shares = {1, 2, 2, 1, {1, 2}};
  const strategy::Layout slices = {1, 2, 1, 2};
  const Schedule schedule = strategy::BuildTransition(spec, shares, slices, 2);
  ExpectGolden(schedule, "transition");
  // An expert has 3 * 16 * 8 elements of 2 bytes. Rank 1's link out is what a layer waits for:
  // 6 halves of an expert.
  const cost::Rates rates = {.link_bytes_per_second = 768};
  EXPECT_NEAR(simulate::Simulate(schedule, rates, NoSizes).seconds(), 2 * 3, 1e-9);
  EXPECT_TRUE(strategy::BuildTransition(spec, slices, slices, 2).tasks.empty());
}

// CGOPipe. Seconds of each kind of task; all others take none.
struct OffloadSeconds {
  double pre = 1;
  double qkv = 0.5;
  double attend = 2;
  double hidden = 0.5;
  double post = 2;
  double load = 1;
  double stage = 1;

  double largest_lane() const { return std::max({pre + post, attend, hidden + load, qkv, stage}); }
};

Timeline Simulated(const Schedule& schedule, const OffloadSeconds& seconds) {
  cost::Rates rates;
  const auto set = [&](TaskKind kind, double value) {
    rates.fixed_seconds[static_cast<size_t>(kind)] = value;
  };
  set(TaskKind::kPreAttention, seconds.pre);
  set(TaskKind::kSendQkv, seconds.qkv);
  set(TaskKind::kAttend, seconds.attend);
  set(TaskKind::kSendHidden, seconds.hidden);
  set(TaskKind::kExperts, seconds.post);
  set(TaskKind::kLoadPage, seconds.load);
  set(TaskKind::kStagePage, seconds.stage);
  return simulate::Simulate(schedule, rates, NoSizes);
}

TEST(GoldenSchedules, OffloadPipelineOverTwoLayersWithThreeMicroBatches) {
  ExpectGolden(BuildOffloadPipeline(Layers(2), {.micro_batches = 3}), "offload_pipeline");
}

TEST(GoldenSchedules, OffloadPipelineTakesAsLongAsItsBusiestLane) {
  // In the steady state a layer takes what its busiest lane has to do, whichever it is.
  for (const OffloadSeconds& seconds :
       {OffloadSeconds{}, OffloadSeconds{.post = 4}, OffloadSeconds{.attend = 5},
        OffloadSeconds{.load = 4}, OffloadSeconds{.stage = 6}}) {
    constexpr int kMicroBatches = 4;
    const auto makespan = [&](int layers) {
      const Schedule schedule =
          BuildOffloadPipeline(Layers(layers), {.micro_batches = kMicroBatches});
      return Simulated(schedule, seconds).seconds();
    };
    EXPECT_NEAR((makespan(30) - makespan(20)) / 10, kMicroBatches * seconds.largest_lane(), 1e-9)
        << "post " << seconds.post << " attend " << seconds.attend << " load " << seconds.load
        << " stage " << seconds.stage;
  }
}

TEST(GoldenSchedules, OffloadPipelineAttendsToOneMicroBatchWhileTheDeviceComputesAnother) {
  const Schedule schedule = BuildOffloadPipeline(Layers(2), {.micro_batches = 3});
  const Timeline timeline = Simulated(schedule, {});
  const auto time_of = [&](TaskKind kind, int layer, int micro_batch) {
    for (size_t id = 0; id < schedule.tasks.size(); ++id) {
      const schedule::Task& task = schedule.tasks[id];
      if (task.kind == kind && task.layer == layer && task.micro_batch == micro_batch) {
        return timeline.tasks[id];
      }
    }
    return schedule::TaskTime{};
  };
  // Device: pre(0) 0-1, pre(1) 1-2; host: 1.5-3.5 and 3.5-5.5; post(0) 4-6 with hidden up 3.5-4.
  EXPECT_DOUBLE_EQ(time_of(TaskKind::kAttend, 0, 1).start, 3.5);
  EXPECT_DOUBLE_EQ(time_of(TaskKind::kAttend, 0, 1).end, 5.5);
  EXPECT_DOUBLE_EQ(time_of(TaskKind::kExperts, 0, 0).start, 4);
  EXPECT_DOUBLE_EQ(time_of(TaskKind::kExperts, 0, 0).end, 6);
  EXPECT_GT(OverlapShares(schedule, timeline)[0], 0.5);
}

// Experts, keys and values on a disk: seconds of each kind of task; all others take none.
struct SpilledSeconds {
  double read = 1;
  double write = 0.5;
  double pages = 2;
  double attend = 0.5;
  double experts = 1;
};

Schedule Spilled(int num_layers, const strategy::SpilledKv& spilled) {
  model::ModelSpec spec = Layers(num_layers);
  for (model::LayerSpec& layer : spec.layers) layer.moe->shared_intermediate_size = 0;
  return strategy::BuildStep(
      spec, {.paging = strategy::Paging{.chunks = 2, .depth = 3}, .spilled_kv = spilled});
}

double Makespan(const Schedule& schedule, const SpilledSeconds& seconds) {
  cost::Rates rates;
  const auto set = [&](TaskKind kind, double value) {
    rates.fixed_seconds[static_cast<size_t>(kind)] = value;
  };
  set(TaskKind::kReadKv, seconds.read);
  set(TaskKind::kWriteKv, seconds.write);
  set(TaskKind::kReadPages, seconds.pages);
  set(TaskKind::kAttend, seconds.attend);
  set(TaskKind::kExperts, seconds.experts);
  return simulate::Simulate(schedule, rates, NoSizes).seconds();
}

TEST(GoldenSchedules, KeysAndValuesOnADiskBesideExperts) {
  ExpectGolden(Spilled(2, {.parts = 2, .depth = 2, .missing = 0.5}), "spilled_kv");
}

TEST(GoldenSchedules, ADiskThatHoldsExpertsKeysAndValuesIsBusyAllTheTime) {
  constexpr int kParts = 4;
  const auto layer_seconds = [&](int depth, const SpilledSeconds& seconds) {
    const auto makespan = [&](int layers) {
      return Makespan(Spilled(layers, {.parts = kParts, .depth = depth}), seconds);
    };
    return (makespan(30) - makespan(20)) / 10;
  };
  const auto disk = [](const SpilledSeconds& seconds) {
    return kParts * (seconds.read + seconds.write) + 2 * seconds.pages;
  };
  const auto compute = [](const SpilledSeconds& seconds) {
    return kParts * seconds.attend + 2 * seconds.experts;
  };
  // With two buffers already, where it takes longer than computation in each part of a layer.
  EXPECT_NEAR(layer_seconds(2, {}), disk({}), 1e-9);
  // With buffers for a layer, also where experts take longer to compute than to read.
  const SpilledSeconds slow_experts{.experts = 4};
  EXPECT_NEAR(layer_seconds(kParts, slow_experts),
              std::max(disk(slow_experts), compute(slow_experts)), 1e-9);
  EXPECT_GT(layer_seconds(2, slow_experts), disk(slow_experts) + 1);
  // With one buffer nothing is read while attention computes.
  EXPECT_GT(layer_seconds(1, {}), disk({}) + 1);
}

// By the disk's rate, from what a step has cached.
TEST(GoldenSchedules, ADiskIsPricedByWhatItMoves) {
  const Schedule schedule = Spilled(1, {.parts = 2, .depth = 2, .missing = 0.25});
  cost::Rates rates;
  rates.ranks[0].disk_bytes_per_second = 100;
  const auto size = [](const schedule::Size& of) {
    if (of.kind == schedule::SizeKind::kOne) return 1.0;
    return of.kind == schedule::SizeKind::kCached ? 1000.0 : 10.0;
  };
  double bytes = 0;
  for (const schedule::Task& task : schedule.tasks) {
    for (const schedule::Term& term : task.work.disk_bytes) bytes += term.factor * size(term.size);
  }
  EXPECT_GT(bytes, 0);
  EXPECT_NEAR(simulate::Simulate(schedule, rates, size).seconds(), bytes / 100, 1e-6);
}

}  // namespace
}  // namespace convene
