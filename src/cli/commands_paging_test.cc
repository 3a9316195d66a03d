// A memory budget: what is read from the disk in place of lying in memory changes no answer.
#include <charconv>
#include <map>
#include <sstream>
#include <system_error>

#include "cli/commands_test.h"

namespace convene::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

class CommandsPagingTest : public CommandsTest {
 protected:
  // The words of `run`, with a context that needs little.
  std::vector<std::string> RunWords(const std::string& model, const std::string& budget) const {
    std::vector<std::string> words = {
        "run", model,       "-p",   "hello there", "-n", "12",         "--temperature",
        "0",   "--weights", "int8", "--context",   "64", "--page-dir", Path("pages")};
    if (!budget.empty()) words.insert(words.end(), {"--memory-budget", budget});
    return words;
  }

  // The least budget that an error names, in MiB.
  static int LeastOf(const std::string& error) {
    const std::string before = "--memory-budget ";
    const size_t at = error.rfind(before);
    CHECK(at != error.npos, "{}", error);
    int mebibytes = 0;
    std::from_chars(error.data() + at + before.size(), error.data() + error.size(), mebibytes);
    return mebibytes;
  }
};

TEST_F(CommandsPagingTest, ABudgetThatIsTooSmallNamesTheLeastWhichThenDoes) {
  const Outcome whole = Run(RunWords(model_, ""));
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_THAT(whole.err, Not(HasSubstr("paged: ")));
  const Outcome refused = Run(RunWords(model_, "1.5 MiB"));
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("the least budget is --memory-budget "));
  EXPECT_FALSE(fs::exists(Path("pages"))) << "nothing is packed in vain";
  const std::string least = fmt::format("{}MiB", LeastOf(refused.err));
  const Outcome paged = Run(RunWords(model_, least));
  ASSERT_EQ(paged.status, 0) << paged.err;
  EXPECT_EQ(paged.out, whole.out);
}

// Of a packed directory: changes a bit of each expert of a layer, or changes it back.
void FlipExperts(const std::string& directory, int layer) {
  const std::string path = directory + "/convene.safetensors";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header_bytes = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  std::string header(header_bytes, ' ');
  file.read(header.data(), static_cast<std::streamsize>(header_bytes));
  int num_flipped = 0;
  const nlohmann::json tensors = nlohmann::json::parse(header);
  for (const auto& [name, tensor] : tensors.items()) {
    if (!name.starts_with(fmt::format("layers.{}.experts.", layer)) || !name.ends_with(".down")) {
      continue;
    }
    const uint64_t begin = tensor["data_offsets"][0];
    const auto offset = static_cast<std::streamoff>(sizeof(header_bytes) + header_bytes + begin);
    char byte = 0;
    file.seekg(offset).get(byte);
    file.seekp(offset).put(static_cast<char>(byte ^ 4));
    ++num_flipped;
  }
  ASSERT_GT(num_flipped, 0);
}

TEST_F(CommandsPagingTest, ABatchStopsAtADamagedPageAndGoesOnOnceItIsWhole) {
  const std::string packed = Path("packed");
  ASSERT_EQ(
      Run({"quantize", CONVENE_SOURCE_DIR "/models/demo", "--weights", "int8", "--out", packed})
          .status,
      0);
  const auto request = [](int id) {
    return fmt::format(R"({{"custom_id":"r{}","method":"POST","url":"/v1/completions",)"
                       R"("body":{{"model":"m","prompt":"The captain","max_tokens":4}}}})"
                       "\n",
                       id);
  };
  const auto run = [&](const std::string& budget) {
    return Run({"batch", packed, "--input", Path("in.jsonl"), "--output", Path("out.jsonl"),
                "--context", "64", "--max-batch", "2", "--chunk", "64", "--threads", "1",
                "--memory-budget", budget});
  };
  Write("in.jsonl", request(1));
  const std::string least = fmt::format("{}MiB", LeastOf(run("2MiB").err));
  const Outcome first = run(least);
  ASSERT_EQ(first.status, 0) << first.err;
  ASSERT_THAT(first.err, HasSubstr("paged: "));

  Write("in.jsonl", request(1) + request(2));
  const std::string before = Read("out.jsonl");
  FlipExperts(packed, 3);
  const Outcome stopped = run(least);
  EXPECT_EQ(stopped.status, kFailure) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("tensor \"layers.3.experts."));
  EXPECT_THAT(stopped.err, HasSubstr("again when it was read once more"));
  EXPECT_THAT(stopped.err, HasSubstr("1 request answered before that is in " + Path("out.jsonl")));
  EXPECT_EQ(Read("out.jsonl"), before) << "what is finished stays, and nobody is refused";

  FlipExperts(packed, 3);
  const Outcome rest = run(least);
  EXPECT_EQ(rest.status, 0) << rest.err;
  EXPECT_THAT(Read("out.jsonl"), testing::StartsWith(before));
  EXPECT_THAT(Read("out.jsonl"), HasSubstr("\"r2\""));
}

