#include "plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/enumerators_test.h"

namespace convene::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Complaint(const char* text) {
  const Result<Plan> plan = PlanFromJson(nlohmann::json::parse(text));
  return plan ? "" : plan.error().message;
}

TEST(Plan, WithoutFieldsIsTheDefault) {
  const Result<Plan> plan = PlanFromJson(nlohmann::json{{"version", 1}});
  ASSERT_TRUE(plan);
  EXPECT_EQ(*plan, Plan());
  EXPECT_EQ(plan->layout.num_ranks(), 1);
  EXPECT_EQ(plan->pipeline.chunks, 1);
  EXPECT_FALSE(plan->auto_pipeline);
  EXPECT_EQ(plan->wire, Wire::kAuto);
  EXPECT_EQ(plan->gemm, GemmChoice::kAuto);
  EXPECT_EQ(plan->comm_budget, 0);
}

TEST(Plan, WithoutALayoutHasTheOneOfTheRanksThatRunIt) {
  const auto read = [](const char* text) {
    return PlanFromJson(nlohmann::json::parse(text), DefaultLayout(2));
  };
  EXPECT_EQ(read(R"({"version": 1, "wire": "f32"})")->layout, DefaultLayout(2));
  EXPECT_EQ(read(R"({"version": 1, "layout": "attention=dp4,experts=ep4"})")->layout,
            DefaultLayout(4));
  const Result<Plan> decode = read(R"({"version": 1, "decode": {"experts": "tp2"}})");
  ASSERT_TRUE(decode) << decode.error().message;
  EXPECT_EQ(decode->decode->expert_tp, 2);
}

TEST(Plan, WithoutALayoutHasTheOneOfTheRanksThatItWasMadeFor) {
  const char* text = R"({"version": 1, "made_for": {"model": "0123456789abcdef", "ranks": 4},)"
                     R"( "decode": {"experts": "tp4"}})";
  for (const int num_started : {1, 2, 8}) {
    const Result<Plan> plan = PlanFromJson(nlohmann::json::parse(text), DefaultLayout(num_started));
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->layout, DefaultLayout(4));
    EXPECT_EQ(plan->decode->expert_tp, 4);
  }
}

TEST(Plan, SaysWhereChunksOfExpertsEnd) {
  const auto read = [](const std::string& pipeline) {
    return PlanFromJson(nlohmann::json::parse(R"({"version": 1, "pipeline": {)" + pipeline + "}}"));
  };
  const Result<Plan> plan = read(R"("chunks": 3, "cut": "experts", "cuts": [0.125, 0.5])");
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->pipeline.cuts, (std::vector<double>{0.125, 0.5}));
  const Result<Plan> again = PlanFromJson(nlohmann::json::parse(ToJson(*plan).dump()));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(*again, *plan);
  const auto complaint = [&](const std::string& pipeline) {
    const Result<Plan> refused = read(pipeline);
    return refused ? "nothing" : refused.error().message;
  };
  EXPECT_THAT(complaint(R"("chunks": 3, "cuts": [0.1, 0.5])"), HasSubstr("\"cut\": \"experts\""));
  EXPECT_THAT(complaint(R"("chunks": 3, "cut": "experts", "cuts": [0.1])"),
              StartsWith("1 cuts for 3 chunks"));
  for (const char* cuts : {"[0.5, 0.5]", "[0, 0.5]", "[0.5, 1]", "[0.6, 0.2]"}) {
    EXPECT_THAT(complaint(std::string(R"("chunks": 3, "cut": "experts", "cuts": )") + cuts),
                HasSubstr("is out of place"));
  }
  EXPECT_THAT(complaint(R"("chunks": 3, "cut": "experts", "cuts": ["a", "b"])"),
              HasSubstr("cuts (a list of numbers)"));
}

