#include "cost/step_costs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "cost/two_ranks_test.h"

namespace convene::cost {
namespace {

using schedule::LaneKind;
using schedule::Schedule;
using schedule::TaskKind;
using schedule::Work;

StepCosts CostsOfTasks() {
  StepCosts costs{.num_ranks = 2, .weights = "bf16"};
  auto& task = costs.tasks[static_cast<size_t>(TaskKind::kExperts)].emplace();
  task.once = 1e-3;
  task.per_weight_byte = {.at = {1e9}, .value = {1e-9}};
  costs.exchange.seconds = {.at = {1e3, 1e6}, .value = {1e-4, 1e-2}};
  costs.exchange.core_seconds_per_byte = 1e-9;
  costs.step_once = 1e-4;
  return costs;
}

Prices PricesOf(const Schedule& schedule, const StepCosts& costs) {
  return PriceSchedule(schedule, schedule::BuildActivityGraph(schedule), costs, NothingSized);
}

TEST(StepCosts, ExpertsThatMoveAreCopiedAtBothEndsBesides) {
  StepCosts costs = CostsOfTasks();
  const double link = costs.exchange.SecondsOf(1e6);
  EXPECT_EQ(costs.ExchangeSeconds(TaskKind::kDispatch, {.all = 1e6}), link);
  EXPECT_EQ(costs.ExchangeSeconds(TaskKind::kMoveExperts, {.all = 1e6}), link);  // nothing is known
  costs.reference.read_bytes_per_second = 2e9;
  // Each of two ranks packs half of the bytes and unpacks the other half, at half of what is read.
  EXPECT_NEAR(costs.ExchangeSeconds(TaskKind::kMoveExperts, {.all = 1e6}), link + 1e-3, 1e-12);
  EXPECT_NEAR(costs.ExchangeSeconds(TaskKind::kMoveExperts, {.all = 1e6}, {.memory = 2}),
              link + 2e-3, 1e-12);
  costs.copy_bytes_per_second = 5e8;
  EXPECT_NEAR(costs.ExchangeSeconds(TaskKind::kMoveExperts, {.all = 1e6}), link + 2e-3, 1e-12);
  Schedule moves = TwoRanks(/*overlaps=*/false);
  for (schedule::Task& task : moves.tasks) {
    if (task.kind == TaskKind::kDispatch) task.kind = TaskKind::kMoveExperts;
  }
  EXPECT_NEAR(SecondsAlone(PricesOf(moves, costs), 1), link + 2e-3, 1e-12);
}

TEST(StepCosts, ExpertsThatAreLoadedTakeOneThreadForWhatIsCopiedAndMadeOfInt4) {
  StepCosts costs = CostsOfTasks();
  costs.num_threads = 4;
  costs.tasks[static_cast<size_t>(TaskKind::kLoadExperts)] =
      LoadCost({.copied_bytes_per_second = 1e9, .weights_per_second = 5e8}, /*bytes_per_weight=*/2);
  Schedule loads;
  for (const double made : {0.0, 2e5, 5e5}) {
    schedule::Task task{.kind = TaskKind::kLoadExperts,
                        .lane = {0, LaneKind::kLoad},
                        .layer = static_cast<int>(loads.tasks.size()),
                        .work = {.memory_bytes = schedule::Constant(1e6)}};
    if (made > 0) task.work.flops = schedule::Constant(made);
    loads.tasks.push_back(task);
  }
  const Prices prices = PricesOf(loads, costs);
  EXPECT_EQ(KindWithoutCost(loads, costs), std::nullopt);
  EXPECT_EQ(ExtrapolatedShare(loads, costs, NothingSized), 0);
  const double expected[] = {1e-3, 1e-3 + 4e-4, 1e-3 + 1e-3};
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(prices.fixed_seconds[i], 0.75 * expected[i], 1e-9);
    EXPECT_NEAR(prices.demands[prices.first_demand[i]].amount, 0.25 * expected[i], 1e-9);
  }
  const auto read = StepCostsFromJson(ToJson(costs));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->tasks, costs.tasks);
}