TEST_F(CommandsPagingTest, KeysAndValuesOfABatchMayLieOnADiskAndChangeNoAnswer) {
  const std::string packed = Path("packed");
  ASSERT_EQ(
      Run({"quantize", CONVENE_SOURCE_DIR "/models/demo", "--weights", "int8", "--out", packed})
          .status,
      0);
  std::string input;
  for (int id = 0; id < 40; ++id) {
    input += fmt::format(R"({{"custom_id":"r{}","method":"POST","url":"/v1/completions",)"
                         R"("body":{{"model":"m","prompt":"The captain of ship {} said",)"
                         R"("max_tokens":{},"temperature":0}}}})"
                         "\n",
                         id, id * id, 20 + id);
  }
  Write("in.jsonl", input);
  const auto run = [&](const std::string& output, const std::string& budget,
                       std::vector<std::string> more) {
    std::vector<std::string> words = {"batch",     packed, "--input",   Path("in.jsonl"),
                                      "--output",  output, "--chunk",   "64",
                                      "--threads", "1",    "--context", "128"};
    if (!budget.empty()) words.insert(words.end(), {"--memory-budget", budget});
    words.insert(words.end(), more.begin(), more.end());
    return Run(words);
  };
  // Text by custom_id, whatever the order.
  const auto answers = [&](const std::string& name) {
    std::map<std::string, std::string> texts;
    std::istringstream lines(Read(name));
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json result = nlohmann::json::parse(line);
      texts[result["custom_id"]] = result["response"]["body"]["choices"][0]["text"];
    }
    return texts;
  };
  ASSERT_EQ(run(Path("whole.jsonl"), "", {}).status, 0);
  for (const char* format : {"bf16", "int8"}) {
    const std::vector<std::string> many = {"--max-batch", "40", "--kv-cache", format};
    std::vector<std::string> in_memory = many;
    in_memory.insert(in_memory.end(), {"--spill-dir", "none"});
    // So little that experts must stay on the disk: of the least that is named 4 MiB are for what
    // the process may take besides.
    const int least = LeastOf(run(Path("refused.jsonl"), "2MiB", in_memory).err);
    const std::string budget = fmt::format("{}MiB", least - 2);
    const std::string name = fmt::format("{}.jsonl", format);
    const Outcome stays = run(Path("memory_" + name), budget, in_memory);
    ASSERT_EQ(stays.status, 0) << stays.err;
    ASSERT_THAT(stays.err, HasSubstr("paged: "));
    EXPECT_THAT(stays.err, Not(HasSubstr("on the disk in")));
    std::vector<std::string> on_disk = many;
    on_disk.insert(on_disk.end(), {"--spill-dir", Path("spill")});
    const Outcome spilled = run(Path("disk_" + name), budget, on_disk);
    ASSERT_EQ(spilled.status, 0) << spilled.err;
    EXPECT_THAT(spilled.err, HasSubstr("keys and values of 40 sequences, "));
    EXPECT_THAT(spilled.err, HasSubstr("% on the disk in " + Path("spill")));
    EXPECT_THAT(spilled.err, HasSubstr("spilled: "));
    std::error_code failed;
    EXPECT_TRUE(fs::is_empty(Path("spill"), failed)) << failed.message();
    EXPECT_EQ(answers("disk_" + name).size(), 40u);
    EXPECT_EQ(answers("disk_" + name), answers("memory_" + name));
    if (std::string(format) == "bf16") {
      EXPECT_EQ(answers("disk_" + name), answers("whole.jsonl"));
    }
  }
}

TEST_F(CommandsPagingTest, BudgetsHaveAUnitAndAreMoreThanNothing) {
  for (const char* words : {"much", "0GiB", "-3GiB", "6", "1e400GiB"}) {
    const Outcome refused = Run(RunWords(model_, words));
    EXPECT_EQ(refused.status, 2) << words << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("--memory-budget"));
  }
}

TEST_F(CommandsPagingTest, InspectSaysWhatABudgetMeans) {
  const Outcome whole = Run({"inspect", model_});
  EXPECT_THAT(whole.out, HasSubstr("It fits here"));
  const Outcome little = Run({"inspect", model_, "--memory-budget", "2MB"});
  ASSERT_EQ(little.status, 0) << little.err;
  EXPECT_THAT(little.out,
              HasSubstr("available (--memory-budget 1.91 MiB, of which the program has "));
  EXPECT_THAT(little.out, HasSubstr("It does not fit here"));
  EXPECT_THAT(little.out, HasSubstr("It does not run here: not enough memory"));
}

}  // namespace
}  // namespace convene::cli