TEST(Plan, IsReadAsItIsWritten) {
  for (const Wire wire : kEvery<Wire>) {
    for (const GemmChoice gemm : kEvery<GemmChoice>) {
      for (const auto cut : kEvery<strategy::ChunkCut>) {
        for (const bool is_auto : {false, true}) {
          Plan plan;
          plan.layout = strategy::Layout{
              .attention_tp = 2, .attention_dp = 3, .expert_ep = 6, .expert_tp = 1};
          plan.pipeline = {
              .chunks = is_auto ? 1 : 4, .cut = cut, .overlap = is_auto || wire != Wire::kF32};
          plan.auto_pipeline = is_auto;
          plan.wire = wire;
          plan.gemm = gemm;
          plan.comm_budget = kMostCommBudget;
          plan.host_threads = is_auto ? 0 : 3;
          const std::string text = ToJson(plan).dump();
          const Result<Plan> read = PlanFromJson(nlohmann::json::parse(text));
          ASSERT_TRUE(read) << text << ": " << read.error().message;
          EXPECT_EQ(*read, plan) << text;
          EXPECT_EQ(ToJson(*read).dump(), text);
        }
      }
    }
  }
}

TEST(Plan, SaysWhatOfKeysAndValuesLiesOnADisk) {
  Plan plan;
  plan.experts_in_memory = 448;
  plan.sequences = 256;
  plan.spilled_kv = SpilledKv{.blocks_in_memory = 100, .buffers = 9, .buffer_blocks = 64};
  const nlohmann::ordered_json json = ToJson(plan);
  EXPECT_EQ(json["spilled_kv"].dump(),
            R"({"blocks_in_memory":100,"buffers":9,"buffer_blocks":64})");
  const Result<Plan> read = PlanFromJson(nlohmann::json::parse(json.dump()));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, plan);
}

TEST(Plan, SaysTheFormatOfTheKvCacheWhereItIsNotLeftOpen) {
  for (const char* format : {"bf16", "int8"}) {
    Plan plan;
    plan.kv_cache = format;
    const nlohmann::ordered_json json = ToJson(plan);
    EXPECT_EQ(json["kv_cache"], format);
    const Result<Plan> read = PlanFromJson(nlohmann::json::parse(json.dump()));
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, plan);
  }
  EXPECT_FALSE(ToJson(Plan()).contains("kv_cache"));
  EXPECT_EQ(Complaint(R"({"version": 1, "kv_cache": "int4"})"),
            "kv_cache is bf16 or int8, not \"int4\"");
}

TEST(Plan, IsWrittenForPeople) {
  EXPECT_EQ(ToJson(Plan()).dump(),
            R"({"version":1,"layout":"attention=tp1,experts=ep1",)"
            R"("pipeline":{"chunks":1,"cut":"tokens","overlap":true,"micro_batches":1},)"
            R"("wire":"auto","gemm":"auto","comm_budget":0,"host_threads":0})");
}

