// `convene batch` as a user calls it.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "base/environment.h"
#include "base/version.h"
#include "cli/commands_test.h"
#include "cost/machine_profile.h"
#include "hardware/topology.h"
#include "kernels/choose_kernels.h"
#include "openai/batch_results.h"
#include "planner/invented_costs_test.h"

namespace convene::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Where profiles are kept meanwhile.
class KeptIn {
 public:
  explicit KeptIn(const std::string& directory) : before_(EnvironmentVariable(kName)) {
    setenv(kName, directory.c_str(), 1);
  }
  ~KeptIn() {
    if (before_) {
      setenv(kName, before_->c_str(), 1);
    } else {
      unsetenv(kName);
    }
  }

 private:
  static constexpr const char* kName = "CONVENE_CACHE_DIR";
  std::optional<std::string> before_;
};

class BatchCommandTest : public CommandsTest {
 protected:
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
};

TEST_F(BatchCommandTest, ResumesAfterATornLastLineWithTheSameResults) {
  std::string input;
  for (int id = 0; id < 4; ++id) input += Request(id);
  Write("in.jsonl", input + "{broken\n" + Request(1));  // r1 twice
  ASSERT_EQ(RunBatch("whole.jsonl").status, kInPart);
  const std::string whole = Read("whole.jsonl");
  ASSERT_EQ(std::count(whole.begin(), whole.end(), '\n'), 6);

  const size_t last = whole.rfind('\n', whole.size() - 2) + 1;
  for (const size_t size : {size_t{0}, whole.find('\n') + 1, last - 1, last, last + 1,
                            (last + whole.size()) / 2, whole.size() - 1}) {
    Write("torn.jsonl", whole.substr(0, size));
    const Outcome rerun = RunBatch("torn.jsonl");
    ASSERT_EQ(rerun.status, kInPart) << rerun.err;
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
  // Refused lines are tried again, and answers stay.
  EXPECT_EQ(RunBatch("whole.jsonl").status, kInPart);
  const auto sorted_lines = [](const std::string& text) {
    std::multiset<std::string> sorted;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) sorted.insert(line);
    return sorted;
  };
  EXPECT_EQ(sorted_lines(Read("whole.jsonl")), sorted_lines(whole));
}

TEST_F(BatchCommandTest, PaddingChangesNoAnswer) {
  std::string input;
  for (int id = 0; id < 5; ++id) input += Request(id);
  Write("in.jsonl", input);
  ASSERT_EQ(RunBatch("plain.jsonl").status, kSuccess);
  const Outcome padded = Run({"batch", model_, "--input", Path("in.jsonl"), "--output",
                              Path("padded.jsonl"), "--padded", "--json", Path("padded.json")});
  ASSERT_EQ(padded.status, kSuccess) << padded.err;
  EXPECT_EQ(Results("padded.jsonl"), Results("plain.jsonl"));
  EXPECT_THAT(padded.err, HasSubstr("padded: each prompt to "));
  const nlohmann::json figures = nlohmann::json::parse(Read("padded.json"));
  EXPECT_GT(figures["padding_tokens"], 100);
  EXPECT_TRUE(figures["paged"].is_null()) << "all experts are in memory";
  EXPECT_TRUE(figures["chosen"].is_null());
}

TEST_F(BatchCommandTest, WhereAllIsAnsweredThereIsNothingToDo) {
  Write("in.jsonl", Request(1) + Request(2));
  ASSERT_EQ(RunBatch("out.jsonl").status, kSuccess);
  const std::string whole = Read("out.jsonl");
  const Outcome rerun = RunBatch("out.jsonl");
  EXPECT_EQ(rerun.status, kSuccess);
  EXPECT_THAT(rerun.err, HasSubstr("nothing to do"));
  EXPECT_EQ(Read("out.jsonl"), whole);
}

