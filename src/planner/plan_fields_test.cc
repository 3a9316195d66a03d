// That fields of a plan change what is executed: those that are part of a step's schedule are tried
// here, and of the others the test is named that sees them act (nothing checks the name). A field
// that the writer emits and that has neither fails.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "plan/plan.h"
#include "planner/spilled_steps.h"
#include "schedule/schedule.h"
#include "strategy/step.h"

namespace convene::planner {
namespace {

using nlohmann::json;
using plan::MadeFor;
using plan::Plan;
using plan::PlanFromJson;

model::ModelSpec SpecOfFields() {
  model::LayerSpec layer;
  layer.attention = {.num_heads = 4, .num_kv_heads = 4, .head_dim = 16, .value_dim = 16};
  layer.moe = model::MoeSpec{
      .num_experts = 8, .top_k = 2, .intermediate_size = 32, .shared_intermediate_size = 32};
  model::ModelSpec spec;
  spec.hidden_size = 64;
  spec.vocab_size = 128;
  spec.max_positions = 1024;
  spec.layers = {layer, layer};
  return spec;
}

// As "pipeline.chunks".
void AddFieldsOf(const Plan& plan, std::set<std::string>& fields) {
  const json object = plan::ToJson(plan);
  for (const auto& [key, value] : object.items()) {
    if (!value.is_object()) {
      fields.insert(key);
      continue;
    }
    for (const auto& [inner, unused] : value.items()) fields.insert(key + "." + inner);
  }
}

// Every field of plans that have all of them: no plan has both decode and ranks with experts alone.
std::set<std::string> FieldsOfPlans() {
  const Plan whole{.layout = {.attention_dp = 2, .expert_ep = 2},
                   .decode = strategy::Layout{.attention_dp = 2, .expert_tp = 2},
                   .pipeline = {.chunks = 2, .cut = strategy::ChunkCut::kExperts, .cuts = {0.5}},
                   .step_tokens = 1024,
                   .sequences = 8,
                   .cut_from_tokens = 64,
                   .experts_in_memory = 4,
                   .spilled_kv = plan::SpilledKv{},
                   .weights = "int8",
                   .num_threads = 1,
                   .made_for = MadeFor{.model = "0123456789abcdef", .num_ranks = 2}};
  const Plan apart{.layout = {.disaggregates = true},
                   .pipeline = {.order = strategy::AttentionOrder::kAass},
                   .lines = {plan::LaneLines{}}};
  std::set<std::string> fields;
  AddFieldsOf(whole, fields);
  AddFieldsOf(apart, fields);
  return fields;
}

// The tasks of a step of both phases, on all ranks, with their work.
std::string ScheduleOf(const json& object) {
  const Result<Plan> read = PlanFromJson(object);
  EXPECT_TRUE(read.ok()) << object.dump();
  if (!read) return "";
  const auto step = [&](const strategy::Layout& layout,
                        const std::optional<strategy::ExpertLoads>& loads = {}) {
    strategy::StepOptions options{.roles = layout, .pipeline = read->pipeline, .loads = loads};
    if (read->spilled_kv) {
      const int sequences = read->sequences;
      options.spilled_kv =
          SpilledStepOf(*read->spilled_kv, sequences * BlocksOfSequence(/*num_tokens=*/200),
                        DecodeStep(sequences, /*context=*/180, /*prompt_tokens=*/180, layout));
    }
    return ToText(strategy::BuildStep(SpecOfFields(), options));
  };
  std::optional<strategy::ExpertLoads> loads;  // behind the last prompts
  if (read->loads_experts()) {
    loads = strategy::ExpertLoads{.from = read->layout, .to = *read->decode, .rounded = true};
  }
  return step(read->layout, loads) + "\n" + step(read->decode.value_or(read->layout));
}

json With(json object, const json& patch) {
  object.merge_patch(patch);
  return object;
}

TEST(PlanFields, EachChangesTheScheduleOrIsCheckedWhereItActs) {
  const json base = {{"version", 1},
                     {"layout", "attention=dp2,experts=ep2"},
                     {"pipeline", {{"chunks", 3}, {"cut", "experts"}}}};
  const std::map<std::string, json> changes = {
      {"layout", {{"layout", "attention=tp2,experts=ep2"}}},
      {"pipeline.chunks", {{"pipeline", {{"chunks", 2}}}}},
      {"pipeline.cut", {{"pipeline", {{"cut", "tokens"}}}}},
      {"pipeline.overlap", {{"pipeline", {{"overlap", false}}}}},
      {"pipeline.micro_batches", {{"pipeline", {{"micro_batches", 2}}}}},
      {"decode.experts", {{"decode", {{"experts", "tp2"}}}}},
      {"decode.transition", {{"decode", {{"experts", "tp2"}, {"transition", "int4"}}}}},
      {"pipeline.order", {{"pipeline", {{"order", "aass"}}}}},
      {"strategy", {{"strategy", "pppipe"}}},
      {"sequences", {{"sequences", 64}}},
      {"spilled_kv.blocks_in_memory", {{"spilled_kv", {{"blocks_in_memory", 40}}}}},
      {"spilled_kv.buffers", {{"spilled_kv", {{"buffers", 3}}}}},
      {"spilled_kv.buffer_blocks", {{"spilled_kv", {{"buffer_blocks", 16}}}}}};
  const json spilled = {
      {"layout", "attention=dp1,experts=ep1"},
      {"pipeline", nullptr},
      {"experts_in_memory", 4},
      {"sequences", 32},
      {"spilled_kv", {{"blocks_in_memory", 20}, {"buffers", 2}, {"buffer_blocks", 8}}}};
  const json apart = {{"layout", "attention=dp1,experts=ep1,disaggregate"},
                      {"pipeline", {{"chunks", 1}, {"cut", "tokens"}, {"micro_batches", 2}}},
                      {"strategy", "fine"}};
  // Fields that mean nothing without another one are compared with plans that have that.
  const std::map<std::string, json> givens = {
      {"decode.transition", {{"decode", {{"experts", "tp2"}}}}},
      {"pipeline.order", apart},
      {"strategy", apart},
      {"sequences", spilled},
      {"spilled_kv.blocks_in_memory", spilled},
      {"spilled_kv.buffers", spilled},
      {"spilled_kv.buffer_blocks", spilled}};
  // What is no part of a step's tasks, and the test that sees it act.
  const std::map<std::string, std::string> elsewhere = {
      {"version", "PlanTest: another one is refused"},
      {"made_for.model", "PlanTest.PlansForOtherModelsOrRanksAreRefused"},
      {"made_for.ranks", "PlanTest.PlansForOtherModelsOrRanksAreRefused"},
      {"pipeline.from_tokens", "RankOptions.StepsOfFewTokensAreNotCutWhereAPlanSaysSo"},
      {"pipeline.cuts", "strategy's expert_cuts_test: which experts a chunk has"},
      {"wire", "golden_ranks_wire_test: bytes that are sent"},
      {"gemm", "ForwardContextTest.ExpertsAreOneAfterTheOtherFromSoManyRowsEachOn"},
      {"step_tokens", "LoadedModel.APlanSaysHowManyTokensAStepHas"},
      {"comm_budget", "ForwardContextTest.ProductsLeaveThreadsToExchangesThatAreUnderWay"},
      {"host_threads", "LoadedModel.ThreadsOfTheHostLaneAreTakenFromThoseThatCompute"},
      {"experts_in_memory", "LoadedModel.APlanSaysHowManyExpertsStayInMemory"},
      {"weights", "tests/ranks/commands_test.sh: what a plan says of weights and threads"},
      {"threads", "tests/ranks/commands_test.sh: what a plan says of weights and threads"},
      {"lines", "StepTurns, and tests/ranks/disaggregated_test.sh: a plan whose steps are solved"},
      {"decode.keep", "LoadedModel.RanksReserveBothDivisionsOfTheExperts"},
      {"decode.epoch_steps", "phase_order_test"},
      {"decode.prompts", "phase_order_test"}};
  for (const std::string& field : FieldsOfPlans()) {
    SCOPED_TRACE(field);
    if (elsewhere.contains(field)) continue;
    const auto change = changes.find(field);
    if (change == changes.end()) {
      ADD_FAILURE() << "a field of plans without a case: say what executing it changes";
      continue;
    }
    const auto given = givens.find(field);
    const std::string before = ScheduleOf(given == givens.end() ? base : With(base, given->second));
    const json changed =
        With(given == givens.end() ? base : With(base, given->second), change->second);
    EXPECT_TRUE(ScheduleOf(changed) != before) << "it changes nothing";
  }
}

}  // namespace
}  // namespace convene::planner