TEST(Plan, RefusalsSayWhatIsWrong) {
  for (const char* text : {"[]", "{}", "1", "null", R"("plan")", R"({"layout": ""})"}) {
    EXPECT_EQ(Complaint(text), "not a plan: it has no version") << text;
  }
  for (const char* version : {"0", "2", "\"1\"", "null", "1.5", "true"}) {
    EXPECT_EQ(Complaint(fmt::format(R"({{"version": {}}})", version).c_str()),
              fmt::format("a plan of version {}; this program reads version 1", version));
  }
  EXPECT_THAT(Complaint(R"({"version": 1, "wires": "f32"})"),
              StartsWith("\"wires\" is not known; there are layout, "));
  EXPECT_THAT(Complaint(R"({"version": 1, "wire": 32})"),
              StartsWith("\"wire\" is not known or of the wrong kind; there are layout, "));
  EXPECT_THAT(Complaint(R"({"version": 1, "threads": "2"})"),
              StartsWith("\"threads\" is of the wrong kind; there are layout, "));
  EXPECT_EQ(Complaint(R"({"version": 1, "wire": "fp16"})"),
            "the wire format is auto, f32, bf16, fp8 or fp8-both, not \"fp16\"");
  EXPECT_EQ(Complaint(R"({"version": 1, "gemm": "sparse"})"),
            "gemm is auto, grouped or dense, not \"sparse\"");
  EXPECT_EQ(Complaint(R"({"version": 1, "comm_budget": 1025})"),
            "comm_budget of 1025 threads is out of range; it must be 0 to 1024");
  EXPECT_EQ(Complaint(R"({"version": 1, "comm_budget": 18446744073709551615})"),
            "comm_budget of 18446744073709551615 threads is out of range; it must be 0 to 1024");
  EXPECT_EQ(Complaint(R"({"version": 1, "experts_in_memory": 0})"),
            "experts_in_memory of 0 is out of range; it must be 1 to 16777216");
  EXPECT_THAT(Complaint(R"({"version": 1, "layout": "attention=dp2,experts=ep2",)"
                        R"( "decode": {"experts": "tp2"}, "experts_in_memory": 8})"),
              StartsWith("experts_in_memory: experts are read from a disk where each rank has"));
  EXPECT_EQ(Complaint(R"({"version": 1, "layout": "attention=tp2,experts=tp2",)"
                      R"( "experts_in_memory": 8})"),
            "");
  const auto spilled = [](const char* before, const char* members) {
    return Complaint(
        fmt::format(R"({{"version": 1{}, "spilled_kv": {}}})", before, members).c_str());
  };
  const char* all = R"({"blocks_in_memory": 0, "buffers": 2, "buffer_blocks": 16})";
  EXPECT_THAT(spilled("", all), StartsWith("spilled_kv: keys and values lie on a disk where one"));
  EXPECT_THAT(
      spilled(R"(, "layout": "attention=dp2,experts=ep2", "experts_in_memory": 8)", all),
      StartsWith("spilled_kv: keys and values lie on a disk where one rank reads its experts"));
  EXPECT_THAT(spilled("", "8"), StartsWith("spilled_kv is not an object with blocks_in_memory, "));
  EXPECT_THAT(spilled("", R"({"blocks_in_memory": 0, "buffers": 2})"),
              StartsWith("spilled_kv has no buffer_blocks, or it is no whole number; "));
  EXPECT_EQ(spilled("", R"({"blocks_in_memory": -1})"),
            "spilled_kv.blocks_in_memory of -1 is out of range; it must be 0 to 16777216");
  EXPECT_EQ(spilled(R"(, "experts_in_memory": 8)", all),
            "spilled_kv is of a number of sequences that run together: give \"sequences\", too");
  EXPECT_THAT(spilled("", R"({"blocks_in_memory": 0, "buffers": 2,)"
                          R"( "buffer_blocks": 16, "share": 1})"),
              StartsWith("spilled_kv.\"share\" is not known; there are blocks_in_memory, "));
  EXPECT_THAT(Complaint(R"({"version": 1, "layout": "attention=dp2,experts=ep2",)"
                        R"( "made_for": {"model": "0123456789abcdef", "ranks": 1}})"),
              StartsWith("made_for says 1 rank, and the layout attention=dp2,experts=ep2 is of 2"));
  EXPECT_EQ(Complaint(R"({"version": 1, "host_threads": -1})"),
            "host_threads of -1 threads is out of range; it must be 0 to 1024");
  EXPECT_THAT(Complaint(R"({"version": 1, "pipeline": {"chunks": 0}})"),
              StartsWith("a pipeline of 0 chunks is out of range; it must be 1 to "));
  EXPECT_THAT(Complaint(R"({"version": 1, "pipeline": {"chunks": 18446744073709551615}})"),
              StartsWith("a pipeline of 18446744073709551615 chunks is out of range"));
  EXPECT_THAT(Complaint(R"({"version": 1, "pipeline": {"micro_batches": 9223372036854775808}})"),
              StartsWith("9223372036854775808 micro-batches are out of range"));
  EXPECT_EQ(Complaint(R"({"version": 1, "pipeline": {"cut": "rows"}})"),
            "chunks are cut by tokens or by experts, not by \"rows\"");
  EXPECT_THAT(
      Complaint(R"({"version": 1, "pipeline": {"depth": 2}})"),
      StartsWith("pipeline.\"depth\" is not known or of the wrong kind; there are chunks "));
  EXPECT_EQ(Complaint(R"({"version": 1, "pipeline": 4})"), "pipeline is not an object");
  EXPECT_THAT(Complaint(R"({"version": 1, "layout": "attention=dp2,experts=ep3"})"),
              HasSubstr("both must have all of them"));
}