// Where a layer's computation goes on beside it, both want memory.
TEST(StepCosts, LoadsBesideComputationTakeMoreOfTheCoresThanAlone) {
  StepCosts costs = CostsOfTasks();
  costs.num_threads = 4;
  const LoadRates rates = {.copied_bytes_per_second = 1e9,
                           .weights_per_second = 5e8,
                           .copying_beside = 3,
                           .making_beside = 2};
  costs.tasks[static_cast<size_t>(TaskKind::kLoadExperts)] = LoadCost(rates, 2);
  costs.load_beside = LoadCostBeside(rates, 2);
  const schedule::Task alone{
      .kind = TaskKind::kLoadExperts,
      .lane = {0, LaneKind::kLoad},
      .layer = 0,
      .work = {.flops = schedule::Constant(2e5), .memory_bytes = schedule::Constant(1e6)}};
  schedule::Task beside = alone;
  beside.layer = 1;
  beside.after = {0};
  Schedule loads;
  loads.tasks = {alone, beside};
  const Prices prices = PricesOf(loads, costs);
  const double seconds = 1e-3 + 4e-4;
  for (int i = 0; i < 2; ++i) EXPECT_NEAR(prices.fixed_seconds[i], 0.75 * seconds, 1e-9);
  EXPECT_NEAR(prices.demands[prices.first_demand[0]].amount, 0.25 * seconds, 1e-9);
  EXPECT_NEAR(prices.demands[prices.first_demand[1]].amount, 0.25 * (3e-3 + 8e-4), 1e-9);
  const auto read = StepCostsFromJson(ToJson(costs));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->load_beside, costs.load_beside);
}

TEST(StepCosts, AttentionOverAnInt8CacheIsKeptBesideTheUsualOne) {
  StepCosts costs = CostsOfTasks();
  TaskCost usual;
  usual.once = 1;
  TaskCost int8 = usual;
  int8.once = 3;
  costs.tasks[static_cast<size_t>(TaskKind::kAttention)] = usual;
  costs.int8_attention = int8;
  costs.int8_attention_held_out = HeldOut{.num_points = 7, .low = -0.5, .high = 0.25};
  nlohmann::json json = ToJson(costs);
  const auto read = StepCostsFromJson(json);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, costs);
  EXPECT_EQ(read->int8_attention, costs.int8_attention);
  EXPECT_EQ(read->int8_attention_held_out->num_points, 7);
  StepCosts swapped = costs;
  swapped.SwapCaches();
  // Prices and errors of attention in pieces are those of attention, too.
  EXPECT_EQ(swapped.CostOf(TaskKind::kAttend)->once, 3);
  EXPECT_EQ(swapped.held_out[static_cast<size_t>(TaskKind::kAttention)]->num_points, 7);
  swapped.SwapCaches();
  EXPECT_EQ(swapped, costs);
  json["int8_attention"]["once_s"] = -1;
  EXPECT_FALSE(StepCostsFromJson(json).ok());
  json.erase("int8_attention");  // as in profiles of before
  const auto before = StepCostsFromJson(json);
  ASSERT_TRUE(before.ok()) << before.error().message;
  EXPECT_FALSE(before->int8_attention);
}

TEST(StepCosts, TasksWithWeightsInACacheAreKeptBesideTheOthers) {
  StepCosts costs = CostsOfTasks();
  const auto experts = static_cast<size_t>(TaskKind::kExperts);
  costs.cached_tasks[experts] = costs.tasks[experts].value_or(TaskCost());
  costs.cached_tasks[experts]->once += 7;
  costs.cached_weight_bytes = 1e7;
  nlohmann::json json = ToJson(costs);
  const auto read = StepCostsFromJson(json);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, costs);
  EXPECT_EQ(read->cached_tasks, costs.cached_tasks);
  StepCosts swapped = costs;
  swapped.SwapCachedTasks();
  EXPECT_EQ(swapped.tasks[experts], costs.cached_tasks[experts]);
  const auto head = static_cast<size_t>(TaskKind::kHead);  // it was not measured
  EXPECT_EQ(swapped.tasks[head], costs.tasks[head]);
  json["cached_weights"]["tasks"]["juggle"] = 1;
  EXPECT_FALSE(StepCostsFromJson(json).ok());
  json["cached_weights"] = 1;
  EXPECT_FALSE(StepCostsFromJson(json).ok());
  json.erase("cached_weights");  // as in profiles of before
  const auto before = StepCostsFromJson(json);
  ASSERT_TRUE(before.ok()) << before.error().message;
  EXPECT_EQ(before->cached_weight_bytes, 0);
}

