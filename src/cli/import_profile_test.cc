#include <nlohmann/json.hpp>

#include "cli/commands_test.h"
#include "cost/presets.h"

namespace convene::cli {
namespace {

using ::testing::HasSubstr;

class ImportProfileTest : public CommandsTest {
 protected:
  // Products of 1 to 32 rows, on an A100.
  void WriteTable(const std::string& name) const {
    std::string text = "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency\n";
    for (int m = 1; m <= 32; ++m) {
      text += fmt::format("X,1,NVIDIA A100-SXM4-80GB,gemm,k,bfloat16,{},4096,4096,{}\n", m,
                          0.02 + 0.0001 * m);
    }
    Write(name, text);
  }
};

TEST_F(ImportProfileTest, WritesAProfileWithModelsAndPrintsTheirErrors) {
  WriteTable("a.csv");
  const Outcome outcome =
      Run({"import-profile", Path("a.csv"), "--preset", "a100-nvlink", "--out", Path("a100.json")});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("NVIDIA A100 Tensor Core GPU data sheet"));
  EXPECT_THAT(outcome.out, HasSubstr("product bf16"));
  const auto profile = nlohmann::json::parse(Read("a100.json"));
  EXPECT_EQ(profile["device"]["num_multiprocessors"], 108);
  EXPECT_EQ(profile["operators"]["product bf16"]["num_points"], 32);
  EXPECT_EQ(profile["links"].size(), 2u);
}

TEST_F(ImportProfileTest, ReadsTheTablesOfADirectory) {
  fs::create_directories(Path("tables"));
  WriteTable("tables/a.csv");
  Write("tables/README.md", "no table");
  const Outcome outcome =
      Run({"import-profile", Path("tables"), "--preset", "a10-pcie4", "--out", "-"});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  const auto profile = nlohmann::json::parse(outcome.out);
  EXPECT_THAT(profile["operators"]["product bf16"]["source"].get<std::string>(),
              HasSubstr("nearest relative"));
  EXPECT_THAT(outcome.err, HasSubstr("the table is of NVIDIA A100 SXM4 80GB, and no table of"));
}

// Two rows are too few for a model.
TEST_F(ImportProfileTest, AnOperatorThatCannotBeFittedIsPassedOverAndTheOthersAreImported) {
  WriteTable("a.csv");
  const std::string few =
      "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency\n"
      "X,1,NVIDIA A100-SXM4-80GB,gemm,k,int8_wo,1,4096,4096,0.02\n"
      "X,1,NVIDIA A100-SXM4-80GB,gemm,k,int8_wo,2,4096,4096,0.02\n";
  Write("few.csv", few);
  const std::vector<std::string> end = {"--preset", "a100-nvlink", "--out", "-"};
  std::vector<std::string> words = {"import-profile", Path("few.csv"), Path("a.csv")};
  words.insert(words.end(), end.begin(), end.end());
  const Outcome both = Run(words);
  ASSERT_EQ(both.status, kSuccess) << both.err;
  EXPECT_THAT(both.err, HasSubstr("passed over: few.csv, X k: product int8_wo: 2 points"));
  EXPECT_EQ(nlohmann::json::parse(both.out)["operators"]["product bf16"]["num_points"], 32);
  words.erase(words.begin() + 2);
  const Outcome alone = Run(words);
  EXPECT_EQ(alone.status, kFailure);
  EXPECT_THAT(alone.err, HasSubstr("few.csv, X k: product int8_wo: 2 points"));
  EXPECT_EQ(alone.out, "");
}

TEST_F(ImportProfileTest, ATableThatIsGivenTwiceIsRefused) {
  fs::create_directories(Path("tables"));
  WriteTable("tables/a.csv");
  const std::vector<std::vector<std::string>> twice = {
      {Path("tables/a.csv"), Path("tables/a.csv")},
      {Path("tables"), Path("tables/../tables/a.csv")}};
  for (const std::vector<std::string>& tables : twice) {
    const Outcome outcome =
        Run({"import-profile", tables[0], tables[1], "--preset", "a100-nvlink", "--out", "-"});
    EXPECT_EQ(outcome.status, kFailure);
    EXPECT_THAT(outcome.err, HasSubstr("a.csv is given twice"));
  }
}

TEST_F(ImportProfileTest, NamesOperatorsThatNoPriceIsAskedOf) {
  WriteTable("a.csv");
  std::string header =
      "framework,version,device,op_name,kernel_source,{}_dtype,num_gpus,message_size,latency\n";
  const auto write = [&](const std::string& file, const char* kind, const char* name) {
    std::string text = fmt::format(fmt::runtime(header), kind);
    for (const char* kernel : {"k", "other"}) {
      for (int size = 1024; size <= 1 << 20; size *= 2) {
        text += fmt::format("X,1,NVIDIA A100-SXM4-80GB,{},{},half,8,{},{}\n", name, kernel, size,
                            0.01 + 1e-8 * size);
      }
    }
    Write(file, text);
  };
  write("sums.csv", "allreduce", "all_reduce");
  write("rows.csv", "nccl", "all_gather");
  const Outcome all = Run({"import-profile", Path("a.csv"), Path("sums.csv"), Path("rows.csv"),
                           "--preset", "a100-nvlink", "--out", "-"});
  ASSERT_EQ(all.status, kSuccess) << all.err;
  EXPECT_THAT(all.err,
              HasSubstr("no price is asked of all_gather, X other: prices are of weights in "
                        "bf16, int8, int4_wo, and of one kernel for each operator but all-reduce"));
  const Outcome priced = Run(
      {"import-profile", Path("a.csv"), Path("sums.csv"), "--preset", "a100-nvlink", "--out", "-"});
  EXPECT_THAT(priced.err, ::testing::Not(HasSubstr("no price is asked")));
  // Over PCI Express an all-reduce is its two halves.
  const Outcome on_pcie = Run(
      {"import-profile", Path("a.csv"), Path("sums.csv"), "--preset", "a100-pcie4", "--out", "-"});
  EXPECT_THAT(on_pcie.err, HasSubstr("passed over: all_reduce of sums.csv: its kernels need"));
}

TEST_F(ImportProfileTest, ListsPresetsWithTheirSources) {
  const Outcome outcome = Run({"import-profile", "--list"});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  for (const char* name : {"a6000-pcie4", "a6000-nvlink", "h20-nvlink", "t4-pcie3", "epyc-9654"}) {
    EXPECT_THAT(outcome.out, HasSubstr(name));
  }
  EXPECT_THAT(outcome.out, HasSubstr("assumed:"));
  EXPECT_THAT(outcome.out, HasSubstr("  source: AMD EPYC 9004 Series"));
  EXPECT_THAT(outcome.out, HasSubstr("  assumed: one socket; all 12 memory channels"));
  EXPECT_THAT(outcome.out, HasSubstr("  operators: measured by ai-dynamo/aiconfigurator, tables "
                                     "h100_sxm_comm_nccl_2.27.3_nccl_perf.csv.gz, h100_sxm_gemm"));
  // Rates in which weights are priced on a host.
  EXPECT_THAT(outcome.out, HasSubstr("  int8    8028.2 Gop/s"));
  // A paper's GPU comes with its host.
  EXPECT_THAT(outcome.out, HasSubstr("  host: Intel Xeon 2.30 GHz (Google Cloud N1)"));
  // Beside a GPU without tables stands on which one its operators were measured.
  EXPECT_THAT(outcome.out, HasSubstr("limits that was measured on NVIDIA A100"));
  // And so beside the rates of exchanges over multiprocessors.
  EXPECT_THAT(outcome.out, HasSubstr("dispatch among 8 ranks, GB/s over the multiprocessors"));
  EXPECT_THAT(outcome.out, HasSubstr("the share of its link that NVIDIA H100"));
  EXPECT_THAT(outcome.out, HasSubstr("  exchanges take a multiprocessor for each 17 GB/s"));
  EXPECT_EQ(Run({"import-profile", "--list", "--out", Path("list.json")}).status, kUsage);
}

TEST_F(ImportProfileTest, EveryPresetOfTheListPricesAPlan) {
  const Outcome list = Run({"import-profile", "--list"});
  ASSERT_EQ(list.status, kSuccess) << list.err;
  const std::vector<std::string> names = cost::PresetNames();
  ASSERT_GT(names.size(), 10u);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    EXPECT_THAT(list.out, HasSubstr(name));
    const Outcome plan = Run({"plan", model_, "--profile", name, "--ranks", "2", "--prompt-tokens",
                              "16", "--gen-tokens", "4", "--batch", "2", "--json", "-"});
    ASSERT_EQ(plan.status, kSuccess) << plan.err;
    const auto json = nlohmann::json::parse(plan.out);
    EXPECT_GT(json["predicted"]["ttft_s"].get<double>(), 0);
    EXPECT_GT(json["predicted"]["throughput_tokens_per_s"].get<double>(), 0);
    // And so does what is exported of a host, which has no operators.
    if (cost::Preset(name)->device) continue;
    ASSERT_EQ(Run({"import-profile", "--preset", name, "--out", Path("exported.json")}).status,
              kSuccess);
    const Outcome again =
        Run({"plan", model_, "--profile", Path("exported.json"), "--ranks", "2", "--prompt-tokens",
             "16", "--gen-tokens", "4", "--batch", "2", "--json", "-"});
    ASSERT_EQ(again.status, kSuccess) << again.err;
    EXPECT_EQ(nlohmann::json::parse(again.out)["predicted"]["ttft_s"], json["predicted"]["ttft_s"]);
  }
}

