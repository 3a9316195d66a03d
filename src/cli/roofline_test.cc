#include <nlohmann/json.hpp>

#include "cli/commands_test.h"
#include "cost/machine_profile.h"

namespace convene::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kMixtral = R"({"model_type": "mixtral", "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 32, "num_local_experts": 8, "num_experts_per_tok": 2,
    "vocab_size": 32000, "max_position_embeddings": 32768, "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0, "hidden_act": "silu", "tie_word_embeddings": false})";

class RooflineTest : public CommandsTest {
 protected:
  void SetUp() override {
    CommandsTest::SetUp();
    Write("mixtral.json", kMixtral);
    cost::MachineProfile here;
    here.machine.cpu_name = "a CPU";
    here.machine.isa = "avx2";
    here.machine.f32_gflops = 1e5;  // the disk is what holds back
    here.machine.read_gbps = 20;
    here.machine.disk_gbps = 2;
    Write("here.json", cost::ToJson(here).dump());
  }

  Outcome Roofline(std::vector<std::string> words) const {
    words.insert(words.begin(), {"roofline", Path("mixtral.json")});
    return Run(words);
  }
  nlohmann::json Json(std::vector<std::string> words) const {
    words.insert(words.end(), {"--json", "-"});
    const Outcome outcome = Roofline(words);
    EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }
};

// MoE-Lightning, Figs. 4 and 5.
TEST_F(RooflineTest, HasThePapersTurningPointsOnAnL4) {
  const auto json = Json({"--profile", "l4-gcp", "--micro-batch", "128", "--batch", "1024",
                          "--context", "512", "--svg", Path("roofline.svg")});
  ASSERT_EQ(json["pairs"].size(), 1u);
  const auto& operations = json["pairs"][0]["operations"];
  EXPECT_EQ(operations[0]["name"], "attention");
  EXPECT_NEAR(operations[0]["flop_per_fast_byte"].get<double>(), 4, 1e-9);
  EXPECT_NEAR(operations[1]["p1"]["flop_per_byte"].get<double>(), 81, 81 * 0.05);
  EXPECT_NEAR(operations[1]["p2"]["flop_per_byte"].get<double>(), 600, 600 * 0.05);
  EXPECT_EQ(operations[1]["held_back_by"], "link");
  const std::string svg = Read("roofline.svg");
  for (const char* part :
       {"P1", "P2", "N = 16384", "cache in int4", "operating point", "experts in NVIDIA L4"}) {
    EXPECT_THAT(svg, HasSubstr(part));
  }
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  const Outcome text = Roofline({"--profile", "l4-gcp", "--micro-batch", "128"});
  EXPECT_THAT(text.out, HasSubstr("81.25"));
  EXPECT_THAT(text.out, HasSubstr("policy"));
}

TEST_F(RooflineTest, AMeasuredGpuIsTheFastTierAndStepsOfItAreHeldAgainstItsRoof) {
  cost::MachineProfile here;
  here.machine.cpu_name = "a CPU";
  here.machine.isa = "amx";
  here.machine.bf16_gflops = 1e4;
  here.machine.read_gbps = 100;
  here.machine.gpus.push_back({.index = 1,
                               .name = "a GPU",
                               .memory_bytes = uint64_t{80} << 30,
                               .to_device_gbps = 50,
                               .read_gbps = 4000,
                               .bf16_gflops = 8e5});
  Write("gpu.json", cost::ToJson(here).dump());
  // A step that takes as long as the link needs for all experts, 32 x 8 x 352 MB.
  const double expert_bytes = 2.0 * 3 * 4096 * 14336;
  const double seconds = 32 * 8 * expert_bytes / 50e9;
  const auto json =
      Json({"--profile", Path("gpu.json"), "--device", "cuda:1", "--memory", "15", "--host-memory",
            "128", "--prompt-tokens", "77", "--gen-tokens", "128", "--measured",
            fmt::format("1024:{}", 1024 / seconds), "--svg", Path("roofline.svg")});
  EXPECT_EQ(json["pairs"][0]["fast"]["name"], "a GPU");
  EXPECT_EQ(json["pairs"][0]["link_bytes_per_s"], 50e9);
  EXPECT_EQ(json["policy"]["attention_on_host"], true);
  ASSERT_EQ(json["measured"].size(), 1u);
  EXPECT_NEAR(json["measured"][0]["share_of_roof"].get<double>(), 1, 1e-3);
  EXPECT_THAT(Read("roofline.svg"), HasSubstr("measured, N = 1024"));

  const Outcome absent = Roofline({"--profile", Path("gpu.json"), "--device", "cuda"});
  EXPECT_EQ(absent.status, kFailure);
  EXPECT_THAT(absent.err, HasSubstr("no measured GPU 0"));
  for (const char* wrong : {"1024", "1024:", ":5", "1024:0", "0:5", "1024:5x", "1024:inf"}) {
    EXPECT_EQ(Roofline({"--profile", "l4-gcp", "--measured", wrong}).status, kUsage) << wrong;
  }
}