TEST(StepCosts, OfUnlikeRanksAreWrittenAndRead) {
  StepCosts costs = CostsOfTasks();
  costs.rank_states = {{.memory = 1, .compute = 1.5}, {.memory = 2, .compute = 0.75}};
  nlohmann::json json = ToJson(costs);
  const auto read = StepCostsFromJson(json);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->rank_states, costs.rank_states);
  json["rank_states"][1]["memory"] = 0;
  EXPECT_FALSE(StepCostsFromJson(json).ok());
  json.erase("rank_states");
  // Of profiles that told memory and cores not apart.
  json["rank_factors"] = {1, 2};
  const auto before = StepCostsFromJson(json);
  ASSERT_TRUE(before.ok()) << before.error().message;
  EXPECT_EQ(before->rank_states, (std::vector<MachineState>{{}, {.memory = 2, .compute = 2}}));
}

TEST(StepCosts, RememberTheLastPlansThatTheyLearntFromOnce) {
  StepCosts costs = CostsOfTasks();
  costs.LearntFrom("");
  EXPECT_TRUE(costs.learnt_from.empty());
  for (size_t i = 0; i < kMostLearntFrom + 2; ++i) {
    costs.LearntFrom(fmt::format("plan {}", i));
    costs.LearntFrom(fmt::format("plan {}", i));
  }
  EXPECT_EQ(costs.learnt_from.size(), kMostLearntFrom);
  EXPECT_EQ(costs.learnt_from.front(), "plan 2");
}

TEST(StepCosts, PriceTasksByTheirCostsAndExchangesByTheBytesOfAllRanks) {
  const Prices prices = PricesOf(TwoRanks(/*overlaps=*/false), CostsOfTasks());
  ASSERT_EQ(prices.fixed_seconds.size(), 3u);  // experts, the exchange, experts
  EXPECT_NEAR(SecondsAlone(prices, 0), 5e-3, 1e-12);
  EXPECT_NEAR(SecondsAlone(prices, 1), 1e-2, 1e-12);
  EXPECT_NEAR(SecondsAlone(prices, 2), 5e-3, 1e-12);
}

// A fast link, and a core that seems to need longer for the bytes than the link.
TEST(StepCosts, AnExchangeAloneTakesWhatItTakesOnTheLink) {
  StepCosts costs = CostsOfTasks();
  costs.exchange.core_seconds_per_byte = 4e-9;
  costs.exchange.seconds = {.at = {1e3, 1e6}, .value = {1e-5, 1.3e-4}};
  EXPECT_NEAR(SecondsAlone(PricesOf(TwoRanks(/*overlaps=*/false), costs), 1),
              costs.exchange.SecondsOf(1e6), 1e-12);
}

TEST(StepCosts, TheLastingRateIsNotOfTwoPointsThatAreNearEachOther) {
  StepCosts costs = CostsOfTasks();
  // 10 ns a byte throughout, but for a last point that came out no longer than the one before it.
  costs.exchange.seconds = {.at = {1e3, 1e5, 9e5, 1e6}, .value = {1e-5, 1e-3, 9e-3, 9e-3}};
  EXPECT_NEAR(costs.exchange.lasting_seconds_per_byte() / 1e-8, 0.9, 0.05);
}

TEST(StepCosts, ExchangesBesideComputationGoAtTheLastingRateAndTakeOfTheCores) {
  StepCosts costs = CostsOfTasks();
  // The first 100 kB pass as a burst.
  costs.exchange.seconds = {.at = {1e3, 1e5, 1e6}, .value = {1e-4, 2e-4, 9.2e-3}};
  EXPECT_NEAR(costs.exchange.lasting_seconds_per_byte(), 1e-8, 1e-14);
  EXPECT_NEAR(costs.exchange.SecondsOf(2e6), 1.92e-2, 1e-12);
  const Prices prices = PricesOf(TwoRanks(/*overlaps=*/true), costs);
  EXPECT_NEAR(SecondsAlone(prices, 1), 1e-4 + 1e-2, 1e-12);
  // Each rank sends 500 kB and receives as much.
  double core_seconds = 0;
  for (const Demand& demand : prices.demands_of(1)) {
    if (prices.resources[demand.resource].kind == ResourceKind::kCores) {
      core_seconds += demand.amount;
    }
  }
  EXPECT_NEAR(core_seconds, 2 * 1e6 * 1e-9, 1e-12);
}

