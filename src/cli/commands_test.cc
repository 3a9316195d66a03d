// The commands as a user calls them, on a small model; batch has a file of its own.
#include "cli/commands_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <sstream>

#include "cli/help_formatter.h"
#include "cost/step_costs.h"

namespace convene::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(CommandsTest, EveryCommandHasAHelpThatFitsAScreenWithAnExample) {
  for (const CommandEntry& entry : Commands()) {
    const Outcome help = Run({entry.name, "--help"});
    EXPECT_EQ(help.status, kSuccess) << entry.name;
    EXPECT_LE(std::count(help.out.begin(), help.out.end(), '\n'), 40) << entry.name;
    std::istringstream lines(help.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), kHelpWidth) << line;
    EXPECT_THAT(help.out, HasSubstr(fmt::format("convene {} ", entry.name)));
    EXPECT_EQ(help.err, "") << entry.name;
  }
}

TEST_F(CommandsTest, TheListOfCommandsHasALineForEach) {
  const Outcome help = Run({"--help"});
  EXPECT_EQ(help.status, kSuccess);
  for (const CommandEntry& entry : Commands()) {
    EXPECT_THAT(help.out, HasSubstr(fmt::format("\n  {:<30}{}\n", entry.name, entry.summary)));
  }
}

TEST_F(CommandsTest, UsageErrorsAreOneLineAndStatusTwo) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{},
                                                {"nonsense"},
                                                {"run"},
                                                {"run", model_, "--top-k", "x"},
                                                {"logits", model_, "--weights", "int3"},
                                                {"run", model_, "--nonsense"}}) {
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.status, kUsage);
    EXPECT_THAT(outcome.err, StartsWith("convene: "));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
}

TEST_F(CommandsTest, FailuresAreStatusOneAndNameTheirCause) {
  Outcome outcome = Run({"run", Path("nowhere"), "--prompt", "x"});
  EXPECT_EQ(outcome.status, kFailure);
  EXPECT_THAT(outcome.err, HasSubstr("nowhere"));
  outcome = Run({"run", model_, "--prompt", std::string(100, 'x'), "--context", "64"});
  EXPECT_EQ(outcome.status, kFailure);
  EXPECT_THAT(outcome.err, HasSubstr("raise --context"));
  EXPECT_EQ(outcome.out, "");
  outcome = Run({"run", model_, "--prompt", "x", "--context", "1000000"});
  EXPECT_EQ(outcome.status, kFailure);
  EXPECT_THAT(outcome.err, HasSubstr("longer than the"));
  fs::remove(model_ / "tokenizer.json");
  outcome = Run({"run", model_, "--prompt", "x"});
  EXPECT_EQ(outcome.status, kFailure);
  EXPECT_THAT(outcome.err, HasSubstr("tokenizer.json"));
}

TEST_F(CommandsTest, AnEmptyTokenizerConfigIsNoMissingOne) {
  const std::vector<std::string> run = {"run", model_, "--prompt", "x", "--max-tokens", "1"};
  const std::vector<std::string> tokenize = {"tokenize", model_, "--text", "x"};
  for (const std::vector<std::string>& words : {run, tokenize}) {
    Write("model/tokenizer_config.json", "");
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.status, kFailure);
    EXPECT_THAT(outcome.err, HasSubstr("tokenizer_config.json"));
    Write("model/tokenizer_config.json", "{}");
    EXPECT_EQ(Run(words).status, kSuccess);
    fs::remove(model_ / "tokenizer_config.json");
    EXPECT_EQ(Run(words).status, kSuccess);
  }
}