TEST_F(BatchCommandTest, TriesRefusedLinesAgainWithOtherOptions) {
  Write("in.jsonl", Request(0) + Request(4) + Request(1));  // the second is too long at first
  const std::vector<std::string> words = {
      "batch", model_, "--input", Path("in.jsonl"), "--output", Path("out.jsonl"), "--context"};
  const auto with_context = [&](const char* context) {
    std::vector<std::string> all = words;
    all.emplace_back(context);
    return Run(all);
  };
  const Outcome first = with_context("64");
  EXPECT_EQ(first.status, kInPart);
  EXPECT_THAT(first.err, HasSubstr("1 of 3 lines was refused"));
  EXPECT_THAT(Results("out.jsonl").at("r4"), HasSubstr("raise --context"));
  EXPECT_EQ(with_context("64").status, kInPart);
  const std::map<std::string, std::string> refused = Results("out.jsonl");  // none is doubled
  EXPECT_EQ(refused.size(), 3u);

  const Outcome second = with_context("256");
  EXPECT_EQ(second.status, kSuccess) << second.err;
  const std::map<std::string, std::string> answered = Results("out.jsonl");
  EXPECT_EQ(answered.size(), 3u);
  EXPECT_EQ(answered.at("r0"), refused.at("r0"));
  EXPECT_EQ(answered.at("r4").find("--context"), std::string::npos);
}

// The same results file may serve several inputs.
TEST_F(BatchCommandTest, RefusalsOfOtherInputsStay) {
  Write("in.jsonl", R"({"custom_id":"other","url":"/v1/completions","body":{}})");
  ASSERT_EQ(RunBatch("out.jsonl").status, kInPart);
  Write("in.jsonl", Request(1));
  ASSERT_EQ(RunBatch("out.jsonl").status, kSuccess);
  EXPECT_EQ(Results("out.jsonl").size(), 2u);
}

TEST_F(BatchCommandTest, RefusesFieldsThatItDoesNotKnow) {
  Write(
      "in.jsonl",
      R"({"custom_id":"a","url":"/v1/completions","body":{"prompt":"x","max_token":3}})"
      "\n"
      R"({"custom_id":"b","url":"/v1/completions","body":{"prompt":"x","max_tokens":3,"user":"u"}})"
      "\n");
  EXPECT_EQ(RunBatch("out.jsonl").status, kInPart);
  EXPECT_THAT(Results("out.jsonl").at("a"), HasSubstr("did you mean max_tokens?"));
  EXPECT_EQ(Results("out.jsonl").at("b").find("line"), std::string::npos);
}

TEST_F(BatchCommandTest, WritesToStandardOutput) {
  Write("in.jsonl", Request(1));
  const Outcome outcome = Run({"batch", model_, "--input", Path("in.jsonl"), "--output", "-"});
  EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["custom_id"], "r1");
  EXPECT_FALSE(fs::exists("-"));
  const Outcome both =
      Run({"batch", model_, "--input", Path("in.jsonl"), "--output", "-", "--json", "-"});
  EXPECT_EQ(both.status, kUsage);
  EXPECT_THAT(both.err, HasSubstr("standard output"));
}

// An encoder takes its input whole: what `encode` takes without --chunk, batch takes, too.
TEST_F(BatchCommandTest, TakesInputsAsLongAsEncodeDoes) {
  const fs::path fixture = CONVENE_SOURCE_DIR "/tests/golden/models/switch_plain";
  const fs::path model = directory_ / "switch";
  fs::create_directories(model);
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy_file(fixture / name, model / name);
  }
  fs::copy_file(model_ / "tokenizer.json", model / "tokenizer.json");
  const std::string text(600, 'a');
  const Outcome encoded = Run({"encode", model, "--text", text, "--out", Path("states.npy")});
  EXPECT_EQ(encoded.status, kSuccess) << encoded.err;
  Write("in.jsonl",
        R"({"custom_id":"r","url":"/v1/completions","body":{"max_tokens":2,"prompt":")" + text +
            "\"}}");
  const Outcome outcome =
      Run({"batch", model, "--input", Path("in.jsonl"), "--output", Path("out.jsonl")});
  EXPECT_EQ(outcome.status, kSuccess) << Read("out.jsonl");
  const Outcome run = Run({"run", model, "--prompt", text, "--max-tokens", "2"});
  EXPECT_EQ(run.status, kSuccess) << run.err;
  const Outcome chunked = Run({"batch", model, "--input", Path("in.jsonl"), "--output",
                               Path("chunked.jsonl"), "--chunk", "512"});
  EXPECT_EQ(chunked.status, kInPart);
  EXPECT_THAT(Read("chunked.jsonl"), HasSubstr("raise --chunk"));
}