TEST(StepCosts, OfRowsThatGoOneWayEachRankTakesItsOwnBytesOfItsCores) {
  Schedule schedule{.num_ranks = 3};
  for (int rank = 0; rank < 3; ++rank) {
    schedule.tasks.push_back({.kind = TaskKind::kDispatch,
                              .lane = {rank, LaneKind::kSend},
                              .layer = 0,
                              .chunk = 1,
                              .collective = 0});
  }
  const auto sent_to = [](int rank) {
    return schedule::Size{.kind = schedule::SizeKind::kSent, .from = 0, .to = rank};
  };
  schedule.tasks[0].work.link_bytes = {{4e5, sent_to(1)}, {1e5, sent_to(2)}};
  const Prices prices = PriceSchedule(schedule, schedule::BuildActivityGraph(schedule),
                                      CostsOfTasks(), [](const schedule::Size&) { return 1.0; });
  std::vector<double> core_seconds(3, 0);
  for (const Demand& demand : prices.demands_of(0)) {
    if (demand.resource < 3) core_seconds[static_cast<size_t>(demand.resource)] = demand.amount;
  }
  EXPECT_NEAR(core_seconds[0], 5e5 * 1e-9, 1e-15);
  EXPECT_NEAR(core_seconds[1], 4e5 * 1e-9, 1e-15);
  EXPECT_NEAR(core_seconds[2], 1e5 * 1e-9, 1e-15);
}

TEST(StepCosts, WhatIsReadFromADiskTakesItsRateAndAPartOfACore) {
  Schedule schedule{.num_ranks = 1};
  schedule.tasks.push_back({.kind = TaskKind::kReadPages, .lane = {0, LaneKind::kLoad}});
  schedule.tasks.back().work.disk_bytes = {{3e9, {}}};
  StepCosts costs;
  costs.num_ranks = 1;
  costs.num_threads = 2;
  const Prices prices =
      PriceSchedule(schedule, schedule::BuildActivityGraph(schedule), costs, NothingSized, {},
                    {.bytes_per_second = 2e9, .core_seconds_per_byte = 2e-10});
  double core_seconds = 0;
  for (const Demand& demand : prices.demands_of(0)) {
    if (demand.resource == 0) core_seconds += demand.amount;
  }
  EXPECT_NEAR(core_seconds, 3e9 * 2e-10 / costs.num_threads, 1e-12);
  EXPECT_NEAR(SecondsAlone(prices, 0), 1.5, 1e-12);
}

// Where each rank has a rate of its own in both directions, rows that all come from one rank take
// as long as that rank alone can send them; others may have the other direction meanwhile.
TEST(StepCosts, WhatOneRankAloneSendsTakesLongerWhereRanksHaveTheirOwnRates) {
  Schedule schedule{.num_ranks = 2};
  for (const int sender : {0, 1}) {
    for (int rank = 0; rank < 2; ++rank) {
      schedule.tasks.push_back({.kind = TaskKind::kDispatch,
                                .lane = {rank, sender == 0 ? LaneKind::kSend : LaneKind::kReceive},
                                .layer = 0,
                                .collective = sender});
      if (rank != sender) continue;
      const schedule::Size size{
          .kind = schedule::SizeKind::kSent, .from = sender, .to = 1 - sender};
      schedule.tasks.back().work.link_bytes = {{1e6, size}};
    }
  }
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(schedule);
  const Sizes ones = [](const schedule::Size&) { return 1.0; };
  StepCosts costs = CostsOfTasks();
  const auto seconds = [&] { return SecondsAlone(PriceSchedule(schedule, graph, costs, ones), 0); };
  const double shared = seconds();
  EXPECT_NEAR(shared, 1e-2, 1e-9);
  costs.exchange.unevenness = 1;
  const double once = costs.exchange.once();
  EXPECT_NEAR(seconds(), costs.exchange.SecondsOf(2e6), 1e-6);
  EXPECT_NEAR(costs.ExchangeSeconds(TaskKind::kDispatch, {.all = 1e6, .busiest = 2}),
              costs.exchange.SecondsOf(2e6), 1e-12);
  // Both at once, one each way: as long as one alone. One direction at a time would take twice
  // that.
  const Prices prices = PriceSchedule(schedule, graph, costs, ones);
  int streams = 0;
  double amount = 0;
  for (const int activity : {0, 1}) {
    for (const Demand& demand : prices.demands_of(activity)) {
      if (prices.resources[static_cast<size_t>(demand.resource)].kind != ResourceKind::kLink)
        continue;
      streams += demand.streams;
      amount += demand.amount;
    }
  }
  const auto link = std::ranges::find(prices.resources, ResourceKind::kLink, &Resource::kind);
  EXPECT_NEAR(once + amount / link->rate.at(streams), seconds(), 1e-6);
  // Bytes in even parts take as long as they did.
  EXPECT_NEAR(SecondsAlone(PricesOf(TwoRanks(/*overlaps=*/false), costs), 1), 1e-2, 1e-9);
  const auto read = StepCostsFromJson(ToJson(costs));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->exchange.unevenness, 1);
}