TEST_F(CommandsTest, WhatTheModelAsksForInVainIsNotedWhereItWouldChangeAnAnswer) {
  Write("model/generation_config.json", R"({"num_beams": 4, "typical_p": 0.9, "top_k": 5})");
  Write("in", R"({"custom_id": "a", "method": "POST", "url": "/v1/completions",)"
              R"( "body": {"model": "m", "prompt": "x", "max_tokens": 1}})");
  const std::string note =
      "generation_config.json also asks for num_beams=4, typical_p=0.9, which convene does not do: "
      "answers may differ from transformers'\n";
  EXPECT_THAT(Run({"run", model_, "--prompt", "x", "--max-tokens", "1"}).err, HasSubstr(note));
  EXPECT_THAT(Run({"batch", model_, "--input", Path("in"), "--output", Path("out")}).err,
              HasSubstr(note));
  const Outcome bench = Run(
      {"bench", model_, "-p", "4", "-n", "3", "--batch", "1", "--repeat", "1", "--threads", "1"});
  EXPECT_EQ(bench.status, kSuccess) << bench.err;
  EXPECT_THAT(bench.err, Not(HasSubstr("num_beams")));
}

TEST_F(CommandsTest, BenchWithoutPeaksHasRatesAndNoSharesOfThem) {
  const std::string path = Path("rates.json");
  const Outcome bench = Run({"bench", model_, "-p", "4", "-n", "3", "--batch", "1", "--repeat", "1",
                             "--threads", "1", "--no-peaks", "--json", path});
  ASSERT_EQ(bench.status, kSuccess) << bench.err;
  const nlohmann::json rates = nlohmann::json::parse(Read("rates.json"));
  EXPECT_GT(rates["prefill"]["tokens_per_s"].get<double>(), 0);
  EXPECT_GT(rates["decode"][0]["gbps"].get<double>(), 0);
  for (const char* name :
       {"share_of_peak", "share_of_bandwidth", "peak_gflops", "peak_read_gbps"}) {
    EXPECT_TRUE(rates["prefill"].at(name).is_null()) << name;
  }
  EXPECT_TRUE(rates["machine"]["read_gbps"].is_null());
  EXPECT_TRUE(rates["remarks"].empty());
}

TEST_F(CommandsTest, BenchOfRandomWeightsNeedsNoMoreThanAConfigFile) {
  fs::copy_file(model_ / "config.json", Path("shape.json"));
  std::vector<std::string> words = {
      "bench", Path("shape.json"), "-p", "4",         "-n", "3",         "--batch",
      "1",     "--repeat",         "1",  "--threads", "1",  "--no-peaks"};
  const Outcome without = Run(words);
  EXPECT_EQ(without.status, kFailure);
  EXPECT_THAT(without.err, HasSubstr("weights are needed here"));
  words.emplace_back("--random-weights");
  const Outcome bench = Run(words);
  EXPECT_EQ(bench.status, kSuccess) << bench.err;
  EXPECT_THAT(bench.out, HasSubstr("shape.json: olmoe"));
}

TEST_F(CommandsTest, FilesThatCannotBeWrittenAreSeenBeforeTheWork) {
  for (const std::string& path : {Path("missing/x.json"), Path(".")}) {
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"measure", "--json", path},
          {"batch", Path("nowhere"), "--input", Path("nowhere"), "--output", path}}) {
      const Outcome outcome = Run(words);
      EXPECT_EQ(outcome.status, kUsage);
      EXPECT_THAT(outcome.err, HasSubstr("cannot write"));
      EXPECT_EQ(outcome.out, "");
    }
  }
}

TEST_F(CommandsTest, MeasureNeedsTheDiskThatItIsGiven) {
  Write("file", "x");
  for (const std::string& path : {Path("nowhere"), Path("file"), std::string("/proc")}) {
    const Outcome outcome = Run({"measure", "--disk", path, "--seconds", "0.01"});
    EXPECT_EQ(outcome.status, kFailure) << path;
    EXPECT_THAT(outcome.err, HasSubstr(path));
    EXPECT_EQ(outcome.out, "");
  }
  EXPECT_FALSE(fs::exists(Path("nowhere")));
}

