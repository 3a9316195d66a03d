// The commands as a user calls them, on a small model with a tokenizer of single characters.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/read_file.h"
#include "cli/batch_results.h"
#include "cli/command_line.h"
#include "cli/help_formatter.h"

namespace convene::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

constexpr uint64_t kMaxBytes = 1 << 24;

struct Outcome {
  int status = 0;
  std::string out;
  std::string err;
};

class CommandsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) / fmt::format("commands_test_{}", getpid());
    model_ = directory_ / "model";
    fs::create_directories(model_);
    const fs::path fixture = CONVENE_SOURCE_DIR "/tests/golden/models/olmoe_plain";
    for (const char* name : {"config.json", "model.safetensors"}) {
      fs::copy_file(fixture / name, model_ / name);
    }
    nlohmann::json vocab;
    for (int id = 0; id < 128; ++id) {
      const bool is_printable = id > ' ' && id < 127;
      vocab[is_printable ? std::string(1, static_cast<char>(id)) : fmt::format("<{}>", id)] = id;
    }
    vocab.erase("<32>");
    vocab["Ġ"] = 32;
    Write("model/tokenizer.json",
          nlohmann::json{
              {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
              {"decoder", {{"type", "ByteLevel"}}},
              {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}}
              .dump());
    Write("model/tokenizer_config.json",
          R"({"chat_template": "{% for m in messages %}[{{ m.role }}]{{ m.content }};)"
          R"({% endfor %}[assistant]"})");
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ / name; }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
  }
  std::string Read(const std::string& name) const { return *ReadFile(Path(name), kMaxBytes); }

  static Outcome Run(std::vector<std::string> words) {
    words.insert(words.begin(), "convene");
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    Outcome outcome;
    outcome.status = RunCommandLine(static_cast<int>(argv.size()), argv.data(), Commands());
    std::fflush(stdout);
    outcome.out = testing::internal::GetCapturedStdout();
    outcome.err = testing::internal::GetCapturedStderr();
    return outcome;
  }

  // A batch line; `id` decides prompt and length.
  static std::string Request(int id) {
    return fmt::format(
        R"({{"custom_id":"r{0}","method":"POST","url":"/v1/completions",)"
        R"("body":{{"model":"m","prompt":"{1}","max_tokens":{2},"ignore_eos":true}}}})"
        "\n",
        id, std::string(static_cast<size_t>(3 + 20 * id), static_cast<char>('a' + id)), 5 + 3 * id);
  }

  Outcome RunBatch(const std::string& output) const {
    return Run({"batch", model_, "--input", Path("in.jsonl"), "--output", Path(output)});
  }

  // Results by custom_id: the text, or the error's message.
  std::map<std::string, std::string> Results(const std::string& output) const {
    std::map<std::string, std::string> results;
    std::istringstream lines(Read(output));
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json json = nlohmann::json::parse(line);
      const std::string id = json["custom_id"].is_null() ? "" : json["custom_id"];
      EXPECT_FALSE(results.contains(id)) << id;
      results[id] = json["error"].is_null()
                        ? json["response"]["body"]["choices"][0]["text"].get<std::string>()
                        : json["error"]["message"].get<std::string>();
    }
    return results;
  }

  fs::path directory_;
  fs::path model_;
};

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
                                                {"--top-p", "1.5"},
                                                {"--top-k", "-1"},
                                                {"--temperature", "nan"},
                                                {"--stop", ""},
                                                {"--repetition-penalty", "0"}}) {
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"run", model_, "--prompt", "x"}, {"chat", model_}}) {
      std::vector<std::string> words = command;
      words.insert(words.end(), wrong.begin(), wrong.end());
      const Outcome outcome = Run(words);
      EXPECT_EQ(outcome.status, kFailure) << wrong[0];
      EXPECT_THAT(outcome.err, StartsWith("convene: ")) << wrong[0];
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
      {{"--tokens", Path("tokens.txt"), "--text", "-"}, "both"},
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
    EXPECT_EQ(outcome.status, kFailure) << cause;
    EXPECT_THAT(outcome.err, HasSubstr(cause));
    EXPECT_EQ(outcome.out, "");
  }
  ASSERT_EQ(Run({"quantize", model_, "--weights", "int4", "--out", Path("packed")}).status,
            kSuccess);
  EXPECT_THAT(Run({"compare", Path("packed"), "--tokens", Path("tokens.txt")}).err,
              HasSubstr("packed in one format"));
}

