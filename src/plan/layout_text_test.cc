#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "plan/plan.h"

namespace convene::plan {
namespace {

using ::testing::HasSubstr;

std::string ComplaintOf(std::string_view text) {
  const Result<strategy::Layout> layout = ParseLayout(text);
  return layout ? "" : layout.error().message;
}

TEST(LayoutText, IsReadAsItIsWritten) {
  for (const char* text : {"attention=tp1,experts=ep1", "attention=dp4,experts=ep4",
                           "attention=tp2dp2,experts=ep2tp2", "attention=tp6,experts=tp6"}) {
    const Result<strategy::Layout> layout = ParseLayout(text);
    ASSERT_TRUE(layout) << text;
    EXPECT_EQ(ToText(*layout), text);
  }
  EXPECT_EQ(ToText(*ParseLayout("experts=slice2,attention=tp2")), "attention=tp2,experts=tp2");
}

TEST(LayoutText, SharesOfExpertsMayHaveWeights) {
  for (const char* text : {"attention=dp2,experts=ep3:1", "attention=dp3,experts=ep2:1:1",
                           "attention=tp2dp2,experts=ep1:4tp2"}) {
    const Result<strategy::Layout> layout = ParseLayout(text);
    ASSERT_TRUE(layout) << text;
    EXPECT_EQ(ToText(*layout), text);
  }
  const strategy::Layout layout = *ParseLayout("attention=dp3,experts=ep2:1:1");
  EXPECT_EQ(layout.expert_ep, 3);
  EXPECT_EQ(layout.expert_weights, (std::vector<int>{2, 1, 1}));
}

TEST(LayoutText, ComplaintsOfWeightsSayHowTheyAreWritten) {
  for (const char* text : {"attention=dp2,experts=ep0:1", "attention=dp2,experts=ep3:-1",
                           "attention=dp2,experts=ep3:", "attention=dp2,experts=ep:1",
                           "attention=dp2,experts=ep3:4097", "attention=dp2,experts=ep3::1",
                           "attention=dp2,experts=tp3:1"}) {
    EXPECT_THAT(ComplaintOf(text), HasSubstr("weights (1 to 4096)")) << text;
    EXPECT_THAT(ComplaintOf(text), HasSubstr("experts=ep3:1")) << text;
  }
  EXPECT_NE(ComplaintOf("attention=dp3:1,experts=ep2"), "");
  EXPECT_THAT(ComplaintOf("attention=dp2,experts=ep3:1:1"),
              HasSubstr("attention 2 ranks and the experts 3"));
}

TEST(LayoutText, TheHeadMayBeDivided) {
  for (const char* text :
       {"attention=tp2,experts=tp2,head=tp2", "attention=dp3,experts=ep3,head=tp3"}) {
    const Result<strategy::Layout> layout = ParseLayout(text);
    ASSERT_TRUE(layout) << text;
    EXPECT_TRUE(layout->divides_head);
    EXPECT_EQ(ToText(*layout), text);
  }
  EXPECT_EQ(*ParseLayout("head=tp2,experts=ep2,attention=dp2"),
            *ParseLayout("attention=dp2,experts=ep2,head=tp2"));
  EXPECT_FALSE(ParseLayout("attention=dp2,experts=ep2,head=tp1")->divides_head);
  EXPECT_THAT(ComplaintOf("attention=dp4,experts=ep4,head=tp2"), HasSubstr("all 4 ranks have one"));
  EXPECT_THAT(ComplaintOf("attention=dp1,experts=ep2,head=tp3,disaggregate"),
              HasSubstr("leave head= out"));
  EXPECT_THAT(ComplaintOf("attention=dp2,experts=ep2,head=dp2"), HasSubstr("is no layout"));
  EXPECT_THAT(ComplaintOf("attention=dp2,experts=ep2,head=tp2,head=tp2"),
              HasSubstr("gives the head twice"));
  Plan plan{.layout = *ParseLayout("attention=dp2,experts=ep2,head=tp2")};
  ASSERT_TRUE(ParseDecodeExperts("tp2", &plan));
  EXPECT_TRUE(plan.decode->divides_head);
  // What is written of decode is the experts' division, and not what stands behind it.
  Plan wide{.layout = *ParseLayout("attention=tp4,experts=tp4,head=tp4")};
  ASSERT_TRUE(ParseDecodeExperts("ep2tp2", &wide));
  EXPECT_EQ(ExpertsText(*wide.decode), "ep2tp2");
  const Result<Plan> again = PlanFromJson(ToJson(wide));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->decode, wide.decode);
  plan.decode.reset();
  plan.experts_in_memory = 3;
  const Result<Plan> read = PlanFromJson(ToJson(plan));
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message, HasSubstr("leave head=, shared= and dense= out"));
}

