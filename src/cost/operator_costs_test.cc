#include "cost/operator_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cost/exchange_levels.h"
#include "cost/fit_operator_model.h"
#include "cost/operator_prices.h"
#include "cost/presets.h"

namespace convene::cost {
namespace {

using schedule::LaneKind;
using schedule::Schedule;
using schedule::TaskKind;
using ::testing::Contains;
using ::testing::HasSubstr;

model::ModelSpec Spec() {
  model::LayerSpec layer;
  layer.attention = {.num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .value_dim = 128};
  layer.moe = model::MoeSpec{.num_experts = 8, .top_k = 2, .intermediate_size = 14336};
  model::ModelSpec spec;
  spec.hidden_size = 4096;
  spec.vocab_size = 32000;
  spec.layers = {layer};
  return spec;
}

double NoSizes(const schedule::Size&) { return 0; }

// Every rank sends each other one so many bytes.
Schedule AllToAll(int num_ranks, double bytes) {
  Schedule schedule{.num_ranks = num_ranks};
  for (int rank = 0; rank < num_ranks; ++rank) {
    schedule::Task task{
        .kind = TaskKind::kDispatch, .lane = {rank, LaneKind::kSend}, .layer = 0, .collective = 0};
    for (int to = 0; to < num_ranks; ++to) {
      if (to != rank) task.work.link_bytes.push_back({bytes, {.to = to}});
    }
    schedule.tasks.push_back(task);
  }
  return schedule;
}

// The same, where the receivers are not named.
Schedule Evenly(int num_ranks, double bytes) {
  Schedule schedule = AllToAll(num_ranks, 0);
  for (schedule::Task& task : schedule.tasks) {
    task.work.link_bytes = schedule::Constant(bytes * (num_ranks - 1));
  }
  return schedule;
}

double ExchangeSeconds(const MachineProfile& machine, const Schedule& schedule) {
  const model::ModelSpec spec = Spec();
  const auto costs = OperatorCosts::Create(machine, spec, {.format = "bf16"});
  CHECK(costs.ok(), "{}", costs.error().message);
  return SecondsAlone(
      PriceSchedule(schedule, schedule::BuildActivityGraph(schedule), *costs, NoSizes).prices, 0);
}

TEST(OperatorCosts, MoreWorkTakesLonger) {
  const model::ModelSpec spec = Spec();
  for (const char* name : {"a100-nvlink", "h800-nvlink", "a6000-pcie4", "v100-pcie3", "l40s-pcie4",
                           "epyc-9654", "xeon-8480"}) {
    const auto machine = Preset(name);
    ASSERT_TRUE(machine.ok());
    const auto costs = OperatorCosts::Create(*machine, spec, {.format = "bf16"});
    ASSERT_TRUE(costs.ok()) << costs.error().message;
    double product = 0;
    double experts = 0;
    double scores = 0;
    for (double rows = 64; rows <= 16384; rows *= 4) {
      const double more_product =
          costs->ProductSeconds({.rows = rows, .columns = 6144, .inner = 4096}).seconds;
      const double more_experts =
          costs->ExpertsSeconds(*spec.layers[0].moe, 2 * rows, 8, 3.0 * 4096 * 14336).seconds;
      const double more_scores = costs->ScoreSeconds(1e6 * rows, 1e3 * rows);
      EXPECT_GT(more_product, product) << name << " " << rows;
      EXPECT_GT(more_experts, experts) << name << " " << rows;
      EXPECT_GT(more_scores, scores) << name << " " << rows;
      // No faster than the limits of the device.
      const double peak = costs->device().flops.at("bf16");
      EXPECT_GE(more_product, 0.999 * 2 * rows * 6144 * 4096 / peak) << name;
      EXPECT_GE(more_experts, 0.999 * 6 * 2 * rows * 4096 * 14336 / peak) << name;
      product = more_product;
      experts = more_experts;
      scores = more_scores;
    }
  }
}

TEST(OperatorCosts, SlowTensorCoresAreFedWithScoresAsWellAsThoseOfAmpere) {
  const model::ModelSpec spec = Spec();
  const auto share_of_peak = [&](const char* name) {
    const auto machine = Preset(name);
    CHECK(machine.ok(), "{}", machine.error().message);
    const auto costs = OperatorCosts::Create(*machine, spec, {.format = "bf16"});
    CHECK(costs.ok(), "{}", costs.error().message);
    // Of so many FLOPs that nothing else counts.
    constexpr double kFlops = 1e18;
    return kFlops / costs->device().flops.at("bf16") / costs->ScoreSeconds(kFlops, 0);
  };
  EXPECT_NEAR(share_of_peak("a100-nvlink"), 0.72, 1e-6);
  EXPECT_NEAR(share_of_peak("h100-nvlink"), 0.35, 1e-6);
  // The same architecture with a quarter of the rate of each multiprocessor.
  EXPECT_NEAR(share_of_peak("h20-nvlink"), 0.72, 1e-6);
}

TEST(OperatorCosts, ARelativeHasTheShareOfItsLimitsThatTheMeasuredDeviceHas) {
  const model::ModelSpec spec = Spec();
  const auto a100 = Preset("a100-nvlink");
  MachineProfile half = *a100;
  for (const auto& [name, model] : half.operators) {
    half.measured_on[name] = {*a100->device, a100->links[0].bytes_per_second};
  }
  for (auto& [format, flops] : half.device->flops) flops /= 2;
  half.device->memory_bytes_per_second /= 2;
  half.device->name = "half a GPU";
  const auto whole_costs = OperatorCosts::Create(*a100, spec, {.format = "bf16"});
  const auto half_costs = OperatorCosts::Create(half, spec, {.format = "bf16"});
  const ProductShape shape{.rows = 8192, .columns = 8192, .inner = 8192};
  const double fixed = a100->operators.at("product bf16").curve.line.alpha;
  EXPECT_NEAR(half_costs->ProductSeconds(shape).seconds - fixed,
              2 * (whole_costs->ProductSeconds(shape).seconds - fixed), 1e-9);
  EXPECT_THAT(half_costs->notes(), Contains(HasSubstr("half a GPU reaches the share")));
}

TEST(OperatorCosts, ExpertsAreComputedInTheFasterOrder) {
  const model::ModelSpec spec = Spec();
  const model::MoeSpec& moe = *spec.layers[0].moe;
  const auto machine = Preset("h800-nvlink");
  const auto costs = OperatorCosts::Create(*machine, spec);
  for (const double slots : {8.0, 256.0, 65536.0}) {
    const double elements = 3.0 * 4096 * 14336;
    EXPECT_EQ(costs->ExpertsSeconds(moe, slots, 8, elements).seconds,
              std::min(costs->GroupedExpertsSeconds(moe, slots, 8, elements).seconds,
                       costs->DenseExpertsSeconds(moe, slots, 8, elements).seconds));
    const auto dense = OperatorCosts::Create(*machine, spec, {.order = ExpertsOrder::kDense});
    EXPECT_EQ(dense->ExpertsSeconds(moe, slots, 8, elements).seconds,
              costs->DenseExpertsSeconds(moe, slots, 8, elements).seconds);
  }
}

TEST(OperatorCosts, ProductsLeaveMultiprocessorsAsLongAsThePeakOfTheOthersIsEnough) {
  const model::ModelSpec spec = Spec();
  const model::MoeSpec& moe = *spec.layers[0].moe;
  const auto machine = Preset("h800-nvlink");
  const double elements = 3.0 * 4096 * 14336;
  const auto seconds = [&](int budget, double slots) {
    const auto costs = OperatorCosts::Create(*machine, spec, {.comm_budget = budget});
    return costs->GroupedExpertsSeconds(moe, slots, 8, elements).seconds;
  };
  for (const double slots : {8.0, 65536.0}) EXPECT_EQ(seconds(16, slots), seconds(0, slots));
  // Many rows wait for products, few for memory.
  const double peak = machine->device->flops.at("bf16");
  EXPECT_GT(seconds(120, 65536), 2 * 65536 * elements / (peak * 12 / 132));
  EXPECT_GT(seconds(120, 65536), 3 * seconds(0, 65536));
  EXPECT_LT(seconds(66, 8), 1.01 * seconds(0, 8));
  EXPECT_FALSE(OperatorCosts::Create(*machine, spec, {.comm_budget = 132}).ok());
}

TEST(OperatorCosts, AnExchangeTakesMultiprocessorsOfItsRanks) {
  const model::ModelSpec spec = Spec();
  const auto machine = Preset("h800-nvlink");
  const schedule::Schedule schedule = AllToAll(4, 1e8);
  const auto streams = [&](int multiprocessors) {
    const auto costs =
        OperatorCosts::Create(*machine, spec, {.exchange_multiprocessors = multiprocessors});
    const Prices prices =
        PriceSchedule(schedule, schedule::BuildActivityGraph(schedule), *costs, NoSizes).prices;
    std::vector<int> of_rank(4, 0);
    for (const Demand& demand : prices.demands) {
      if (demand.resource < 4) of_rank[demand.resource] += demand.streams;
    }
    return of_rank;
  };
  EXPECT_EQ(streams(16), std::vector(4, 16));
  // As many as move what NVLink does at 17 GB/s each: some of 200 GB/s.
  EXPECT_GE(streams(0)[0], 6);
  EXPECT_LE(streams(0)[0], 12);
}

TEST(OperatorCosts, WhatNamesNoReceiverIsWhatNamesAll) {
  const auto machine = Preset("a100-nvlink");
  for (const int ranks : {2, 8, 16, 24}) {
    EXPECT_NEAR(ExchangeSeconds(*machine, AllToAll(ranks, 1e6)),
                ExchangeSeconds(*machine, Evenly(ranks, 1e6)), 1e-9)
        << ranks;
  }
}

TEST(OperatorCosts, AnExchangeIsNoFasterThanEachLevelAllows) {
  for (const char* name :
       {"a100-nvlink", "a6000-nvlink", "h800-nvlink", "a10-pcie4", "epyc-7763"}) {
    const auto machine = Preset(name);
    const size_t num_levels = machine->links.size();
    double before = 0;
    for (const double bytes : {1e4, 1e5, 1e6, 1e7}) {
      constexpr int kRanks = 64;
      const double seconds = ExchangeSeconds(*machine, AllToAll(kRanks, bytes));
      EXPECT_GT(seconds, before) << name;
      before = seconds;
      int inside = 1;
      for (size_t level = 0; level < num_levels; ++level) {
        const LinkLevel& link = machine->links[level];
        const int joined = link.num_ranks == 0 ? kRanks : link.num_ranks;
        const double sharers = link.shared_by == LinkSharing::kHost ? inside : 1;
        EXPECT_GE(seconds, bytes * (joined - inside) * sharers / link.bytes_per_second)
            << name << " " << link.name;
        inside = joined;
      }
    }
    // More ranks that get as many bytes each do not make it faster.
    EXPECT_GE(ExchangeSeconds(*machine, AllToAll(128, 1e6)),
              ExchangeSeconds(*machine, AllToAll(64, 1e6)));
  }
}

TEST(OperatorCosts, ALinkOfPairsMakesNoExchangeSlower) {
  const auto pairs = Preset("a6000-nvlink");
  const auto without = Preset("a6000-pcie4");
  ASSERT_TRUE(pairs && without);
  for (const int ranks : {2, 4, 8, 16, 64}) {
    for (const double bytes : {1e2, 1e4, 1e6, 1e7}) {
      EXPECT_LE(ExchangeSeconds(*pairs, AllToAll(ranks, bytes)),
                ExchangeSeconds(*without, AllToAll(ranks, bytes)))
          << ranks << " ranks, " << bytes << " bytes";
    }
  }
  // And it is there for what it is good for.
  EXPECT_LT(ExchangeSeconds(*pairs, AllToAll(2, 1e8)),
            0.7 * ExchangeSeconds(*without, AllToAll(2, 1e8)));
}

TEST(OperatorCosts, OnlyLinksBesideOthersMayBeLeftOut) {
  MachineProfile machine = *Preset("a6000-nvlink");
  ASSERT_EQ(machine.links.size(), 3u);
  const auto first_levels = [](const MachineProfile& of) {
    return ExchangeLevels(of.links, 16).first_levels();
  };
  EXPECT_EQ(first_levels(machine), (std::vector<int>{0, 1}));
  // What four GPUs share is reached through the links of each.
  machine.links[1].shared_by = LinkSharing::kHost;
  EXPECT_EQ(first_levels(machine), std::vector<int>{0});
  // So are ports of a network, those of one GPU too.
  for (const char* name : {"a100-nvlink", "a10-pcie4", "epyc-7763"}) {
    EXPECT_EQ(first_levels(*Preset(name)), std::vector<int>{0}) << name;
  }
  machine.links = {machine.links[0], machine.links[2]};
  machine.links[1].shared_by = LinkSharing::kNobody;
  EXPECT_EQ(first_levels(machine), std::vector<int>{0});
}

// Rows that 20 us and 15 GB/s of each multiprocessor would give, of the model of Spec().
OperatorModel DispatchModel(const std::string& name, double link_bytes_per_second) {
  std::vector<OperatorSample> samples;
  for (const double multiprocessors : {4.0, 8.0, 12.0, 16.0, 20.0, 24.0}) {
    for (double tokens = 1; tokens <= 65536; tokens *= 4) {
      const DispatchShape shape{.num_tokens = tokens,
                                .hidden = 4096,
                                .top_k = 2,
                                .num_experts = 8,
                                .multiprocessors = multiprocessors};
      const OperatorWork work =
          WorkOf(shape, kRanksOfDispatch, kDispatchedBytes, link_bytes_per_second);
      const double bytes = work.ideal_seconds * link_bytes_per_second;
      samples.push_back({.features = work.features,
                         .ideal_seconds = work.ideal_seconds,
                         .seconds = 20e-6 + bytes / (15e9 * multiprocessors)});
    }
  }
  auto model = FitOperatorModel({.name = name, .feature_names = DispatchFeatures()}, samples);
  CHECK(model.ok(), "{}", model.error().message);
  return *std::move(model);
}

MachineProfile WithoutDispatch(MachineProfile machine) {
  for (const char* name : {"dispatch", "combine"}) {
    machine.operators.erase(name);
    machine.measured_on.erase(name);
  }
  return machine;
}

// The same as chunks of a step, beside which others are computed.
Schedule OfChunks(Schedule schedule) {
  for (schedule::Task& task : schedule.tasks) task.chunk = 1;
  return schedule;
}

TEST(OperatorCosts, DispatchIsPricedByItsTableAmongAsManyRanks) {
  const model::ModelSpec spec = Spec();
  const MachineProfile without = WithoutDispatch(*Preset("h100-nvlink"));
  MachineProfile machine = without;
  machine.operators["dispatch"] = DispatchModel("dispatch", machine.links[0].bytes_per_second);
  const auto seconds = [&](const Schedule& schedule, const OperatorCostsOptions& options) {
    const auto costs = OperatorCosts::Create(machine, spec, options);
    CHECK(costs.ok(), "{}", costs.error().message);
    return SecondsAlone(
        PriceSchedule(schedule, schedule::BuildActivityGraph(schedule), *costs, NoSizes).prices, 0);
  };
  // 7 others get 20 MB each.
  const double bytes = 7 * 20e6;
  for (const int multiprocessors : {4, 8, 24}) {
    const double beyond = bytes / (15e9 * multiprocessors);
    EXPECT_NEAR(seconds(OfChunks(AllToAll(8, 20e6)), {.comm_budget = multiprocessors}),
                20e-6 + beyond, 0.15 * beyond)
        << multiprocessors;
  }
  // Unless it is said, as many as were measured and the link of 450 GB/s would need; and where
  // nothing is computed beside the exchange, whatever the budget.
  for (const int budget : {0, 4, 24}) {
    EXPECT_EQ(seconds(AllToAll(8, 20e6), {.comm_budget = budget}),
              seconds(OfChunks(AllToAll(8, 20e6)), {.comm_budget = 24}))
        << budget;
  }
  // Others are what they were.
  EXPECT_EQ(seconds(AllToAll(4, 20e6), {}), ExchangeSeconds(without, AllToAll(4, 20e6)));
  Schedule combine = AllToAll(8, 20e6);
  for (schedule::Task& task : combine.tasks) task.kind = TaskKind::kCombine;
  EXPECT_EQ(seconds(combine, {}), ExchangeSeconds(without, combine));
  EXPECT_NE(seconds(AllToAll(8, 20e6), {}), ExchangeSeconds(without, AllToAll(8, 20e6)));
  const auto costs = OperatorCosts::Create(machine, spec);
  EXPECT_THAT(costs->notes(), Contains(HasSubstr("dispatch among 8 ranks")));
}

// The kernels of dispatch take 25 us for one token, which nobody would take for a step of decode.
TEST(OperatorCosts, AShortExchangeTakesTheKernelsThatAreFasterForIt) {
  const MachineProfile machine = *Preset("h100-nvlink");
  const MachineProfile without = WithoutDispatch(machine);
  ASSERT_TRUE(machine.operators.contains("dispatch"));
  EXPECT_EQ(ExchangeSeconds(machine, AllToAll(8, 1e4)), ExchangeSeconds(without, AllToAll(8, 1e4)));
  for (double bytes = 1e3; bytes < 1e9; bytes *= 10) {
    EXPECT_LE(ExchangeSeconds(machine, AllToAll(8, bytes)),
              ExchangeSeconds(without, AllToAll(8, bytes)))
        << bytes;
  }
}

TEST(OperatorCosts, AnExchangeMovesNoMoreThanItsMultiprocessorsDo) {
  const model::ModelSpec spec = Spec();
  const auto machine = Preset("h100-nvlink");
  // No table is of four ranks.
  const Schedule schedule = OfChunks(AllToAll(4, 1e8));
  const auto seconds = [&](const OperatorCostsOptions& options) {
    const auto costs = OperatorCosts::Create(*machine, spec, options);
    return SecondsAlone(
        PriceSchedule(schedule, schedule::BuildActivityGraph(schedule), *costs, NoSizes).prices, 0);
  };
  for (const int number : {1, 4, 8}) {
    const double least = 3e8 / (number * kBytesPerMultiprocessor);
    EXPECT_NEAR(seconds({.comm_budget = number}), least, 0.1 * least) << number;
    EXPECT_EQ(seconds({.comm_budget = number}), seconds({.exchange_multiprocessors = number}));
  }
  EXPECT_EQ(seconds({.comm_budget = 40}), seconds({}));
}

TEST(OperatorCosts, AnExchangeByATableTakesTheMultiprocessorsWithWhichItWasMeasured) {
  const model::ModelSpec spec = Spec();
  MachineProfile machine = *Preset("h100-nvlink");
  machine.operators["dispatch"] = DispatchModel("dispatch", machine.links[0].bytes_per_second);
  ASSERT_FALSE(machine.measured_on.contains("dispatch"));
  const auto share_of = [&](const OperatorCostsOptions& options) {
    const auto costs = OperatorCosts::Create(machine, spec, options);
    return costs->exchanges().OfDispatch(TaskKind::kDispatch, 1e8,
                                         machine.links[0].bytes_per_second, 0,
                                         costs->GivenToExchanges(true));
  };
  EXPECT_EQ(share_of({}).multiprocessors, 24);
  EXPECT_EQ(share_of({.comm_budget = 12}).multiprocessors, 12);
  EXPECT_EQ(share_of({.comm_budget = 40}).multiprocessors, 24);
  EXPECT_FALSE(share_of({.comm_budget = 40}).is_extrapolated);
  // Who asks for another number gets it, marked as beyond the table.
  EXPECT_EQ(share_of({.exchange_multiprocessors = 40}).multiprocessors, 40);
  EXPECT_TRUE(share_of({.exchange_multiprocessors = 40}).is_extrapolated);
}

// A token in bf16 has the bytes of one of nearly twice as many elements in fp8, and is one token.
TEST(OperatorCosts, ADispatchOfWiderElementsIsOneOfMoreElements) {
  const model::ModelSpec spec = Spec();
  MachineProfile machine = *Preset("h100-nvlink");
  const double link = machine.links[0].bytes_per_second;
  // Each token takes as long as 4,096 bytes do, whatever its size.
  std::vector<OperatorSample> samples;
  for (double hidden = 1024; hidden <= 16384; hidden *= 2) {
    for (double tokens = 1; tokens <= 65536; tokens *= 4) {
      const DispatchShape shape{.num_tokens = tokens,
                                .hidden = hidden,
                                .top_k = 2,
                                .num_experts = 8,
                                .multiprocessors = 24};
      const OperatorWork work = WorkOf(shape, kRanksOfDispatch, kDispatchedBytes, link);
      samples.push_back({.features = work.features,
                         .ideal_seconds = work.ideal_seconds,
                         .seconds = 20e-6 + work.ideal_seconds * (1 + 4096 / hidden)});
    }
  }
  const auto model =
      FitOperatorModel({.name = "dispatch", .feature_names = DispatchFeatures()}, samples);
  ASSERT_TRUE(model.ok()) << model.error().message;
  machine.operators["dispatch"] = *model;
  const auto costs = OperatorCosts::Create(machine, spec);
  ASSERT_TRUE(costs.ok()) << costs.error().message;
  const auto efficiency = [&](double row_bytes) {
    return costs->exchanges().OfDispatch(TaskKind::kDispatch, 1e9, link, row_bytes, {}).efficiency;
  };
  EXPECT_NEAR(efficiency(0), 0.5, 0.02);
  EXPECT_EQ(efficiency(4096 * kDispatchedBytes), efficiency(0));
  EXPECT_NEAR(efficiency(2 * 4096 * kDispatchedBytes), 1 / 1.5, 0.02);
}

TEST(OperatorCosts, OnASlowerLinkFewerMultiprocessorsReachTheSamePartOfIt) {
  const model::ModelSpec spec = Spec();
  const auto h100 = Preset("h100-nvlink");
  MachineProfile half = *h100;
  half.links[0].bytes_per_second /= 2;
  for (const char* name : {"dispatch", "combine"}) {
    half.measured_on[name] = {*h100->device, h100->links[0].bytes_per_second};
  }
  const auto share_of = [&](const MachineProfile& machine, int multiprocessors, double bytes) {
    const auto costs = OperatorCosts::Create(machine, spec);
    CHECK(costs.ok(), "{}", costs.error().message);
    return costs->exchanges().OfDispatch(TaskKind::kDispatch, bytes,
                                         machine.links[0].bytes_per_second, 0,
                                         {.number = multiprocessors});
  };
  for (const int multiprocessors : {2, 4, 8, 12}) {
    const double efficiency = share_of(half, multiprocessors, 1e8).efficiency;
    EXPECT_DOUBLE_EQ(efficiency, share_of(*h100, 2 * multiprocessors, 2e8).efficiency);
    EXPECT_FALSE(share_of(half, multiprocessors, 1e8).is_extrapolated);
  }
  // Where they are what holds an exchange back, as many move as much, whatever the link.
  const double of_half = share_of(half, 4, 1e8).efficiency * half.links[0].bytes_per_second;
  const double of_whole = share_of(*h100, 4, 1e8).efficiency * h100->links[0].bytes_per_second;
  EXPECT_NEAR(of_half, of_whole, 0.15 * of_whole);
  // By itself it takes as many as its link needs.
  EXPECT_EQ(share_of(*h100, 0, 1e8).multiprocessors, 24);
  EXPECT_EQ(share_of(half, 0, 1e8).multiprocessors, 12);
}

TEST(OperatorCosts, OperatorsThatNoPriceIsAskedOfAreKnown) {
  const std::vector<std::string> formats = {"bf16", "int8"};
  for (const char* name :
       {"product bf16", "product int8", "grouped_product int8", "all_gather", "reduce_scatter",
        "all_to_all", "dispatch", "combine", "all_reduce", "all_reduce, vLLM vLLM_custom_graph"}) {
    EXPECT_TRUE(IsPriced(name, formats)) << name;
  }
  for (const char* name : {"product fp8", "product bf16, TRTLLM torch_flow", "dispatch, x", ""}) {
    EXPECT_FALSE(IsPriced(name, formats)) << name;
  }
}

TEST(OperatorCosts, HostsArePricedInBytes) {
  const model::ModelSpec spec = Spec();
  for (const char* name : {"epyc-7763", "xeon-8380"}) {
    const auto machine = Preset(name);
    const auto bytes = OperatorCosts::Create(*machine, spec, {.format = "int8"});
    ASSERT_TRUE(bytes.ok()) << bytes.error().message;
    const auto halves = OperatorCosts::Create(*machine, spec, {.format = "bf16"});
    const ProductShape shape{.rows = 1, .columns = 4096, .inner = 4096};
    EXPECT_LT(bytes->ProductSeconds(shape).seconds, halves->ProductSeconds(shape).seconds) << name;
  }
}

TEST(OperatorCosts, WhatLiesBeyondTheTablesIsToldFromWhatLiesInThem) {
  const model::ModelSpec spec = Spec();
  const model::MoeSpec& moe = *spec.layers[0].moe;
  const auto machine = Preset("a100-nvlink");
  const auto costs = OperatorCosts::Create(*machine, spec, {.order = ExpertsOrder::kGrouped});
  const double most_rows = machine->operators.at("product bf16").ranges[0].max;
  const double most_tokens = machine->operators.at("grouped_product bf16").ranges[0].max;
  for (const double factor : {0.25, 4.0}) {
    const bool is_beyond = factor > 1;
    const OperatorSeconds product =
        costs->ProductSeconds({.rows = factor * most_rows, .columns = 4096, .inner = 4096});
    EXPECT_EQ(product.extrapolated, is_beyond ? product.seconds : 0);
    const OperatorSeconds experts =
        costs->ExpertsSeconds(moe, 2 * factor * most_tokens, 8, 3.0 * 4096 * 14336);
    EXPECT_EQ(experts.extrapolated, is_beyond ? experts.seconds : 0);
  }
  const double most_bytes = machine->operators.at("all_to_all").ranges[0].max;
  const auto share_of = [&](const Schedule& schedule) {
    return PriceSchedule(schedule, schedule::BuildActivityGraph(schedule), *costs, NoSizes)
        .extrapolated_share;
  };
  EXPECT_EQ(share_of(AllToAll(4, most_bytes / 64)), 0);
  EXPECT_EQ(share_of(AllToAll(4, 4 * most_bytes)), 1);
}

TEST(OperatorCosts, RanksOfAHostTakeTurnsAtItsPort) {
  MachineProfile machine = *Preset("a10-pcie4");
  ASSERT_EQ(machine.links.back().shared_by, LinkSharing::kHost);
  const Schedule exchange = AllToAll(16, 1e6);
  const double shared = ExchangeSeconds(machine, exchange);
  machine.links.back().shared_by = LinkSharing::kNobody;
  EXPECT_GT(shared, 4 * ExchangeSeconds(machine, exchange));
  machine.links.back().shared_by = LinkSharing::kMedium;
  EXPECT_GT(ExchangeSeconds(machine, exchange), 1.5 * shared);
}

TEST(OperatorCosts, WhatTheMachineCannotDoIsRefused) {
  const model::ModelSpec spec = Spec();
  const auto a100 = Preset("a100-nvlink");
  EXPECT_THAT(OperatorCosts::Create(*a100, spec, {.format = "fp8"}).error().message,
              HasSubstr("fp8"));
  EXPECT_THAT(OperatorCosts::Create(*a100, spec, {.format = "int3"}).error().message,
              HasSubstr("int3"));
  // Profiles that somebody edited.
  MachineProfile edited = *a100;
  edited.operators.at("all_to_all").ranges[1].min = 1;
  EXPECT_THAT(OperatorCosts::Create(edited, spec, {.format = "bf16"}).error().message,
              HasSubstr("fewer than 2 ranks"));
  for (const char* name : {"product bf16", "grouped_product bf16", "all_gather"}) {
    edited = *a100;
    edited.operators.at(name).ranges.pop_back();
    EXPECT_THAT(OperatorCosts::Create(edited, spec, {.format = "bf16"}).error().message,
                HasSubstr(std::string(name) + "\" has "));
  }
  edited = *a100;
  edited.operators["combine"] = edited.operators.at("all_gather");
  EXPECT_THAT(OperatorCosts::Create(edited, spec, {.format = "bf16"}).error().message,
              HasSubstr("combine\" has 2 features, and 5 are expected"));
  MachineProfile alone = *a100;
  alone.links.clear();
  EXPECT_THAT(OperatorCosts::Create(alone, spec, {.format = "bf16"}).error().message,
              HasSubstr("links"));
}

}  // namespace
}  // namespace convene::cost
