#include "cost/import_tables.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cost/operator_work.h"

namespace convene::cost {
namespace {

using ::testing::HasSubstr;

constexpr const char* kProducts =
    "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency\n";
constexpr double kSeconds = 20e-6;  // fixed, of every product here

// A table of products at 60 % of the limits of `device`, beside kSeconds.
std::string ProductTable(const std::string& device, const std::string& kernel = "example") {
  const GpuPreset gpu = *FindGpu(device);
  std::string text = kProducts;
  for (const int m : {1, 16, 64, 256, 1024, 4096}) {
    for (const int n : {1024, 4096, 8192}) {
      for (const int k : {2048, 7168}) {
        const OperatorWork work = WorkOf({.rows = 1.0 * m, .columns = 1.0 * n, .inner = 1.0 * k},
                                         *ProductFormatOf("bf16"), gpu.figures);
        text += fmt::format("Example,1,{},gemm,{},bfloat16,{},{},{},{}\n", device, kernel, m, n, k,
                            1e3 * (kSeconds + work.ideal_seconds / 0.6));
      }
    }
  }
  return text;
}

TableTarget TargetOf(const MachineProfile& machine) {
  return {*machine.device, LinkOfHost(machine)};
}

ChosenOperators Choose(const std::string& preset, const std::vector<std::string>& texts) {
  const MachineProfile machine = *Preset(preset);
  std::vector<NamedTable> tables;
  for (const std::string& text : texts) {
    auto operators = ReadPerfTable(text, TargetOf(machine));
    CHECK(operators.ok(), "{}", operators.error().message);
    tables.push_back({fmt::format("table {}", tables.size()), *std::move(operators)});
  }
  return ChooseOperators(machine, std::move(tables));
}

std::string MessageOf(const std::string& text) {
  const auto operators = ReadPerfTable(text, TargetOf(*Preset("a100-nvlink")));
  return operators ? "accepted" : operators.error().message;
}

TEST(ImportTables, AModelOfATableMeetsItsRows) {
  const ChosenOperators chosen = Choose("a100-nvlink", {ProductTable("NVIDIA A100-SXM4-80GB")});
  ASSERT_EQ(chosen.operators.size(), 1u);
  EXPECT_EQ(chosen.operators[0].name, "product bf16");
  EXPECT_FALSE(chosen.operators[0].is_relative);
  EXPECT_EQ(chosen.operators[0].source, "table 0, Example example");
  const auto imported = ImportOperator(chosen.operators[0], 1000);
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_EQ(imported->num_rows, 36u);
  EXPECT_EQ(imported->num_rest, 0u);
  EXPECT_NEAR(imported->model.curve.line.alpha, kSeconds, 1e-9);
  EXPECT_NEAR(imported->model.curve.line.beta, 1 / 0.6, 1e-6);
}

TEST(ImportTables, RowsThatAreNotFittedCheckTheModel) {
  const ChosenOperators chosen = Choose("a100-nvlink", {ProductTable("NVIDIA A100-SXM4-80GB")});
  const auto imported = ImportOperator(chosen.operators[0], 18);
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_GT(imported->num_rest, 0u);
  EXPECT_EQ(imported->num_rest + imported->model.num_points, 36u);
  EXPECT_LT(imported->rest_p95, 1e-4);
}

// Whatever their digests: the number is a limit.
TEST(ImportTables, NoMoreRowsAreFittedThanAsked) {
  const ChosenOperators chosen = Choose("a100-nvlink", {ProductTable("NVIDIA A100-SXM4-80GB")});
  for (const size_t most : {4u, 10u, 20u, 35u, 36u}) {
    const auto imported = ImportOperator(chosen.operators[0], most);
    ASSERT_TRUE(imported) << imported.error().message;
    EXPECT_EQ(static_cast<size_t>(imported->model.num_points), most);
    EXPECT_EQ(imported->num_rest, 36 - most);
  }
}

TEST(ImportTables, RowsWithTheSameFeaturesAreFittedTogether) {
  const std::string twice = ProductTable("NVIDIA A100-SXM4-80GB");
  const std::string rows = twice.substr(twice.find('\n') + 1);
  const ChosenOperators chosen = Choose("a100-nvlink", {twice + rows});
  const auto imported = ImportOperator(chosen.operators[0], 21);
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_EQ(imported->model.num_points, 20);
}

TEST(ImportTables, ADeviceWithoutATableTakesTheEfficiencyOfItsNearestRelative) {
  const ChosenOperators chosen = Choose("a6000-pcie4", {ProductTable("NVIDIA H100 80GB HBM3"),
                                                        ProductTable("NVIDIA A100-SXM4-80GB")});
  ASSERT_EQ(chosen.operators.size(), 1u);
  EXPECT_TRUE(chosen.operators[0].is_relative);
  EXPECT_THAT(chosen.operators[0].source, HasSubstr("nearest relative"));
  EXPECT_THAT(chosen.operators[0].source, HasSubstr("NVIDIA A100 SXM4 80GB"));
  ASSERT_EQ(chosen.passed_over.size(), 1u);
  EXPECT_THAT(chosen.passed_over[0], HasSubstr("NVIDIA H100"));
  // 60 % of its own limits, and the same fixed seconds.
  const auto imported = ImportOperator(chosen.operators[0], 1000);
  ASSERT_TRUE(imported) << imported.error().message;
  const OperatorWork work = WorkOf({.rows = 512, .columns = 4096, .inner = 4096},
                                   *ProductFormatOf("bf16"), *Preset("a6000-pcie4")->device);
  const OperatorPrediction prediction = imported->model.Predict(work.features, work.ideal_seconds);
  EXPECT_NEAR(prediction.seconds / (kSeconds + work.ideal_seconds / 0.6), 1, 1e-3);
}

TEST(ImportTables, KernelsAfterTheFirstHaveTheirNamesBehindTheOperators) {
  const ChosenOperators chosen =
      Choose("a100-nvlink", {ProductTable("NVIDIA A100-SXM4-80GB", "one"),
                             ProductTable("NVIDIA A100-SXM4-80GB", "two"),
                             ProductTable("NVIDIA A100-SXM4-80GB", "two")});
  ASSERT_EQ(chosen.operators.size(), 2u);
  EXPECT_EQ(chosen.operators[0].name, "product bf16");
  EXPECT_EQ(chosen.operators[1].name, "product bf16, Example two");
  ASSERT_EQ(chosen.passed_over.size(), 1u);
  EXPECT_THAT(chosen.passed_over[0], HasSubstr("an earlier table has it"));
}

TEST(ImportTables, AFormatThatTheDeviceDoesNotHaveIsPassedOver) {
  const std::string table =
      std::string(kProducts) + "Example,1,NVIDIA H100 80GB HBM3,gemm,x,fp8,1,1024,1024,0.01\n";
  const ChosenOperators chosen = Choose("a100-nvlink", {table});
  EXPECT_TRUE(chosen.operators.empty());
  ASSERT_EQ(chosen.passed_over.size(), 1u);
  EXPECT_THAT(chosen.passed_over[0], HasSubstr("no rate of products in fp8"));
}

TEST(ImportTables, CollectivesCountTheBytesThatPassALink) {
  const std::string header =
      "framework,version,device,op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency\n";
  const auto operators =
      ReadPerfTable(header + "X,1,NVIDIA A100-SXM4-80GB,all_reduce,NCCL,half,4,1024,0.5\n" +
                        "X,1,NVIDIA A100-SXM4-80GB,alltoall,NCCL,int8,2,1024,0.25\n",
                    TargetOf(*Preset("a100-nvlink")));
  ASSERT_TRUE(operators) << operators.error().message;
  ASSERT_EQ(operators->size(), 2u);
  const MeasuredOperator& all_reduce = operators->at(0);
  EXPECT_EQ(all_reduce.name, "all_reduce");
  EXPECT_EQ(all_reduce.samples[0].features, (std::vector<double>{2048, 4}));
  EXPECT_DOUBLE_EQ(all_reduce.samples[0].ideal_seconds, 2 * 2048 * 0.75 / 300e9);
  EXPECT_DOUBLE_EQ(all_reduce.samples[0].seconds, 0.5e-3);
  EXPECT_EQ(operators->at(1).name, "all_to_all");
  EXPECT_DOUBLE_EQ(operators->at(1).samples[0].ideal_seconds, 1024 * 0.5 / 300e9);
}

TEST(ImportTables, ExpertsOfARankAreItsPartOfTheLayers) {
  const std::string table =
      "framework,version,device,op_name,kernel_source,moe_dtype,num_tokens,hidden_size,inter_size,"
      "topk,num_experts,moe_tp_size,moe_ep_size,distribution,latency\n"
      "X,1,NVIDIA A100-SXM4-80GB,moe,k,bfloat16,4096,1024,512,2,16,2,4,power_law_1.2,1\n";
  const auto operators = ReadPerfTable(table, TargetOf(*Preset("a100-nvlink")));
  ASSERT_TRUE(operators) << operators.error().message;
  const OperatorSample& sample = operators->at(0).samples[0];
  EXPECT_EQ(operators->at(0).name, "grouped_product bf16");
  EXPECT_EQ(sample.features, (std::vector<double>{4096, 1024, 256, 2, 16, 4, 512, 2.2}));
  // 2,048 rows through matrices of 1024 x 256, and all 4 experts read: the FLOPs take longer.
  EXPECT_NEAR(sample.ideal_seconds, 6.0 * 2048 * 1024 * 256 / 312e12, 1e-12);
}

TEST(ImportTables, DispatchAndCombineAreOperatorsOverMultiprocessors) {
  const std::string table =
      "framework,version,device,op_name,kernel_source,node_num,hidden_size,num_token,num_topk,"
      "num_experts,dispatch_sms,dispatch_transmit_us,dispatch_notify_us,combine_sms,"
      "combine_transmit_us,combine_notify_us\n"
      "x,1,NVIDIA H200,normal,deepep,1,2048,128,8,128,4,25,0,8,30,0\n";
  const auto operators = ReadPerfTable(table, TargetOf(*Preset("h200-nvlink")));
  ASSERT_TRUE(operators) << operators.error().message;
  ASSERT_EQ(operators->size(), 2u);
  EXPECT_EQ(operators->at(0).name, "dispatch");
  EXPECT_EQ(operators->at(0).samples[0].features.back(), 4);
  EXPECT_DOUBLE_EQ(operators->at(0).samples[0].seconds, 25e-6);
  EXPECT_EQ(operators->at(1).samples[0].features.back(), 8);
  // A token goes once to each rank that it visits, in fp8 with scales there and in bf16 back.
  const double elements = 128 * 2048 * 7 * (1 - std::pow(7.0 / 8, 8));
  EXPECT_NEAR(operators->at(0).samples[0].ideal_seconds, elements * (1 + 4.0 / 128) / 450e9, 1e-12);
  EXPECT_NEAR(operators->at(1).samples[0].ideal_seconds, elements * 2 / 450e9, 1e-12);
  // Its kernels need NVLink.
  EXPECT_EQ(Choose("h200-nvlink", {table}).operators.size(), 2u);
  const ChosenOperators on_pcie = Choose("h100-pcie5", {table});
  EXPECT_TRUE(on_pcie.operators.empty());
  ASSERT_EQ(on_pcie.passed_over.size(), 2u);
  EXPECT_THAT(on_pcie.passed_over[0], HasSubstr("NVLink among all ranks of a host"));
  EXPECT_TRUE(Choose("v100-nvlink", {table}).operators.empty());
  // On a link of 200 GB/s fewer multiprocessors reach the same part of it.
  const ChosenOperators on_h800 = Choose("h800-nvlink", {table});
  ASSERT_EQ(on_h800.operators.size(), 2u);
  const std::vector<OperatorSample> samples = SamplesOnTarget(on_h800.operators[0].measured);
  EXPECT_DOUBLE_EQ(samples[0].features.back(), 4 * 200.0 / 450);
  EXPECT_DOUBLE_EQ(samples[0].features[0], 128);
}

TEST(ImportTables, WhatIsNotUnderstoodIsRefusedWithItsRow) {
  const std::string a100 = "Example,1,NVIDIA A100-SXM4-80GB,gemm,x,";
  EXPECT_THAT(MessageOf("a,b\n1,2\n"), HasSubstr("gemm_perf (device kernel_source gemm_dtype"));
  EXPECT_THAT(MessageOf(kProducts), HasSubstr("no rows"));
  EXPECT_THAT(MessageOf(kProducts + a100 + "bfloat16,1,1024,1024,0.1\n" + a100 +
                        "bfloat16,1,none,1024,0.1\n"),
              HasSubstr("line 3: n is \"none\""));
  EXPECT_THAT(MessageOf(kProducts + a100 + "bfloat16,1,1024,1024,-1\n"),
              HasSubstr("line 2: latency is \"-1\""));
  for (const char* beyond : {"1e300", "1e-300"}) {
    EXPECT_THAT(MessageOf(fmt::format("{}{}bfloat16,1,1024,1024,{}\n", kProducts, a100, beyond)),
                HasSubstr("it must be a number from 1e-30 to 1e+30"));
  }
  EXPECT_THAT(MessageOf(kProducts + a100 + "int3,1,1024,1024,0.1\n"), HasSubstr("int3"));
  EXPECT_THAT(MessageOf(std::string(kProducts) + "X,1,Example GPU,gemm,x,bfloat16,1,1,1,1\n"),
              HasSubstr("Example GPU"));
  EXPECT_THAT(MessageOf(kProducts + a100 + "bfloat16,1,1024,1024,0.1\n" +
                        "X,1,NVIDIA H200,gemm,x,bfloat16,1,1,1,1\n"),
              HasSubstr("a table for each device"));
}

}  // namespace
}  // namespace convene::cost