TEST(Plan, OfAFileNamesItInErrors) {
  const Result<Plan> missing = ReadPlan("/no/such/plan");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().kind, ErrorKind::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr("/no/such/plan"));
  const Result<Plan> empty = ReadPlan("/dev/null");
  ASSERT_FALSE(empty);
  EXPECT_THAT(empty.error().message, StartsWith("/dev/null: "));
}

TEST(ParsePipeline, TakesANumberOrAutoAndWhatIsCut) {
  Plan plan;
  ASSERT_TRUE(ParsePipeline("4:experts", &plan));
  EXPECT_EQ(plan.pipeline.chunks, 4);
  EXPECT_EQ(plan.pipeline.cut, strategy::ChunkCut::kExperts);
  EXPECT_FALSE(plan.auto_pipeline);
  ASSERT_TRUE(ParsePipeline("auto:tokens", &plan));
  EXPECT_TRUE(plan.auto_pipeline);
  EXPECT_EQ(plan.pipeline.cut, strategy::ChunkCut::kTokens);
  ASSERT_TRUE(ParsePipeline("2", &plan));
  EXPECT_FALSE(plan.auto_pipeline);
  EXPECT_EQ(plan.pipeline.chunks, 2);
}

TEST(Layout, DefaultDividesSequencesAndExperts) {
  for (const int num_ranks : {1, 2, 3, 8}) {
    const strategy::Layout layout = DefaultLayout(num_ranks);
    EXPECT_EQ(layout, (strategy::Layout{.attention_dp = num_ranks, .expert_ep = num_ranks}));
    EXPECT_TRUE(CheckRanks(layout, num_ranks));
  }
}

TEST(Layout, MustHaveAllRanks) {
  for (const int num_ranks : {1, 3, 4}) {
    const Status fits = CheckRanks(DefaultLayout(2), num_ranks);
    ASSERT_FALSE(fits) << num_ranks;
    EXPECT_NE(fits.error().message, "");
  }
}

TEST(Plan, RefusesByNameWhatCannotBeExecutedYet) {
  EXPECT_THAT(Complaint(R"({"version": 1, "strategy": "offload_pipeline"})"),
              AllOf(HasSubstr("offload_pipeline"), HasSubstr("not be executed yet")));
}