TEST_F(BatchCommandTest, AnswersEqualThoseAlone) {
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

// One process measures nothing by itself: costs of this machine that are kept say how many of the
// requests are answered soonest together, and the answers stay.
TEST_F(BatchCommandTest, RunsAsManyTogetherAsKeptCostsWant) {
  std::string input;
  for (int i = 0; i < 200; ++i) {
    input += fmt::format(R"({{"custom_id":"r{0}","method":"POST","url":"/v1/completions",)"
                         R"("body":{{"model":"m","prompt":"{1}","max_tokens":3,"temperature":0}}}})"
                         "\n",
                         i, std::string(1 + i % 5, static_cast<char>('a' + i % 26)));
  }
  Write("in.jsonl", input);
  const auto batch = [&](const std::string& output, std::vector<std::string> more) {
    more.insert(more.begin(),
                {"batch", model_, "--weights", "bf16", "--threads", "1", "--input",
                 Path("in.jsonl"), "--output", Path(output), "--json", Path("figures.json")});
    const Outcome outcome = Run(more);
    EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
    return outcome.err;
  };
  const auto together = [&] {
    return nlohmann::json::parse(Read("figures.json"))["max_batch"].get<int>();
  };
  const KeptIn kept(Path("cache"));
  // Without costs, as many as usual rates of memory and cores want.
  EXPECT_THAT(batch("usual.jsonl", {}), Not(HasSubstr("plan: ")));
  const int by_rates = together();
  EXPECT_GE(by_rates, 32);

  cost::MachineProfile profile;
  profile.machine.SetCpu(hardware::ReadTopology()->cpu);
  profile.machine.isa = (*kernels::ChooseKernels())->name;
  profile.machine.cpus = {0};
  profile.steps = {planner::InventedCosts(1, 1e9, "bf16")};
  profile.steps[0].version = kVersion;
  fs::create_directories(Path("cache"));
  Write("cache/profile.json", cost::ToJson(profile).dump());
  const std::string said = batch("chosen.jsonl", {});
  EXPECT_THAT(said, HasSubstr("plan: 1 rank x 1 thread, bf16"));
  EXPECT_THAT(said, HasSubstr(fmt::format("{} of 200 requests run together; ", together())));
  EXPECT_GT(together(), 32);
  EXPECT_EQ(Results("chosen.jsonl"), Results("usual.jsonl"));
  // What is asked for is done.
  EXPECT_THAT(batch("asked.jsonl", {"--max-batch", "7"}), Not(HasSubstr("run together")));
  EXPECT_EQ(together(), 7);
  EXPECT_THAT(batch("no_plan.jsonl", {"--no-plan"}), Not(HasSubstr("plan: ")));
  EXPECT_EQ(together(), 32) << "nothing is chosen";
  // Costs of another version say nothing.
  profile.steps[0].version = "0.0.1";
  Write("cache/profile.json", cost::ToJson(profile).dump());
  batch("other.jsonl", {});
  EXPECT_EQ(together(), by_rates);
}

TEST_F(BatchCommandTest, RefusesAnOutputThatAnotherRunIsWriting) {
  Write("in.jsonl", Request(1));
  const Result<openai::BatchResults> other = openai::BatchResults::Open(Path("out.jsonl"));
  ASSERT_TRUE(other.ok());
  const Outcome outcome = RunBatch("out.jsonl");
  EXPECT_EQ(outcome.status, kFailure);
  EXPECT_THAT(outcome.err, HasSubstr("another run is writing"));
}

TEST_F(BatchCommandTest, LeavesItsInputAloneWhereItIsTheOutput) {
  for (const std::string& input : {Request(1), Request(1).substr(0, Request(1).size() - 1)}) {
    Write("in.jsonl", input);
    EXPECT_EQ(RunBatch("in.jsonl").status, kUsage);
    EXPECT_EQ(Read("in.jsonl"), input);
    // By a name that does not show it.
    fs::remove(Path("link.jsonl"));
    fs::create_hard_link(Path("in.jsonl"), Path("link.jsonl"));
    EXPECT_EQ(RunBatch("link.jsonl").status, kUsage);
    EXPECT_EQ(Read("in.jsonl"), input);
    // The requests of another run are no results either.
    fs::copy_file(Path("in.jsonl"), Path("copy.jsonl"), fs::copy_options::overwrite_existing);
    const Outcome outcome = RunBatch("copy.jsonl");
    EXPECT_EQ(outcome.status, kFailure);
    EXPECT_THAT(outcome.err, HasSubstr("something else than batch results"));
    EXPECT_EQ(Read("copy.jsonl"), input);
  }
}

TEST_F(BatchCommandTest, WritesItsFiguresWhereThereIsNothingToDo) {
  Write("in.jsonl", "\n \r\n");
  const Outcome outcome = Run(
      {"batch", model_, "--input", Path("in.jsonl"), "--output", Path("out.jsonl"), "--json", "-"});
  EXPECT_EQ(outcome.status, kSuccess);
  EXPECT_THAT(outcome.err, HasSubstr("in.jsonl holds no requests"));
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["answered"], 0);
}

