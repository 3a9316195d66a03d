#include "cost/all_reduces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "cost/operator_prices.h"
#include "cost/presets.h"

namespace convene::cost {
namespace {

using schedule::LaneKind;
using schedule::Schedule;
using schedule::Size;
using schedule::SizeKind;
using schedule::Task;
using enum schedule::TaskKind;

constexpr int kRanks = 8;
constexpr double kRowsOfRank = 4;
constexpr double kRowBytes = 4096 * 2;

model::ModelSpec SpecOfSlices() {
  model::LayerSpec layer;
  layer.attention = {.num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .value_dim = 128};
  layer.moe = model::MoeSpec{.num_experts = 8, .top_k = 2, .intermediate_size = 14336};
  model::ModelSpec spec;
  spec.hidden_size = 4096;
  spec.vocab_size = 32000;
  spec.layers = {layer};
  return spec;
}

// Tasks of all ranks, one kind after the other; all of the first layer.
class Steps {
 public:
  explicit Steps(int num_ranks) { schedule_.num_ranks = num_ranks; }

  Steps& Compute(schedule::TaskKind kind) {
    for (int rank = 0; rank < schedule_.num_ranks; ++rank) {
      Task task = TaskOf(kind, rank, LaneKind::kCompute);
      task.work.memory_bytes = {{4096 * 6.0, {.kind = SizeKind::kRows, .from = rank}}};
      schedule_.tasks.push_back(task);
    }
    return *this;
  }

  // Rows, or sums of them, between all ranks.
  Steps& Exchange(schedule::TaskKind kind) {
    const int collective = num_collectives_++;
    for (int rank = 0; rank < schedule_.num_ranks; ++rank) {
      Task task = TaskOf(kind, rank, LaneKind::kSend);
      task.chunk = kind == kDispatch || kind == kCombine ? 0 : -1;
      task.collective = collective;
      const SizeKind rows = kind == kCombine ? SizeKind::kReturned : SizeKind::kSent;
      for (int to = 0; to < schedule_.num_ranks; ++to) {
        if (to != rank) task.work.link_bytes.push_back({kRowBytes, {rows, 0, 0, rank, to}});
      }
      schedule_.tasks.push_back(task);
    }
    return *this;
  }

  const Schedule& schedule() const { return schedule_; }

 private:
  static Task TaskOf(schedule::TaskKind kind, int rank, LaneKind lane) {
    return {.kind = kind, .lane = {rank, lane}, .layer = 0};
  }