TEST_F(CommandsTest, MeasureWritesTheProfileWhereItIsTold) {
  const std::string path = Path("profile.json");
  const Outcome outcome = Run({"measure", "--disk", Path("."), "--seconds", "0.01", "--steps",
                               "none", "--threads", "1", "--out", path});
  EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("kept in " + path));
  EXPECT_TRUE(fs::exists(path));
  for (const char* name : {"memory copy: ", "memory write: ", "disk read: ", "sample: "}) {
    EXPECT_THAT(outcome.out, HasSubstr(name));
  }
  EXPECT_EQ(nlohmann::json::parse(Read("profile.json"))["operators"].size(), 5u);
  // What others measured there before stays, unless the machine was another one.
  auto profile = nlohmann::json::parse(Read("profile.json"));
  cost::StepCosts costs{.num_ranks = 2, .num_threads = 1, .weights = "bf16"};
  profile["steps"] = nlohmann::json::array({cost::ToJson(costs)});
  const auto measured_beside = [&] {
    Write("profile.json", profile.dump());
    Outcome again = Run({"measure", "--disk", Path("."), "--seconds", "0.01", "--steps", "none",
                         "--threads", "1", "--out", path});
    EXPECT_EQ(again.status, kSuccess) << again.err;
    return again.err;
  };
  EXPECT_THAT(measured_beside(), HasSubstr("steps on 2 ranks of 1 thread with weights in bf16"));
  EXPECT_EQ(nlohmann::json::parse(Read("profile.json"))["steps"].size(), 1u);
  profile["machine"]["cpu_name"] = "another one";
  EXPECT_THAT(measured_beside(), HasSubstr("is replaced: it was measured on another one"));
  EXPECT_EQ(nlohmann::json::parse(Read("profile.json"))["steps"].size(), 0u);
  const Outcome wrong = Run({"measure", "--steps", "int8,int9", "--out", path});
  EXPECT_EQ(wrong.status, kUsage);
  EXPECT_THAT(wrong.err, HasSubstr("int9 is no format of weights"));
}

TEST_F(CommandsTest, DirectoriesThatCannotBeWrittenAreSeenBeforeTheWork) {
  Write("empty_file", "");
  for (const auto& [path, message] :
       std::map<std::string, std::string>{{model_, "not an empty directory"},
                                          {Path("empty_file"), "not a directory"},
                                          {Path("empty_file/new"), "not a directory"}}) {
    for (const char* command : {"quantize", "synth"}) {
      const Outcome outcome = Run({command, Path("nowhere"), "--out", path});
      EXPECT_EQ(outcome.status, kUsage);
      EXPECT_THAT(outcome.err, HasSubstr(message));
    }
  }
  // What is not there is made, with the directories above it.
  const fs::path config = model_ / "config.json";
  fs::create_directory(Path("empty"));
  for (const std::string& out : {Path("empty"), Path("new/deep"), Path("slash/")}) {
    const Outcome outcome = Run({"synth", config, "--out", out, "--threads", "1"});
    EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
  }
}

TEST_F(CommandsTest, WrongOptionsAreSeenBeforeAModelIsLoaded) {
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--max-tokens", "0"},
                                                {"--max-tokens", "1e18"},
                                                {"--top-p", "1.5"},
                                                {"--top-k", "-1"},
                                                {"--temperature", "nan"},
                                                {"--temperature", "1e30"},
                                                {"--stop", ""},
                                                {"--seed", "18446744073709551616"},
                                                {"--repetition-penalty", "1e9"},
                                                {"--repetition-penalty", "0"}}) {
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"run", model_, "--prompt", "x"}, {"chat", model_}}) {
      std::vector<std::string> words = command;
      words.insert(words.end(), wrong.begin(), wrong.end());
      const Outcome outcome = Run(words);
      EXPECT_EQ(outcome.status, kUsage) << wrong[0];
      EXPECT_THAT(outcome.err, StartsWith("convene: " + wrong[0] + ": ")) << wrong[0];
    }
  }
  EXPECT_THAT(Run({"run", model_, "--prompt", ""}).err, StartsWith("convene: the prompt is empty"));
}