TEST(StepCosts, WhatIsGatheredGoesToRankZero) {
  for (const TaskKind kind : {TaskKind::kGatherRows, TaskKind::kGatherLogits}) {
    Schedule schedule{.num_ranks = 3};
    std::vector<schedule::TaskId> tasks;
    for (int rank = 0; rank < 3; ++rank) {
      tasks.push_back(rank);
      schedule.tasks.push_back({.kind = kind, .lane = {rank, LaneKind::kSend}, .collective = 0});
      if (rank == 0) continue;
      const schedule::Size wanted{.kind = schedule::SizeKind::kWanted, .from = rank};
      schedule.tasks.back().work.link_bytes = {{4e5, wanted}};
    }
    const Sizes ones = [](const schedule::Size&) { return 1.0; };
    const MovedBytes gathered = BytesOf(schedule, tasks, ones);
    EXPECT_EQ(gathered.all, 8e5);
    EXPECT_NEAR(gathered.busiest, 3, 1e-12);
    // As they are known where only senders are.
    EXPECT_NEAR(BytesOfSenders(std::vector{0.0, 4e5, 4e5}, 3).busiest, 3, 1e-12);
  }
}

TEST(StepCosts, AreTheSameAfterJson) {
  StepCosts costs = CostsOfTasks();
  costs.num_threads = 3;
  costs.reference = {.read_bytes_per_second = 2e10, .dot_operations_per_second = 1e12};
  costs.held_out[3] = {.num_points = 4, .median_error = 0.1, .p95_error = 0.2};
  costs.interval_stretch = 2.5;
  const auto read = StepCostsFromJson(nlohmann::json::parse(ToJson(costs).dump()));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, costs);
  EXPECT_EQ(read->interval_stretch, 2.5);
}

TEST(StepCosts, RefuseJsonThatIsNone) {
  const nlohmann::json good = ToJson(CostsOfTasks());
  for (const auto& [key, value] : good.items()) {
    if (key == "version" || key == "date") continue;  // files of older programs have none
    nlohmann::json without = good;
    without.erase(key);
    EXPECT_FALSE(StepCostsFromJson(without)) << key;
  }
  nlohmann::json strange = good;
  strange["tasks"]["cooking"] = good["tasks"]["experts"];
  EXPECT_FALSE(StepCostsFromJson(strange));
  EXPECT_FALSE(StepCostsFromJson(nlohmann::json()));
  for (const auto& [key, value] : {std::pair("/threads", 0.0),
                                   {"/ranks", 0.0},
                                   {"/threads", 1e7},
                                   {"/step_once_s", 1e300},
                                   {"/read_bytes_per_s", 1e-300},
                                   {"/dot_operations_per_s", 1e300},
                                   {"/exchange/seconds_over_bytes/value/0", 1e308},
                                   {"/exchange/core_s_per_byte", 1e19},
                                   {"/tasks/experts/per_row_byte_s", 9223372036854775808.0},
                                   {"/tasks/experts/per_weight_byte_s/value/0", 1e200},
                                   {"/tasks/experts/memory_sensitivity", 1e9}}) {
    const nlohmann::json::json_pointer place{std::string(key)};
    ASSERT_TRUE(good.contains(place)) << key;
    nlohmann::json nonsense = good;
    nonsense[place] = value;
    EXPECT_FALSE(StepCostsFromJson(nonsense)) << key;
  }
}

}  // namespace
}  // namespace convene::cost