TEST_F(RooflineTest, OnACpuTheTiersAreDiskAndMemory) {
  const auto json = Json({"--profile", Path("here.json"), "--memory", "16", "--weights",
                          "bf16,int4", "--sequences", "256"});
  EXPECT_EQ(json["pairs"][0]["fast"]["name"], "RAM");
  EXPECT_EQ(json["pairs"][0]["slow"]["name"], "disk");
  EXPECT_EQ(json["pairs"][0]["operations"][1]["p1"]["flop_per_byte"], 0);
  // 24.8 GB of int4 weights do not fit, and less is to be streamed than in bf16.
  EXPECT_EQ(json["policy"]["weights"], "int4");
  EXPECT_EQ(json["policy"]["attention_on_host"], false);
  EXPECT_LT(json["policy"]["weights_resident"], 1);
  EXPECT_LE(json["policy"]["fast_bytes"], 16.0 * (1 << 30));
  ASSERT_EQ(json["ways"].size(), 2u);
  EXPECT_LT(json["ways"][0]["tokens_per_s"], json["ways"][1]["tokens_per_s"]);
}

// Peaks, marks and the operating point of the format that the policy takes.
TEST_F(RooflineTest, AModelWithAnEncoderHasNone) {
  const Outcome refused =
      Run({"roofline", CONVENE_SOURCE_DIR "/tests/golden/models/switch_plain/config.json"});
  EXPECT_EQ(refused.status, kFailure);
  EXPECT_THAT(refused.err, HasSubstr("what an encoder reads and computes is not counted"));
}

TEST_F(RooflineTest, WhatIsShownIsOfOneFormat) {
  const std::vector<std::string> words = {"--profile",     "l4-gcp", "--batch", "1024",
                                          "--micro-batch", "128",    "--svg",   Path("r.svg")};
  const auto with = [&](const std::string& formats) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--weights", formats});
    return all;
  };
  const auto several = Json(with("bf16,int8,int4"));
  const std::string svg = Read("r.svg");
  const std::string chosen = several["policy"]["weights"];
  EXPECT_NE(chosen, "bf16");
  EXPECT_EQ(several["weights"], chosen);
  const auto alone = Json(with(chosen));
  EXPECT_EQ(several["pairs"], alone["pairs"]);
  EXPECT_EQ(svg, Read("r.svg"));
  EXPECT_THAT(svg, HasSubstr("experts in " + chosen));
  EXPECT_THAT(Roofline(with("bf16,int8,int4")).out, HasSubstr(chosen + ", the fastest of bf16,"));
}

TEST_F(RooflineTest, AGpusHostMayBeAnotherProfile) {
  const auto without = Json({"--profile", "a100-pcie4"});
  EXPECT_TRUE(without["pairs"][0]["operations"][0]["p1"].is_null());
  const auto with =
      Json({"--profile", "a100-pcie4", "--host", Path("here.json"), "--host-memory", "200"});
  EXPECT_NEAR(with["pairs"][0]["operations"][0]["p1"]["flop_per_byte"].get<double>(), 0,
              1e-9);  // the link is faster than this host's memory
  EXPECT_EQ(with["pairs"].size(), 2u);
}