TEST(LayoutText, SharedExpertsMayBeDivided) {
  for (const char* text :
       {"attention=dp2,experts=tp2,shared=tp2", "attention=tp2,experts=tp2,shared=tp2,head=tp2"}) {
    const Result<strategy::Layout> layout = ParseLayout(text);
    ASSERT_TRUE(layout) << text;
    EXPECT_TRUE(layout->divides_shared);
    EXPECT_EQ(ToText(*layout), text);
  }
  for (const char* text :
       {"attention=dp2,experts=ep2,shared=tp2", "attention=dp4,experts=ep2tp2,shared=tp2",
        "attention=dp2,experts=tp2,shared=tp4"}) {
    EXPECT_THAT(ComplaintOf(text), HasSubstr("or leave shared= out")) << text;
  }
  Plan plan{.layout = *ParseLayout("attention=tp2,experts=tp2,shared=tp2")};
  plan.pipeline.chunks = 2;
  const Result<Plan> read = PlanFromJson(ToJson(plan));
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message, HasSubstr("slices of shared experts"));
}

TEST(LayoutText, DenseBlocksMayBeDividedAsHeadsAre) {
  for (const char* text :
       {"attention=tp2,experts=ep2,dense=tp2", "attention=tp2dp2,experts=tp4,dense=tp2,head=tp4",
        "attention=tp2,experts=tp2,shared=tp2,dense=tp2,head=tp2",
        "attention=tp2,experts=ep3,dense=tp2,disaggregate"}) {
    const Result<strategy::Layout> layout = ParseLayout(text);
    ASSERT_TRUE(layout) << text;
    EXPECT_TRUE(layout->divides_dense);
    EXPECT_EQ(ToText(*layout), text);
  }
  EXPECT_FALSE(ParseLayout("attention=dp2,experts=ep2,dense=tp1")->divides_dense);
  for (const char* text :
       {"attention=dp2,experts=ep2,dense=tp2", "attention=tp2dp2,experts=ep4,dense=tp4"}) {
    EXPECT_THAT(ComplaintOf(text), HasSubstr("or leave dense= out")) << text;
  }
  Plan plan{.layout = *ParseLayout("attention=tp4,experts=tp4,dense=tp4")};
  ASSERT_TRUE(ParseDecodeExperts("ep4", &plan));
  EXPECT_TRUE(plan.decode->divides_dense);
  const Result<Plan> again = PlanFromJson(ToJson(plan));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->layout, plan.layout);
  EXPECT_EQ(again->decode, plan.decode);
}