TEST_F(CommandsTest, EncodeWritesTheStatesOfTransformers) {
  const std::string fixture = CONVENE_SOURCE_DIR "/tests/golden/models/switch_plain/";
  const Outcome outcome = Run({"encode", fixture, "--tokens", fixture + "input_300.tokens.npy",
                               "--out", Path("states.npy"), "--weights", "f32"});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  const auto floats = [](const std::string& npy) {
    constexpr size_t kHeader = 128;
    std::vector<float> values((npy.size() - kHeader) / sizeof(float));
    std::memcpy(values.data(), npy.data() + kHeader, values.size() * sizeof(float));
    return values;
  };
  const std::vector<float> actual = floats(Read("states.npy"));
  const std::vector<float> expected =
      floats(*ReadFile(fixture + "input_300.states.npy", kMaxBytes));
  ASSERT_EQ(actual.size(), expected.size());
  double error = 0;
  double energy = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    error += std::pow(double{actual[i]} - expected[i], 2);
    energy += std::pow(double{expected[i]}, 2);
  }
  EXPECT_LE(std::sqrt(error), 1e-5 * std::sqrt(energy));
}

TEST_F(CommandsTest, EncodersAndDecodersAreToldApartBeforeLoading) {
  const std::string fixture = CONVENE_SOURCE_DIR "/tests/golden/models/switch_plain";
  const Outcome encode = Run({"encode", model_, "--text", "x", "--out", Path("states.npy")});
  EXPECT_EQ(encode.status, 1);
  EXPECT_THAT(encode.err, HasSubstr("has no encoder"));
  const Outcome logits = Run({"logits", fixture, "--tokens", fixture + "/input_17.tokens.npy",
                              "--out", Path("logits.npy")});
  EXPECT_EQ(logits.status, 1);
  EXPECT_THAT(logits.err, HasSubstr("encoder-decoder"));
}

TEST_F(CommandsTest, RunIsGreedyByDefaultAndTakesStopBeforeTheModel) {
  const std::vector<std::string> words = {"run",          model_,         "--prompt", "hello",
                                          "--ignore-eos", "--max-tokens", "30"};
  const Outcome first = Run(words);
  EXPECT_EQ(first.status, kSuccess) << first.err;
  EXPECT_GT(first.out.size(), 30u);
  EXPECT_EQ(Run(words).out, first.out);
  const std::string stop = first.out.substr(10, 2);
  const Outcome stopped = Run(
      {"run", "--stop", stop, "--prompt", "hello", "--ignore-eos", "--max-tokens", "30", model_});
  EXPECT_EQ(stopped.status, kSuccess) << stopped.err;
  EXPECT_EQ(stopped.out, first.out.substr(0, first.out.find(stop)) + "\n");
}

TEST_F(CommandsTest, RunSaysWhereTheContextEndsAnAnswer) {
  const auto run = [&](const std::string& most_tokens) {
    return Run({"run", model_, "--prompt", "hello", "--ignore-eos", "--context", "32",
                "--max-tokens", most_tokens, "--json", Path("run.json")});
  };
  EXPECT_THAT(run("100").err, HasSubstr("context of 32 tokens is full: --context raises it"));
  EXPECT_EQ(nlohmann::json::parse(Read("run.json"))["finish_reason"], "length");
  EXPECT_THAT(run("4").err, Not(HasSubstr("is full")));
}

TEST_F(CommandsTest, RunSamplesAGreedyModelWhereTheChoiceIsNarrowed) {
  const auto run = [&](const std::vector<std::string>& options) {
    std::vector<std::string> words = {"run", model_, "--prompt", "hello", "--ignore-eos"};
    words.insert(words.end(), {"--max-tokens", "30"});
    words.insert(words.end(), options.begin(), options.end());
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
    return outcome.out;
  };
  const std::string greedy = run({});
  for (const std::vector<std::string>& narrowed :
       {std::vector<std::string>{"--top-p", "0.99"}, {"--top-k", "100"}, {"--min-p", "0.001"}}) {
    std::vector<std::string> seeded = narrowed;
    seeded.insert(seeded.end(), {"--seed", "1"});
    const std::string sampled = run(seeded);
    EXPECT_NE(sampled, greedy) << narrowed[0];
    seeded.insert(seeded.end(), {"--temperature", "1"});
    EXPECT_EQ(run(seeded), sampled) << narrowed[0];
    seeded.back() = "0";
    EXPECT_EQ(run(seeded), greedy) << narrowed[0];
  }
}