TEST_F(CommandsTest, BatchResumesAfterATornLastLineWithTheSameResults) {
  std::string input;
  for (int id = 0; id < 4; ++id) input += Request(id);
  Write("in.jsonl", input + "{broken\n" + Request(1));  // r1 twice
  ASSERT_EQ(RunBatch("whole.jsonl").status, kSuccess);
  const std::string whole = Read("whole.jsonl");
  ASSERT_EQ(std::count(whole.begin(), whole.end(), '\n'), 6);

  const size_t last = whole.rfind('\n', whole.size() - 2) + 1;
  for (const size_t size : {size_t{0}, whole.find('\n') + 1, last - 1, last, last + 1,
                            (last + whole.size()) / 2, whole.size() - 1}) {
    Write("torn.jsonl", whole.substr(0, size));
    const Outcome rerun = RunBatch("torn.jsonl");
    ASSERT_EQ(rerun.status, kSuccess) << rerun.err;
    const std::string mended = Read("torn.jsonl");
    EXPECT_EQ(std::count(mended.begin(), mended.end(), '\n'), 6) << size;
    for (int id = 0; id < 4; ++id) {
      const auto result = [&](const std::string& text) {
        std::istringstream lines(text);
        for (std::string line; std::getline(lines, line);) {
          const nlohmann::json json = nlohmann::json::parse(line);
          if (json["custom_id"] != fmt::format("r{}", id) || !json["error"].is_null()) continue;
          return json["response"]["body"]["choices"].dump();
        }
        return std::string("none");
      };
      EXPECT_EQ(result(mended), result(whole)) << "r" << id << " of " << size;
      EXPECT_NE(result(mended), "none");
    }
  }
  EXPECT_THAT(RunBatch("whole.jsonl").err, HasSubstr("nothing to do"));
  EXPECT_EQ(Read("whole.jsonl"), whole);
}

TEST_F(CommandsTest, BatchAnswersEqualThoseAlone) {
  std::string input;
  for (int id = 0; id < 6; ++id) input += Request(id);
  Write("in.jsonl", input);
  ASSERT_EQ(RunBatch("together.jsonl").status, kSuccess);
  const std::map<std::string, std::string> together = Results("together.jsonl");
  ASSERT_EQ(together.size(), 6u);
  for (int id = 0; id < 6; ++id) {
    Write("in.jsonl", Request(id));
    const std::string output = fmt::format("alone{}.jsonl", id);
    ASSERT_EQ(RunBatch(output).status, kSuccess);
    const std::string name = fmt::format("r{}", id);
    EXPECT_EQ(Results(output).at(name), together.at(name));
  }
}

TEST_F(CommandsTest, BatchRefusesAnOutputThatAnotherRunIsWriting) {
  Write("in.jsonl", Request(1));
  const Result<BatchResults> other = BatchResults::Open(Path("out.jsonl"));
  ASSERT_TRUE(other.ok());
  const Outcome outcome = RunBatch("out.jsonl");
  EXPECT_EQ(outcome.status, kFailure);
  EXPECT_THAT(outcome.err, HasSubstr("another run is writing"));
}

TEST_F(CommandsTest, BatchLeavesItsInputAloneWhereItIsTheOutput) {
  for (const std::string& input : {Request(1), Request(1).substr(0, Request(1).size() - 1)}) {
    Write("in.jsonl", input);
    const Outcome outcome = RunBatch("in.jsonl");
    EXPECT_EQ(outcome.status, kFailure);
    EXPECT_THAT(outcome.err, HasSubstr("something else than batch results"));
    EXPECT_EQ(Read("in.jsonl"), input);
  }
}

TEST_F(CommandsTest, BatchWritesItsFiguresWhereThereIsNothingToDo) {
  Write("in.jsonl", "\n \r\n");
  const Outcome outcome = Run(
      {"batch", model_, "--input", Path("in.jsonl"), "--output", Path("out.jsonl"), "--json", "-"});
  EXPECT_EQ(outcome.status, kSuccess);
  EXPECT_THAT(outcome.err, HasSubstr("in.jsonl holds no requests"));
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["answered"], 0);
}