TEST(Plan, DividesTheExpertsOtherwiseInDecode) {
  const auto plan_with = [](const char* layout, const nlohmann::json& decode) {
    return PlanFromJson({{"version", 1}, {"layout", layout}, {"decode", decode}});
  };
  for (const char* experts : {"ep2tp2", "ep3:1:1:2", "tp4"}) {
    const Result<Plan> plan = plan_with("attention=tp2dp2,experts=ep4", {{"experts", experts}});
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    EXPECT_EQ(plan->layout, *ParseLayout("attention=tp2dp2,experts=ep4"));
    EXPECT_EQ(*plan->decode, *ParseLayout(fmt::format("attention=tp2dp2,experts={}", experts)));
    EXPECT_EQ(
        ToJson(*plan)["decode"].dump(),
        fmt::format(
            R"({{"experts":"{}","keep":"one","transition":"reshard","epoch_steps":0,"prompts":"wait"}})",
            experts));
    EXPECT_TRUE(plan->changes_layout());
    EXPECT_EQ(*PlanFromJson(ToJson(*plan)), *plan);
  }
  EXPECT_EQ(plan_with("attention=dp2,experts=ep2", {{"experts", "ep4"}}).error().message,
            "decode: \"attention=dp2,experts=ep4\" gives attention 2 ranks and the experts 4; both "
            "must have all of them");
  for (const char* more : {"ep2,attention=tp2", "tp2,disaggregate", "tp2,head=tp7"}) {
    EXPECT_THAT(plan_with("attention=dp2,experts=ep2", {{"experts", more}}).error().message,
                StartsWith("decode.experts: "));
  }
  for (const nlohmann::json& wrong : {nlohmann::json("tp2"), nlohmann::json::object(),
                                      nlohmann::json{{"experts", 2}}, nlohmann::json()}) {
    EXPECT_THAT(plan_with("attention=dp2,experts=ep2", wrong).error().message,
                StartsWith("decode is not an object with experts"))
        << wrong.dump();
  }
  for (const char* experts : {"tp2", "ep3:1", "ep2tp2", "slice4"}) {
    EXPECT_TRUE(CheckExperts(experts)) << experts;
  }
  for (const char* experts : {"", "2", "dp2", "tp2,", "tp2tp2", "experts=tp2"}) {
    EXPECT_FALSE(CheckExperts(experts)) << experts;
  }
  const Result<Plan> all =
      plan_with("attention=dp2,experts=ep2",
                {{"experts", "tp2"}, {"keep", "both"}, {"epoch_steps", 64}, {"prompts", "join"}});
  ASSERT_TRUE(all.ok()) << all.error().message;
  EXPECT_EQ(all->phase_change,
            (PhaseChange{.keeps_both = true, .epoch_steps = 64, .prompts_join = true}));
  EXPECT_EQ(*PlanFromJson(ToJson(*all)), *all);
  EXPECT_FALSE(plan_with("attention=dp2,experts=ep2", {{"experts", "ep2"}})->changes_layout());
  EXPECT_FALSE(all->loads_experts());
  const Result<Plan> loads =
      plan_with("attention=dp2,experts=ep2", {{"experts", "tp2"}, {"transition", "int4"}});
  ASSERT_TRUE(loads.ok()) << loads.error().message;
  EXPECT_EQ(loads->phase_change, (PhaseChange{.transition = Transition::kInt4}));
  EXPECT_TRUE(loads->loads_experts());
  EXPECT_EQ(*PlanFromJson(ToJson(*loads)), *loads);
  EXPECT_FALSE(plan_with("attention=dp2,experts=ep2", {{"experts", "ep2"}, {"transition", "int4"}})
                   ->loads_experts());
  EXPECT_EQ(plan_with("attention=dp2,experts=ep2", {{"experts", "tp2"}, {"transition", "int8"}})
                .error()
                .message,
            "decode.transition: the transition is reshard or int4, not \"int8\"");
  EXPECT_THAT(plan_with("attention=dp2,experts=ep2",
                        {{"experts", "tp2"}, {"transition", "int4"}, {"keep", "both"}})
                  .error()
                  .message,
              HasSubstr("leave the transition int4 out, or keep one"));
  const std::vector<std::pair<std::string, nlohmann::json>> others = {
      {"attention", "dp2"}, {"keep", "none"},         {"keep", 1},          {"epoch_steps", -1},
      {"transition", 4},    {"epoch_steps", 1 << 21}, {"epoch_steps", "8"}, {"prompts", "hurry"}};
  for (const auto& [key, value] : others) {
    EXPECT_THAT(
        plan_with("attention=dp2,experts=ep2", {{"experts", "tp2"}, {key, value}}).error().message,
        StartsWith("decode.\"" + key + "\" is not known or out of range"));
  }
}