TEST_F(CommandsTest, LogitsAreThoseOfTransformers) {
  const std::string fixture = CONVENE_SOURCE_DIR "/tests/golden/models/olmoe_plain/";
  const Outcome outcome = Run({"logits", model_, "--tokens", fixture + "prompt_300.tokens.npy",
                               "--out", Path("logits.npy"), "--weights", "f32", "--chunk", "77"});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  const auto floats = [](const std::string& npy) {
    std::vector<float> values((npy.size() - 128) / sizeof(float));
    std::memcpy(values.data(), npy.data() + 128, values.size() * sizeof(float));
    return values;
  };
  const std::vector<float> actual = floats(Read("logits.npy"));
  const std::vector<float> expected =
      floats(*ReadFile(fixture + "prompt_300.logits.npy", kMaxBytes));
  ASSERT_EQ(actual.size(), 300u * 128u);
  // The fixture holds the last positions of long prompts.
  ASSERT_LE(expected.size(), actual.size());
  const size_t offset = actual.size() - expected.size();
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double{actual[offset + i]} - expected[i], 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  EXPECT_LE(std::sqrt(difference / norm), 1e-5);
}

TEST_F(CommandsTest, CompareFindsNoDifferenceWhereThereIsNone) {
  const std::string demo = CONVENE_SOURCE_DIR "/models/demo";
  const Outcome outcome = Run({"compare", demo, "--text", demo + "/validation.txt", "--max-tokens",
                               "700", "--window", "256", "--formats", "bf16,int8,int4:64:act=int8",
                               "--schemes", "int4-tensor", "--json", "-"});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  const nlohmann::json json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["scored_tokens"], 700 - 3);
  const nlohmann::json& same = json["candidates"][0];
  EXPECT_EQ(same["kl"], 0);
  EXPECT_EQ(same["top1_agreement"], 1);
  EXPECT_EQ(same["max_logit_difference"], 0);
  EXPECT_EQ(same["nll"], json["reference"]["nll"]);
  EXPECT_EQ(same["weights_bytes"], json["reference"]["weights_bytes"]);
  // From int8 over int4 to int4 with one scale per matrix, everything gets worse.
  for (int i = 1; i < 4; ++i) {
    const nlohmann::json& finer = json["candidates"][i - 1];
    const nlohmann::json& coarser = json["candidates"][i];
    EXPECT_GT(coarser["kl"], finer["kl"]) << i;
    EXPECT_LT(coarser["top1_agreement"], finer["top1_agreement"]) << i;
  }
  EXPECT_LT(json["candidates"][1]["kl"], 0.01);
  EXPECT_LT(json["candidates"][2]["weights_bytes"], json["candidates"][1]["weights_bytes"]);
  EXPECT_EQ(json["candidates"][3]["name"], "bf16 as int4-tensor");
}

TEST_F(CommandsTest, CompareAndPerplexityAgree) {
  std::string tokens;
  for (int i = 0; i < 100; ++i) tokens += fmt::format("{} ", i * 37 % 128);
  Write("tokens.txt", tokens);
  for (const std::string weights : {"bf16", "int4"}) {
    const Outcome perplexity =
        Run({"perplexity", model_, "--tokens", Path("tokens.txt"), "--window", "33", "--weights",
             weights, "--json", Path("perplexity.json")});
    ASSERT_EQ(perplexity.status, kSuccess) << perplexity.err;
    const Outcome compared = Run({"compare", model_, "--tokens", Path("tokens.txt"), "--window",
                                  "33", "--formats", weights, "--json", Path("compare.json")});
    ASSERT_EQ(compared.status, kSuccess) << compared.err;
    EXPECT_THAT(compared.out, HasSubstr(weights));
    const nlohmann::json expected = nlohmann::json::parse(Read("perplexity.json"));
    const nlohmann::json json = nlohmann::json::parse(Read("compare.json"));
    EXPECT_EQ(json["scored_tokens"], expected["scored_tokens"]);
    EXPECT_NEAR(json["candidates"][0]["nll"], expected["nll"], 1e-12);
  }
}