TEST_F(RooflineTest, WhatDoesNotFitHasARooflineNoPolicyAndFails) {
  const Outcome outcome =
      Roofline({"--profile", Path("here.json"), "--memory", "1", "--json", "-"});
  EXPECT_EQ(outcome.status, kFailure);
  EXPECT_THAT(outcome.err, HasSubstr("RAM has 1.00 GiB"));
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["pairs"].size(), 1u);
  EXPECT_TRUE(json["policy"].is_null());
  EXPECT_THAT(json["no_policy"].get<std::string>(), HasSubstr("RAM has 1.00 GiB"));
}

// One sequence would fit.
TEST_F(RooflineTest, OfAMicroBatchThatTheGpuHasNoRoomForItSaysSo) {
  const std::vector<std::string> words = {"--profile", "t4-gcp", "--prompt-tokens", "512"};
  EXPECT_EQ(Roofline(words).status, kSuccess);
  std::vector<std::string> large = words;
  large.insert(large.end(), {"--micro-batch", "128"});
  const Outcome outcome = Roofline(large);
  EXPECT_EQ(outcome.status, kFailure);
  EXPECT_THAT(outcome.err, HasSubstr("NVIDIA T4 has 15.0 GiB, and 128 sequences at a time need "));
  EXPECT_THAT(outcome.out, HasSubstr("no policy"));
}

TEST_F(RooflineTest, TheFormatIsByDefaultThatOfPackedWeights) {
  ASSERT_EQ(Run({"quantize", model_, "--weights", "int8", "--out", Path("packed")}).status,
            kSuccess);
  const auto format = [&](const std::string& model, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"roofline", model, "--profile", Path("here.json"),
                                      "--memory", "16",  "--json",    "-"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
    return nlohmann::json::parse(outcome.out)["weights"].get<std::string>();
  };
  EXPECT_EQ(format(Path("packed"), {}), "int8");
  EXPECT_EQ(format(Path("packed"), {"--weights", "int4"}), "int4");
  EXPECT_EQ(format(model_, {}), "bf16");
}

TEST_F(RooflineTest, SaysWhatToChange) {
  const auto error = [&](const std::vector<std::string>& words, int status) {
    const Outcome outcome = Roofline(words);
    EXPECT_EQ(outcome.status, status) << outcome.out;
    return outcome.err;
  };
  EXPECT_THAT(error({"--profile", "epyc-7763"}, kFailure), HasSubstr("--disk-rate"));
  EXPECT_THAT(error({"--profile", "nothing"}, kFailure), HasSubstr("convene measure"));
  EXPECT_THAT(error({"--profile", "l4-gcp", "--weights", "int3"}, kUsage), HasSubstr("int3"));
  EXPECT_THAT(error({"--profile", "l4-gcp", "--batch", "8", "--micro-batch", "9"}, kUsage),
              HasSubstr("larger than the batch"));
  EXPECT_THAT(error({"--profile", "l4-gcp", "--micro-batch", "5000"}, kUsage),
              HasSubstr("larger than the 4096 sequences"));
  EXPECT_THAT(error({"--profile", "l4-gcp", "--micro-batch", "128", "--sequences", "64"}, kUsage),
              HasSubstr("raise --sequences"));
  EXPECT_THAT(error({"--profile", Path("here.json"), "--host", "epyc-7763"}, kFailure),
              HasSubstr("--host"));
  EXPECT_THAT(error({"--profile", "l4-gcp", "--micro-batch", "0"}, kUsage), HasSubstr("0"));
  EXPECT_THAT(error({"--profile", "l4-gcp", "--kv-cache", "int4"}, kUsage), HasSubstr("int8"));
}

}  // namespace
}  // namespace convene::cli