TEST(Plan, HasMicroBatchesThatMayOverlap) {
  const Result<Plan> plan =
      PlanFromJson({{"version", 1}, {"pipeline", {{"micro_batches", 3}, {"chunks", 2}}}});
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->pipeline.micro_batches, 3);
  EXPECT_EQ(*PlanFromJson(ToJson(*plan)), *plan);
  for (const int micro_batches : {0, -1, 65}) {
    EXPECT_FALSE(
        PlanFromJson({{"version", 1}, {"pipeline", {{"micro_batches", micro_batches}}}}).ok());
  }
  const Result<Plan> alone =
      PlanFromJson({{"version", 1}, {"pipeline", {{"micro_batches", 2}, {"overlap", false}}}});
  ASSERT_FALSE(alone.ok());
  EXPECT_NE(alone.error().message.find("without overlap"), std::string::npos);
}

TEST(Plan, ChoosesNoChunksWithoutOverlap) {
  EXPECT_THAT(Complaint(R"({"version": 1, "pipeline": {"chunks": "auto", "overlap": false}})"),
              AllOf(HasSubstr("--no-overlap"), HasSubstr("--pipeline 1")));
}

TEST(Plan, SaysFromHowManyTokensOnStepsAreCut) {
  const Result<Plan> plan =
      PlanFromJson({{"version", 1}, {"pipeline", {{"micro_batches", 3}, {"from_tokens", 64}}}});
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->cut_from_tokens, 64);
  EXPECT_EQ(*PlanFromJson(ToJson(*plan)), *plan);
  for (const int tokens : {-1, kMostCutFromTokens + 1}) {
    EXPECT_FALSE(PlanFromJson({{"version", 1}, {"pipeline", {{"from_tokens", tokens}}}}).ok());
  }
  for (const nlohmann::json& other :
       {nlohmann::json("64"), nlohmann::json(true), nlohmann::json(64.9), nlohmann::json()}) {
    EXPECT_FALSE(PlanFromJson({{"version", 1}, {"pipeline", {{"from_tokens", other}}}}).ok());
  }
  for (const char* text : {R"({"version": 1, "pipeline": {"chunks": "auto", "from_tokens": 64}})",
                           R"({"version": 1, "layout": "attention=dp1,experts=ep2,disaggregate",
            "pipeline": {"micro_batches": 2, "from_tokens": 64}})"}) {
    const Result<Plan> refused = PlanFromJson(nlohmann::json::parse(text));
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_NE(refused.error().message.find("leave from_tokens out"), std::string::npos);
  }
}

TEST(Plan, SaysHowManySequencesRunTogether) {
  const Result<Plan> plan = PlanFromJson({{"version", 1}, {"sequences", 64}});
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->sequences, 64);
  EXPECT_EQ(*PlanFromJson(ToJson(*plan)), *plan);
  EXPECT_FALSE(ToJson(Plan{}).contains("sequences"));
  for (const int sequences : {0, -1, kMostSequences + 1}) {
    EXPECT_FALSE(PlanFromJson({{"version", 1}, {"sequences", sequences}}).ok());
  }
}

TEST(Plan, SaysHowManyTokensAStepHas) {
  const Result<Plan> plan = PlanFromJson({{"version", 1}, {"step_tokens", 2048}});
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->step_tokens_or(512), 2048);
  EXPECT_EQ(*PlanFromJson(ToJson(*plan)), *plan);
  EXPECT_EQ(Plan{}.step_tokens_or(512), 512);
  EXPECT_FALSE(ToJson(Plan{}).contains("step_tokens"));
  for (const int tokens : {0, -1, kMostStepTokens + 1}) {
    const Result<Plan> refused = PlanFromJson({{"version", 1}, {"step_tokens", tokens}});
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("must be 1 to"), std::string::npos);
  }
  EXPECT_FALSE(PlanFromJson({{"version", 1}, {"step_tokens", "many"}}).ok());
}

nlohmann::json Disaggregated(const nlohmann::json& more = nlohmann::json::object()) {
  nlohmann::json plan = {{"version", 1}, {"layout", "attention=dp1,experts=ep2,disaggregate"}};
  plan.update(more);
  return plan;
}