TEST_F(CommandsTest, BatchSamplesEqualPromptsDifferentlyAndARerunTheSame) {
  std::string input;
  for (int id = 0; id < 3; ++id) {
    input += fmt::format(R"({{"custom_id":"r{}","url":"/v1/completions","body":{{"prompt":"x",)"
                         R"("max_tokens":20,"top_p":1,"ignore_eos":true}}}})"
                         "\n",
                         id);
  }
  Write("in.jsonl", input);
  ASSERT_EQ(RunBatch("first.jsonl").status, kSuccess);
  ASSERT_EQ(RunBatch("second.jsonl").status, kSuccess);
  const std::map<std::string, std::string> first = Results("first.jsonl");
  EXPECT_EQ(first, Results("second.jsonl"));
  EXPECT_NE(first.at("r0"), first.at("r1"));
  EXPECT_NE(first.at("r0"), first.at("r2"));
  EXPECT_NE(first.at("r1"), first.at("r2"));
}

TEST_F(CommandsTest, BatchTakesContentsInPartsAndArgumentsAsText) {
  Write("model/tokenizer_config.json",
        R"({"chat_template": "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %})"
        R"({{ c.function.arguments.a }}{% endfor %};{% endfor %}"})");
  const auto request = [](const std::string& id, const std::string& messages) {
    return fmt::format(R"({{"custom_id":"{}","url":"/v1/chat/completions",)"
                       R"("body":{{"max_tokens":8,"ignore_eos":true,"messages":{}}}}})"
                       "\n",
                       id, messages);
  };
  Write("in.jsonl",
        request("text", R"([{"role":"user","content":"ab"},{"role":"assistant","content":"c"}])") +
            request("parts", R"([{"role":"user","content":[{"type":"text","text":"ab"}]},)"
                             R"({"role":"assistant","content":"","tool_calls":[{"function":)"
                             R"({"name":"f","arguments":"{\"a\":\"c\"}"}}]}])") +
            request("image", R"([{"role":"user","content":[{"type":"image_url"}]}])"));
  ASSERT_EQ(RunBatch("out.jsonl").status, kSuccess);
  std::map<std::string, nlohmann::json> bodies;
  std::istringstream lines(Read("out.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    bodies[json["custom_id"]] = json["error"].is_null() ? json["response"]["body"] : json["error"];
  }
  EXPECT_EQ(bodies["text"]["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(bodies["parts"]["usage"], bodies["text"]["usage"]);
  EXPECT_EQ(bodies["parts"]["choices"], bodies["text"]["choices"]);
  EXPECT_THAT(bodies["image"]["message"].get<std::string>(), HasSubstr("only text is supported"));
}

// The configuration names no end-of-text token, the tokenizer does.
TEST_F(CommandsTest, BatchLeavesTheTokenizersEndOfTextTokenOut) {
  nlohmann::json config = nlohmann::json::parse(Read("model/config.json"));
  config.erase("eos_token_id");
  Write("model/config.json", config.dump());
  const std::string line = R"({"custom_id":"r","url":"/v1/completions",)"
                           R"("body":{"prompt":"hello","max_tokens":30,"logprobs":0}})";
  Write("in.jsonl", line);
  const auto choice_and_count = [&](const std::string& output) {
    EXPECT_EQ(RunBatch(output).status, kSuccess);
    const nlohmann::json body = nlohmann::json::parse(Read(output))["response"]["body"];
    return std::pair(body["choices"][0], body["usage"]["completion_tokens"].get<size_t>());
  };
  const auto [endless, num_endless] = choice_and_count("endless.jsonl");
  EXPECT_EQ(endless["finish_reason"], "length");
  EXPECT_EQ(num_endless, 30u);

  const nlohmann::json& tokens = endless["logprobs"]["tokens"];
  const auto eos = std::find(tokens.begin() + 1, tokens.end(), tokens[5]);
  const auto num_before = static_cast<size_t>(eos - tokens.begin());
  Write("model/tokenizer_config.json", nlohmann::json{{"eos_token", *eos}}.dump());
  const auto [ended, num_ended] = choice_and_count("ended.jsonl");
  EXPECT_EQ(ended["finish_reason"], "stop");
  EXPECT_EQ(num_ended, num_before);
  EXPECT_EQ(ended["logprobs"]["tokens"].size(), num_before);
  EXPECT_THAT(endless["text"].get<std::string>(), StartsWith(ended["text"].get<std::string>()));
}

TEST_F(CommandsTest, BatchOnAFullDiskStopsAndSaysSo) {
  Write("in.jsonl", Request(1));
  const Outcome outcome =
      Run({"batch", model_, "--input", Path("in.jsonl"), "--output", "/dev/full"});
  EXPECT_EQ(outcome.status, kFailure);
  EXPECT_THAT(outcome.err, HasSubstr("No space left"));
}

}  // namespace
}  // namespace convene::cli