TEST_F(ImportProfileTest, WhatItDoesNotUnderstandIsAnErrorThatNamesIt) {
  Write("other.csv", "a,b\n1,2\n");
  Outcome outcome = Run({"import-profile", Path("other.csv"), "--preset", "a100-nvlink"});
  EXPECT_EQ(outcome.status, kFailure);
  EXPECT_THAT(outcome.err, HasSubstr("other.csv: its columns are those of no table"));
  outcome = Run({"import-profile", Path("nowhere.csv"), "--preset", "a100-nvlink"});
  EXPECT_EQ(outcome.status, kFailure);
  EXPECT_THAT(outcome.err, HasSubstr("nowhere.csv"));
  outcome = Run({"import-profile", "--preset", "a100-nvlnk"});
  EXPECT_EQ(outcome.status, kUsage);
  EXPECT_THAT(outcome.err, HasSubstr("did you mean a100-nvlink?"));
  outcome = Run({"import-profile"});
  EXPECT_EQ(outcome.status, kUsage);
  EXPECT_THAT(outcome.err, HasSubstr("--preset"));
  outcome = Run({"import-profile", Path("other.csv"), "--preset", "epyc-9654"});
  EXPECT_EQ(outcome.status, kFailure);
  EXPECT_THAT(outcome.err, HasSubstr("has no GPU"));
}

}  // namespace
}  // namespace convene::cli
