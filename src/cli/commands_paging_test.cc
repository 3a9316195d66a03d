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

TEST_F(CommandsPagingTest, ABatchNamesTheLeastOfWhatItWouldChoose) {
  std::string input;
  for (int id = 0; id < 40; ++id) {
    input += fmt::format(R"({{"custom_id":"r{}","method":"POST","url":"/v1/completions",)"
                         R"("body":{{"model":"m","prompt":"hello there","max_tokens":4}}}})"
                         "\n",
                         id);
  }
  Write("in.jsonl", input);
  const auto run = [&](const std::string& budget, const std::vector<std::string>& more) {
    std::vector<std::string> words = {
        "batch",     model_, "--input",    Path("in.jsonl"), "--output",        Path("out.jsonl"),
        "--weights", "int8", "--page-dir", Path("pages"),    "--memory-budget", budget};
    words.insert(words.end(), more.begin(), more.end());
    return Run(words);
  };
  const Outcome refused = run("1.5MiB", {});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("and steps of 64: the least budget is"));
  const Outcome usual =
      run("1.5MiB", {"--chunk", "512", "--max-batch", "32", "--spill-dir", "none"});
  EXPECT_EQ(usual.status, 1);
  EXPECT_LE(LeastOf(refused.err), LeastOf(usual.err));
  const Outcome paged = run(fmt::format("{}MiB", LeastOf(refused.err)), {});
  EXPECT_EQ(paged.status, 0) << paged.err;
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
  EXPECT_THAT(stopped.err, HasSubstr("where convene made " + packed + " itself"));
  EXPECT_THAT(stopped.err, HasSubstr("1 request answered before that is in " + Path("out.jsonl")));
  EXPECT_EQ(Read("out.jsonl"), before) << "what is finished stays, and nobody is refused";
  const Outcome measured =
      Run({"bench", packed, "-p", "16", "-n", "2", "--batch", "1", "--repeat", "1", "--no-peaks",
           "--chunk", "64", "--threads", "1", "--memory-budget", least});
  EXPECT_EQ(measured.status, kFailure);
  EXPECT_THAT(measured.err, HasSubstr("tensor \"layers.3.experts."));

  FlipExperts(packed, 3);
  const Outcome rest = run(least);
  EXPECT_EQ(rest.status, 0) << rest.err;
  EXPECT_THAT(Read("out.jsonl"), testing::StartsWith(before));
  EXPECT_THAT(Read("out.jsonl"), HasSubstr("\"r2\""));
}