TEST(LayoutText, LayersMayBeOnDifferentRanks) {
  for (const char* text : {"layers=pp2", "layers=pp3:1:2"}) {
    const Result<strategy::Layout> layout = ParseLayout(text);
    ASSERT_TRUE(layout) << text;
    EXPECT_EQ(ToText(*layout), text);
  }
  EXPECT_EQ(ParseLayout("layers=pp3:1")->stages, 2);
  EXPECT_EQ(*ParseLayout("layers=pp1"), strategy::Layout());
  EXPECT_THAT(ComplaintOf("layers=pp2,experts=ep2"), HasSubstr("nothing stands beside"));
  EXPECT_THAT(ComplaintOf("attention=dp2,layers=pp2"), HasSubstr("is no layout"));
  for (const char* text : {"layers=", "layers=pp0", "layers=tp2", "layers=pp2x"}) {
    EXPECT_THAT(ComplaintOf(text), HasSubstr("layers=pp2")) << text;
  }
  Plan plan{.layout = {.stages = 2}};
  plan.pipeline.micro_batches = 4;
  const auto complaint = [&] {
    const Result<Plan> read = PlanFromJson(ToJson(plan));
    return read ? std::string() : read.error().message;
  };
  EXPECT_EQ(complaint(), "");
  plan.wire = Wire::kBf16;
  EXPECT_THAT(complaint(), HasSubstr("never rounded (bf16): use --wire f32"));
  plan.wire = Wire::kF32;
  plan.pipeline.chunks = 2;
  EXPECT_THAT(complaint(),
              HasSubstr("give --pipeline 1 (chunks of the plan's pipeline), and --micro-batches"));
  plan.pipeline.chunks = 1;
  plan.experts_in_memory = 3;
  EXPECT_THAT(complaint(), HasSubstr("experts of all layers"));
  plan.experts_in_memory.reset();
  EXPECT_THAT(ParseDecodeExperts("ep2", &plan).error().message,
              HasSubstr("have all experts of these in decode"));
}

TEST(LayoutText, AttentionAndExpertsMayBeOnDifferentRanks) {
  for (const char* text :
       {"attention=dp1,experts=ep2,disaggregate", "attention=tp2dp3,experts=ep3:1tp2,disaggregate",
        "attention=dp2,experts=ep2,disaggregate"}) {
    const Result<strategy::Layout> layout = ParseLayout(text);
    ASSERT_TRUE(layout) << text;
    EXPECT_TRUE(layout->disaggregates);
    EXPECT_EQ(ToText(*layout), text);
    EXPECT_EQ(layout->num_ranks(), layout->num_attention_ranks() + layout->num_expert_ranks());
  }
  EXPECT_EQ(*ParseLayout("disaggregate,experts=ep2,attention=dp1"),
            *ParseLayout("attention=dp1,experts=ep2,disaggregate"));
  EXPECT_THAT(ComplaintOf("attention=dp1,experts=ep2"),
              HasSubstr("unless they are on different ranks (--disaggregate)"));
  EXPECT_THAT(ComplaintOf("experts=ep2,disaggregate"), HasSubstr("how many ranks have attention"));
  EXPECT_THAT(ComplaintOf("disaggregate"), HasSubstr("how many the experts"));
  for (const char* text :
       {"attention=dp1,experts=ep2,disaggregate,disaggregate", "attention=dp1,experts=ep2,disagg",
        "attention=dp1,experts=ep2,disaggregate,", "attention=dp0,experts=ep2,disaggregate"}) {
    EXPECT_NE(ComplaintOf(text), "") << text;
  }
  EXPECT_THAT(CheckRanks(*ParseLayout("attention=dp1,experts=ep2,disaggregate"), 2).error().message,
              HasSubstr("needs 3 ranks, and 2 were started"));
}