TEST_F(CommandsTest, CompareMeasuresWeightsWithoutAText) {
  const Outcome outcome = Run({"compare", model_, "--weight-errors", "--schemes",
                               "int8-channel,int4-group32", "--json", Path("errors.json")});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("int4-group32"));
  const nlohmann::json json = nlohmann::json::parse(Read("errors.json"));
  ASSERT_EQ(json["weight_errors"].size(), 2u);
  EXPECT_LT(json["weight_errors"][0]["down"]["relative_error"],
            json["weight_errors"][1]["down"]["relative_error"]);
  EXPECT_GT(json["weight_errors"][1]["all"]["cosine"], 0.99);
}

TEST_F(CommandsTest, CompareSaysWhatIsWrong) {
  Write("tokens.txt", "1 2 3 4");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "--text"},
      {{"--tokens", Path("tokens.txt"), "--text", "-"}, "excludes"},
      {{"--tokens", Path("tokens.txt"), "--formats", "int3"}, "int3"},
      {{"--tokens", Path("tokens.txt"), "--formats", "int8:64"}, "64"},
      {{"--tokens", Path("tokens.txt"), "--reference", "auto"}, "auto"},
      {{"--tokens", Path("tokens.txt"), "--schemes", "int4-best"}, "int4-group32-zero"},
      {{"--tokens", Path("tokens.txt"), "--schemes", "all", "--reference", "int8"}, "f32 or bf16"},
      {{"--tokens", Path("tokens.txt"), "--window", "100000"}, "--window"}};
  for (const auto& [options, cause] : cases) {
    std::vector<std::string> words = {"compare", model_};
    words.insert(words.end(), options.begin(), options.end());
    const Outcome outcome = Run(words);
    // A single option that makes no sense is told by the parser, what only goes wrong beside others
    // or the model later.
    const bool is_later = cause == "--text" || cause == "f32 or bf16" || cause == "--window";
    EXPECT_EQ(outcome.status, is_later ? kFailure : kUsage) << cause;
    EXPECT_THAT(outcome.err, HasSubstr(cause));
    EXPECT_EQ(outcome.out, "");
  }
  ASSERT_EQ(Run({"quantize", model_, "--weights", "int4", "--out", Path("packed")}).status,
            kSuccess);
  EXPECT_THAT(Run({"compare", Path("packed"), "--tokens", Path("tokens.txt")}).err,
              HasSubstr("packed in one format"));
}

TEST_F(CommandsTest, InspectTakesAPackedDirectoryAsRunDoes) {
  const std::string packed = Path("packed");
  ASSERT_EQ(Run({"quantize", model_, "--weights", "int4", "--out", packed}).status, kSuccess);
  const Outcome outcome = Run({"inspect", packed});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("of int4 in one file"));
  EXPECT_THAT(outcome.out, HasSubstr("weights, packed as int4"));
  EXPECT_EQ(Run({"inspect", packed, "--weights", "int4"}).status, kSuccess);
  const Outcome other = Run({"inspect", packed, "--weights", "bf16"});
  EXPECT_EQ(other.status, kFailure);
  EXPECT_THAT(other.err, HasSubstr("holds int4 weights, not bf16; leave --weights out"));
  const Outcome groups = Run({"inspect", packed, "--int4-group", "128"});
  EXPECT_EQ(groups.status, kFailure);
  EXPECT_THAT(groups.err, HasSubstr("leave --int4-group out"));
}

}  // namespace
}  // namespace convene::cli