  Schedule schedule_;
  int num_collectives_ = 0;
};

// Of ranks that have slices of all experts, or whole ones: then each row is computed on some.
Sizes SizesOf(int num_ranks, bool has_slices) {
  return [=](const Size& size) {
    switch (size.kind) {
      case SizeKind::kRows:
      case SizeKind::kWanted:
      case SizeKind::kSent:
      case SizeKind::kReturned:
        return kRowsOfRank;
      case SizeKind::kSlots:
        return 2 * kRowsOfRank * (has_slices ? num_ranks : 1);
      default:
        return 1.0;
    }
  };
}

std::vector<AllReduce> Find(const Steps& steps, bool has_slices = true) {
  return FindAllReduces(steps.schedule(), schedule::BuildActivityGraph(steps.schedule()),
                        SpecOfSlices(), SizesOf(steps.schedule().num_ranks, has_slices));
}

Steps DividedAttention(int num_ranks) {
  Steps steps(num_ranks);
  steps.Exchange(kScatterSums).Compute(kAddPartials).Compute(kNormalize).Exchange(kGatherNormed);
  return steps;
}

Steps SlicedExperts(int num_ranks) {
  Steps steps(num_ranks);
  steps.Exchange(kScatterSums).Compute(kAddPartials).Compute(kRoute);
  steps.Exchange(kCounts).Exchange(kDispatch).Compute(kExperts).Exchange(kCombine);
  steps.Compute(kFinish).Compute(kNormalize).Exchange(kGatherNormed);
  return steps;
}

TEST(AllReduces, AreScattersAndTheGathersBehindThem) {
  const std::vector<AllReduce> dense = Find(DividedAttention(kRanks));
  ASSERT_EQ(dense.size(), 1u);
  EXPECT_EQ(dense[0].counts, -1);
  EXPECT_EQ(dense[0].passes.size(), size_t{kRanks});  // the norms

  const std::vector<AllReduce> sliced = Find(SlicedExperts(kRanks));
  ASSERT_EQ(sliced.size(), 2u);
  const Schedule schedule = SlicedExperts(kRanks).schedule();
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(schedule);
  const auto kind_of = [&](int activity) {
    return schedule.tasks[graph.tasks_of(activity).front()].kind;
  };
  EXPECT_EQ(kind_of(sliced[0].scatter), kScatterSums);
  EXPECT_EQ(kind_of(sliced[0].counts), kCounts);
  EXPECT_EQ(kind_of(sliced[0].gather), kDispatch);
  EXPECT_EQ(kind_of(sliced[1].scatter), kCombine);
  EXPECT_EQ(kind_of(sliced[1].gather), kGatherNormed);
}

TEST(AllReduces, AreNotWhereRowsGoToTheirExpertsOrSumsAreUsedBetween) {
  // Whole experts: attention is divided, and its sums go to the rows' owners alone.
  EXPECT_TRUE(Find(SlicedExperts(kRanks), /*has_slices=*/false).empty());
  Steps between(kRanks);
  between.Exchange(kScatterSums).Compute(kDense).Exchange(kGatherNormed);
  EXPECT_TRUE(Find(between).empty());
  Steps apart(kRanks);
  apart.Exchange(kGatherNormed).Compute(kAttention).Exchange(kScatterSums);
  EXPECT_TRUE(Find(apart).empty());
  EXPECT_TRUE(Find(Steps(kRanks)).empty());
}

// Seconds of all exchanges, one after the other.
double ExchangeSecondsOf(const MachineProfile& machine, const Steps& steps, const Sizes& sizes) {
  const model::ModelSpec spec = SpecOfSlices();
  const auto costs = OperatorCosts::Create(machine, spec);
  CHECK(costs.ok(), "{}", costs.error().message);
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(steps.schedule());
  const Prices prices = PriceSchedule(steps.schedule(), graph, *costs, sizes).prices;
  double sum = 0;
  for (int activity = 0; activity < graph.num_activities(); ++activity) {
    const Task& first = steps.schedule().tasks[graph.tasks_of(activity).front()];
    if (IsCollective(first.kind)) sum += SecondsAlone(prices, activity);
  }
  return sum;
}

MachineProfile WithoutAllReduce(MachineProfile machine) {
  std::erase_if(machine.operators,
                [](const auto& one) { return one.first.starts_with("all_reduce"); });
  std::erase_if(machine.measured_on,
                [](const auto& one) { return one.first.starts_with("all_reduce"); });
  return machine;
}

// Of the kernels of a profile the fastest at this size.
double FastestAllReduce(const MachineProfile& machine, double bytes) {
  const OperatorWork work =
      WorkOf(CollectiveShape{.bytes = bytes, .num_ranks = kRanks, .passes = 2},
             machine.links[0].bytes_per_second);
  double fastest = 1e9;
  for (const auto& [name, model] : machine.operators) {
    if (!name.starts_with("all_reduce")) continue;
    fastest = std::min(fastest, model.Predict(work.features, work.ideal_seconds).seconds);
  }
  return fastest;
}

TEST(AllReduces, ArePricedByTheirTableWhereTheProfileHasOne) {
  for (const char* name : {"a100-nvlink", "h100-nvlink"}) {
    const MachineProfile machine = *Preset(name);
    const MachineProfile without = WithoutAllReduce(machine);
    const Sizes sizes = SizesOf(kRanks, true);
    const double once = FastestAllReduce(machine, kRanks * kRowsOfRank * kRowBytes);
    for (const bool has_experts : {false, true}) {
      const Steps steps = has_experts ? SlicedExperts(kRanks) : DividedAttention(kRanks);
      const int num_all_reduces = has_experts ? 2 : 1;
      const double seconds = ExchangeSecondsOf(machine, steps, sizes);
      EXPECT_LT(seconds, 0.7 * ExchangeSecondsOf(without, steps, sizes)) << name;
      // And what all ranks norm and route of all rows.
      EXPECT_GE(seconds, 0.99 * num_all_reduces * once) << name;
      EXPECT_LE(seconds, num_all_reduces * (1.01 * once + 2e-6)) << name;
    }
    // Whole experts need none.
    EXPECT_EQ(ExchangeSecondsOf(machine, SlicedExperts(kRanks), SizesOf(kRanks, false)),
              ExchangeSecondsOf(without, SlicedExperts(kRanks), SizesOf(kRanks, false)))
        << name;
  }
}

TEST(AllReduces, AreOfOneHost) {
  const MachineProfile machine = *Preset("a100-nvlink");
  const Sizes sizes = SizesOf(2 * kRanks, true);
  EXPECT_EQ(ExchangeSecondsOf(machine, DividedAttention(2 * kRanks), sizes),
            ExchangeSecondsOf(WithoutAllReduce(machine), DividedAttention(2 * kRanks), sizes));
}

}  // namespace
}  // namespace convene::cost