TEST(LayoutText, NamesTheRanksWithAttentionWhereTheyAreNotTheFirst) {
  for (const char* text :
       {"attention=dp2@1:3,experts=ep2,disaggregate", "attention=dp1@2,experts=ep3:1,disaggregate",
        "attention=tp2dp2@0:1:2:5,experts=ep2,disaggregate"}) {
    const auto layout = ParseLayout(text);
    ASSERT_TRUE(layout.ok()) << layout.error().message;
    EXPECT_EQ(ToText(*layout), text);
  }
  EXPECT_EQ(ParseLayout("attention=dp2@1:3,experts=ep2,disaggregate")->attention_ranks,
            (std::vector{1, 3}));
  // The first ones need no names.
  EXPECT_EQ(*ParseLayout("attention=dp2@0:1,experts=ep2,disaggregate"),
            *ParseLayout("attention=dp2,experts=ep2,disaggregate"));
  EXPECT_THAT(ComplaintOf("attention=dp2@1,experts=ep2,disaggregate"),
              HasSubstr("gives attention 2 ranks and names 1 (@)"));
  EXPECT_THAT(ComplaintOf("attention=dp2@3:1,experts=ep2,disaggregate"),
              HasSubstr("increasing order, each once"));
  EXPECT_THAT(ComplaintOf("attention=dp2@1:1,experts=ep2,disaggregate"),
              HasSubstr("increasing order, each once"));
  EXPECT_THAT(ComplaintOf("attention=dp2@1:4,experts=ep2,disaggregate"),
              HasSubstr("attention to rank 4, and its ranks are 0 to 3"));
  EXPECT_THAT(ComplaintOf("attention=dp2@0:1,experts=ep2"), HasSubstr("add --disaggregate"));
  for (const char* text :
       {"attention=dp1@,experts=ep1,disaggregate", "attention=dp1@x,experts=ep1,disaggregate",
        "attention=dp2@1:,experts=ep1,disaggregate", "attention=dp1@-1,experts=ep1,disaggregate",
        "attention=dp1@1@1,experts=ep1,disaggregate", "attention=dp1@1 ,experts=ep1,disaggregate",
        "attention=dp1@99999999999,experts=ep1,disaggregate"}) {
    EXPECT_THAT(ComplaintOf(text), HasSubstr("names no ranks")) << text;
  }
  EXPECT_NE(ComplaintOf("attention=dp2,experts=ep2@1:2,disaggregate"), "");
}

TEST(LayoutText, EachPartIsGivenOnce) {
  EXPECT_THAT(ComplaintOf("attention=dp1,attention=dp1"), HasSubstr("attention twice"));
  EXPECT_THAT(ComplaintOf("attention=dp2,attention=tp2,experts=ep2"), HasSubstr("twice"));
  EXPECT_THAT(ComplaintOf("experts=ep2,attention=dp2,experts=ep2"), HasSubstr("the experts twice"));
  EXPECT_NE(ComplaintOf("attention=dp2dp2,experts=ep4"), "");
  EXPECT_NE(ComplaintOf("attention=dp2,experts=tp1slice2"), "");
}

TEST(LayoutText, NonsenseIsRefused) {
  for (const char* text :
       {"", ",", "attention=dp2,", ",attention=dp2,experts=ep2",
        "attention=,experts=", "attention=dp,experts=ep1", "attention=dp0,experts=ep1",
        "attention=dp-1,experts=ep1", "attention=dp99999999999,experts=ep1", "attention=dp2",
        "attention = dp1", "attn=dp1", "attention=dp+1,experts=ep1", "attention=dp1 ,experts=ep1",
        "attention=tp2,experts=eptp2"}) {
    EXPECT_NE(ComplaintOf(text), "") << text;
  }
}

TEST(Plan, FieldsOutOfRangeAreRefused) {
  const auto read = [](const char* fields) {
    return PlanFromJson(nlohmann::json::parse(std::string(R"({"version": 1, )") + fields + "}"))
        .ok();
  };
  EXPECT_TRUE(read(R"("comm_budget": 2, "wire": "fp8", "pipeline": {"chunks": "auto"})"));
  for (const char* wrong :
       {R"("comm_budget": -1)", R"("comm_budget": 99999)", R"("comm_budget": 1.5)",
        R"("comm_budget": 18446744073709551615)", R"("wire": "")", R"("gemm": 1)",
        R"("pipeline": {"chunks": 0})", R"("pipeline": {"chunks": 257})",
        R"("pipeline": {"chunks": 18446744073709551615})", R"("pipeline": {"chunks": "4"})",
        R"("pipeline": {"overlap": 1})", R"("pipeline": [])", R"("layout": "")", R"("other": 1)"}) {
    EXPECT_FALSE(read(wrong)) << wrong;
  }
  for (const char* text : {"", "0", "257", "-1", "+4", "4:", "4:x", "auto:", " 4", "4 ", "1e1"}) {
    Plan plan;
    EXPECT_FALSE(ParsePipeline(text, &plan).ok()) << text;
  }
}

}  // namespace
}  // namespace convene::plan