TEST(Plan, SaysHowRanksWithAttentionAndRanksWithExpertsTakeTurns) {
  using strategy::AttentionOrder;
  // Without a strategy: fine, whose numbers are 1.
  const Result<Plan> fine = PlanFromJson(Disaggregated());
  ASSERT_TRUE(fine.ok()) << fine.error().message;
  EXPECT_EQ(StrategyOf(fine->pipeline), DisaggregatedStrategy::kFine);
  EXPECT_EQ(fine->pipeline, strategy::Pipeline{});
  EXPECT_EQ(ToJson(*fine)["strategy"], "fine");
  EXPECT_EQ(ToJson(*fine)["pipeline"]["order"], "asas");
  const nlohmann::json plans[] = {
      {{"strategy", "naive"}},
      {{"strategy", "pppipe"}, {"pipeline", {{"micro_batches", 3}}}},
      {{"strategy", "fine"},
       {"pipeline", {{"micro_batches", 3}, {"chunks", 4}, {"order", "aass"}}}}};
  for (const nlohmann::json& more : plans) {
    const Result<Plan> plan = PlanFromJson(Disaggregated(more));
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    EXPECT_EQ(Name(StrategyOf(plan->pipeline)), more["strategy"].get<std::string>());
    EXPECT_EQ(plan->pipeline.dispatch_after_shared, more["strategy"] != "fine");
    EXPECT_EQ(*PlanFromJson(ToJson(*plan)), *plan);
  }
  // A layout without roles of two kinds has neither member.
  const nlohmann::ordered_json usual = ToJson(*PlanFromJson({{"version", 1}}));
  EXPECT_FALSE(usual.contains("strategy"));
  EXPECT_FALSE(usual["pipeline"].contains("order"));
}

TEST(Plan, RefusesWhatRanksWithExpertsAloneDoNotHave) {
  const auto complaint = [](const nlohmann::json& more) {
    const Result<Plan> plan = PlanFromJson(Disaggregated(more));
    return plan.ok() ? "" : plan.error().message;
  };
  const std::pair<nlohmann::json, const char*> cases[] = {
      {{{"strategy", "guess"}}, "the strategy is naive, pppipe or fine, not \"guess\""},
      {{{"strategy", "disaggregated_experts"}}, "not \"disaggregated_experts\""},
      {{{"strategy", 1}}, "strategy is not a text"},
      {{{"pipeline", {{"order", "sasa"}}}}, "asas or aass, not \"sasa\""},
      {{{"strategy", "naive"}, {"pipeline", {{"micro_batches", 2}}}}, "one micro-batch, not 2"},
      {{{"strategy", "naive"}, {"pipeline", {{"chunks", 2}}}}, "naive has one chunk, not 2"},
      {{{"strategy", "pppipe"}, {"pipeline", {{"chunks", 2}}}}, "pppipe has one chunk, not 2"},
      {{{"strategy", "pppipe"}, {"pipeline", {{"order", "aass"}}}}, "no order aass"},
      {{{"pipeline", {{"chunks", "auto"}}}}, "not chosen automatically"},
      {{{"pipeline", {{"chunks", 3}, {"cut", "experts"}}}}, "use --pipeline 3:tokens"},
      {{{"pipeline", {{"cut", "experts"}}}}, "use --pipeline 1:tokens"},
      {{{"pipeline", {{"overlap", false}}}}, "--no-overlap is of layouts without"},
      {{{"decode", {{"experts", "tp2"}}}}, "the same ones in decode"},
  };
  for (const auto& [more, message] : cases) {
    EXPECT_THAT(complaint(more), HasSubstr(message)) << more.dump();
  }
  // And what only they have, without them.
  EXPECT_THAT(Complaint(R"({"version": 1, "strategy": "fine"})"),
              HasSubstr("such as attention=dp1,experts=ep2,disaggregate"));
  EXPECT_THAT(Complaint(R"({"version": 1, "pipeline": {"order": "aass"}})"),
              HasSubstr("add --disaggregate"));
}

}  // namespace
}  // namespace convene::plan