TEST_F(BatchCommandTest, SamplesEqualPromptsDifferentlyAndARerunTheSame) {
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

TEST_F(BatchCommandTest, TakesContentsInPartsAndArgumentsAsText) {
  Write("model/tokenizer_config.json",
        R"({"chat_template": "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %})"
        R"({{ c.function.name + c.function.arguments.a }}{% endfor %};{% endfor %}"})");
  const auto request = [](const std::string& id, const std::string& messages) {
    return fmt::format(R"({{"custom_id":"{}","url":"/v1/chat/completions",)"
                       R"("body":{{"max_tokens":8,"ignore_eos":true,"messages":{}}}}})"
                       "\n",
                       id, messages);
  };
  Write("in.jsonl",
        request("text", R"([{"role":"user","content":"ab"},{"role":"assistant","content":"cd"}])") +
            request("parts", R"([{"role":"user","content":[{"type":"text","text":"ab"}]},)"
                             R"({"role":"assistant","content":"","tool_calls":[{"function":)"
                             R"({"name":"c","arguments":"{\"a\":\"d\"}"}}]}])") +
            request("image", R"([{"role":"user","content":[{"type":"image_url"}]}])"));
  ASSERT_EQ(RunBatch("out.jsonl").status, kInPart);
  std::map<std::string, nlohmann::json> bodies;
  std::istringstream lines(Read("out.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    bodies[json["custom_id"]] = json["error"].is_null() ? json["response"]["body"] : json["error"];
  }
  EXPECT_EQ(bodies["text"]["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(bodies["parts"]["usage"], bodies["text"]["usage"]);
  EXPECT_EQ(bodies["parts"]["choices"], bodies["text"]["choices"]);
  EXPECT_THAT(bodies["image"]["message"].get<std::string>(), HasSubstr("only text is supported"));
}

// The configuration names no end-of-text token, the tokenizer does.
TEST_F(BatchCommandTest, LeavesTheTokenizersEndOfTextTokenOut) {
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

TEST_F(BatchCommandTest, ChatsThatDoNotSayEndWhereTheModelsAuthorsWantIt) {
  Write("model/generation_config.json", R"({"max_new_tokens": 5})");
  const auto chat = [](const std::string& id, const std::string& fields) {
    return fmt::format(
        R"({{"custom_id":"{}","url":"/v1/chat/completions",)"
        R"("body":{{"ignore_eos":true,"messages":[{{"role":"user","content":"ab"}}]{}}}}})"
        "\n",
        id, fields);
  };
  Write("in.jsonl", chat("silent", "") + chat("asked", R"(,"max_tokens":7)"));
  ASSERT_EQ(RunBatch("out.jsonl").status, kSuccess);
  std::map<std::string, int> num_tokens;
  std::istringstream lines(Read("out.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    num_tokens[json["custom_id"]] = json["response"]["body"]["usage"]["completion_tokens"];
  }
  EXPECT_EQ(num_tokens, (std::map<std::string, int>{{"asked", 7}, {"silent", 5}}));
}

TEST_F(BatchCommandTest, OnAFullDiskStopsAndSaysSo) {
  Write("in.jsonl", Request(1));
  const Outcome outcome =
      Run({"batch", model_, "--input", Path("in.jsonl"), "--output", "/dev/full"});
  EXPECT_EQ(outcome.status, kFailure);
  EXPECT_THAT(outcome.err, HasSubstr("No space left"));
}

}  // namespace
}  // namespace convene::cli