TEST_F(CommandsPagingTest, AMappedFileIsComputedWithAsItIsAndIsNoPartOfTheBudget) {
  const std::string packed = Path("packed");
  ASSERT_EQ(Run({"quantize", model_, "--weights", "int8", "--out", packed}).status, 0);
  const auto words = [&](const std::string& model, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"run", model,           "-p", "hello there", "-n",
                                    "12",  "--temperature", "0",  "--context",   "64"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Outcome placed = Run(words(packed, {}));
  const Outcome mapped = Run(words(packed, {"--offload", "mmap"}));
  ASSERT_EQ(mapped.status, 0) << mapped.err;
  EXPECT_EQ(mapped.out, placed.out);
  EXPECT_THAT(mapped.err, HasSubstr("stay in the mapped file"));
  const Outcome unpacked = Run(words(model_, {"--offload", "mmap"}));
  EXPECT_NE(unpacked.status, 0);
  EXPECT_THAT(unpacked.err, HasSubstr("convene quantize"));
}

TEST_F(CommandsPagingTest, KeysAndValuesOfABatchMayLieOnADiskAndChangeNoAnswer) {
  const std::string packed = Path("packed");
  ASSERT_EQ(
      Run({"quantize", CONVENE_SOURCE_DIR "/models/demo", "--weights", "int8", "--out", packed})
          .status,
      0);
  std::string input;
  for (int id = 0; id < 64; ++id) {
    input += fmt::format(R"({{"custom_id":"r{}","method":"POST","url":"/v1/completions",)"
                         R"("body":{{"model":"m","prompt":"The captain of ship {} said",)"
                         R"("max_tokens":{},"temperature":0}}}})"
                         "\n",
                         id, id * id, 20 + id % 40);
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
    const std::vector<std::string> many = {"--max-batch", "64", "--kv-cache", format};
    std::vector<std::string> in_memory = many;
    in_memory.insert(in_memory.end(), {"--spill-dir", "none"});
    // So little that experts must stay on the disk: of the least that is named 4 MiB are for what
    // the process may take besides.
    const int least = LeastOf(run(Path("refused.jsonl"), "2MiB", in_memory).err);
    const std::string budget = fmt::format("{}MiB", least - 2);
    const std::string name = fmt::format("{}.jsonl", format);
    in_memory.insert(in_memory.end(), {"--json", Path("figures.json")});
    const Outcome stays = run(Path("memory_" + name), budget, in_memory);
    ASSERT_EQ(stays.status, 0) << stays.err;
    ASSERT_THAT(stays.err, HasSubstr("paged: "));
    EXPECT_THAT(stays.err, Not(HasSubstr("on the disk in")));
    EXPECT_THAT(stays.err, HasSubstr("for every 100 that were computed with"));
    nlohmann::json figures = nlohmann::json::parse(Read("figures.json"));
    EXPECT_EQ(figures["chosen"]["sequences"], 64);
    EXPECT_EQ(figures["chosen"]["step_tokens"], 64);
    EXPECT_EQ(figures["chosen"]["kv"], format);
    EXPECT_GT(figures["chosen"]["kv_blocks_in_memory"], 0);
    EXPECT_EQ(figures["chosen"]["kv_blocks_on_disk"], 0);
    EXPECT_GT(figures["paged"]["pages_read"], 0);
    EXPECT_GT(figures["paged"]["read_bytes"], 0);
    EXPECT_LT(figures["paged"]["found_in_memory_share"], 1);
    EXPECT_TRUE(figures["spilled"].is_null());
    EXPECT_GT(figures["peak_resident_bytes"], 0);
    std::vector<std::string> on_disk = many;
    on_disk.insert(on_disk.end(), {"--spill-dir", Path("spill"), "--json", Path("figures.json")});
    const Outcome spilled = run(Path("disk_" + name), budget, on_disk);
    ASSERT_EQ(spilled.status, 0) << spilled.err;
    EXPECT_THAT(spilled.err, HasSubstr("keys and values of 64 sequences, "));
    EXPECT_THAT(spilled.err, HasSubstr("% on the disk in " + Path("spill")));
    EXPECT_THAT(spilled.err, HasSubstr("spilled: "));
    figures = nlohmann::json::parse(Read("figures.json"));
    EXPECT_GT(figures["chosen"]["kv_blocks_on_disk"], 0);
    EXPECT_GT(figures["spilled"]["read_bytes"], 0);
    EXPECT_GT(figures["spilled"]["written_bytes"], 0);
    std::error_code failed;
    EXPECT_TRUE(fs::is_empty(Path("spill"), failed)) << failed.message();
    EXPECT_EQ(answers("disk_" + name).size(), 64u);
    EXPECT_EQ(answers("disk_" + name), answers("memory_" + name));
    if (std::string(format) == "bf16") {
      EXPECT_EQ(answers("disk_" + name), answers("whole.jsonl"));
    }
  }
}

TEST_F(CommandsPagingTest, BenchKeepsRoomForAllOfItsSequences) {
  const std::string demo = CONVENE_SOURCE_DIR "/models/demo";
  const auto bench = [&](const std::string& budget, const std::string& batch) {
    return Run({"bench",    demo,         "-p",         "100",         "-n",
                "2",        "--batch",    batch,        "--weights",   "f32",
                "--repeat", "1",          "--chunk",    "64",          "--threads",
                "1",        "--no-peaks", "--page-dir", Path("pages"), "--memory-budget",
                budget});
  };
  // Of which keys and values of 32 sequences take 16 MiB, and all experts more than is left.
  const int least = LeastOf(bench("2MiB", "1").err);
  const std::string budget = fmt::format("{}MiB", least + 16);
  const Outcome all = bench(budget, "1,32");
  ASSERT_EQ(all.status, 0) << all.err;
  EXPECT_THAT(all.err, HasSubstr("paged: "));
  const Outcome too_many = bench(budget, "1,64");
  EXPECT_EQ(too_many.status, kFailure);
  EXPECT_THAT(too_many.err, HasSubstr("batch 64 needs 128 blocks of KV cache"));
  EXPECT_THAT(too_many.err, HasSubstr("or give more memory (--memory-budget)"));
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
  EXPECT_THAT(whole.out, HasSubstr("convene run takes bf16 weights, the most precise that fit."));
}

TEST_F(CommandsPagingTest, InspectAndRunChooseAlike) {
  const std::string demo = CONVENE_SOURCE_DIR "/models/demo";
  const auto call = [&](std::vector<std::string> words, const std::string& budget) {
    words.insert(words.end(), {"--weights", "int8", "--context", "64", "--memory-budget", budget});
    return Run(words);
  };
  const std::vector<std::string> run = {
      "run",           demo, "-p",         "The captain", "-n", "2",
      "--temperature", "0",  "--page-dir", Path("pages")};
  // What the process takes besides is there from now on.
  ASSERT_EQ(call(run, "1GiB").status, 0);
  // So little that experts must stay on the disk: of the least that is named 4 MiB are for what
  // the process may take besides.
  const int least = LeastOf(call({"inspect", demo}, "2MiB").out);
  const std::string budget = fmt::format("{}MiB", least - 2);
  const Outcome told = call({"inspect", demo, "--json", Path("inspect.json")}, budget);
  ASSERT_EQ(told.status, 0) << told.err;
  EXPECT_THAT(told.out, HasSubstr("convene run takes int8 weights: memory has room for "));
  EXPECT_THAT(told.out, HasSubstr("of 32 experts, and the others are read from the disk"));
  const auto json = nlohmann::json::parse(Read("inspect.json"))["run"];
  EXPECT_EQ(json["weights"], "int8");
  EXPECT_LT(json["experts_in_memory"], json["experts"]);
  const Outcome ran = call(run, budget);
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("paged: "));
  EXPECT_THAT(ran.err, HasSubstr("request: 1 sequence at a time in steps of at most "));
  std::vector<std::string> with_chunk = run;
  with_chunk.insert(with_chunk.end(), {"--chunk", "32"});
  const Outcome kept = call(with_chunk, budget);
  ASSERT_EQ(kept.status, 0) << kept.err;
  EXPECT_EQ(kept.out, ran.out);
  EXPECT_THAT(kept.err, Not(HasSubstr("request: ")));
}

}  // namespace
}  // namespace convene::cli
