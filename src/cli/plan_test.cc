#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands_test.h"
#include "cli/invented_profile_test.h"
#include "cli/mixtral_config_test.h"
#include "cli/plan_report.h"
#include "cli/planned_question.h"
#include "cli/profile_option.h"
#include "cost/fit_operator_model.h"
#include "cost/machine_profile.h"
#include "planner/plan_search.h"
#include "planner/step_pricer.h"

namespace convene::cli {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PlanTest : public CommandsTest {
 protected:
  void SetUp() override {
    CommandsTest::SetUp();
    Write("profile.json", InventedProfile());
  }

  Outcome Plan(std::vector<std::string> words) const {
    words.insert(words.begin(), {"plan", model_, "--profile", Path("profile.json")});
    return Run(words);
  }
};

TEST_F(PlanTest, SaysWhatIsBestAndWhyAndWritesAPlanThatRuns) {
  const Outcome outcome = Plan({"--ranks", "2", "--prompt-tokens", "48", "--gen-tokens", "8",
                                "--batch", "4", "--out", Path("plan.json"), "--explain"});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  for (const char* part :
       {"time to first token", "time per token", "tokens/s", "memory per rank", "run it with",
        "alternatives", "what would change the choice", "passes", "rejected"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  const auto plan = nlohmann::json::parse(Read("plan.json"));
  EXPECT_EQ(plan["version"], 1);
  EXPECT_EQ(plan["weights"], "bf16");
  EXPECT_GT(plan["predicted"]["throughput_tokens_per_s"].get<double>(), 0);
  EXPECT_EQ(plan["predicted"]["ttft_s_interval"].size(), 2u);
  EXPECT_FALSE(plan["alternatives"].empty());
  // One rank can run it where it is for one.
  const Outcome single = Plan(
      {"--ranks", "1", "--prompt-tokens", "48", "--gen-tokens", "8", "--out", Path("single.json")});
  ASSERT_EQ(single.status, kSuccess) << single.err;
  const Outcome ran = Run({"run", model_, "--prompt", "abc", "-n", "2", "--temperature", "0",
                           "--plan", Path("single.json")});
  EXPECT_EQ(ran.status, kSuccess) << ran.err;
}

TEST_F(PlanTest, RanksMayHaveUnlikeMemories) {
  // The second rank has too little for whatever it could be given.
  const Outcome outcome = Plan({"--ranks", "2", "--prompt-tokens", "48", "--gen-tokens", "8",
                                "--memory-per-rank", "1,0.002", "--json", "-"});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  // Ranks that divide the model are not among what is left.
  EXPECT_EQ(json["plan"]["made_for"]["ranks"], 1);
  for (const auto& one : json["alternatives"]) EXPECT_EQ(one["ranks"], 1) << one["name"];
  EXPECT_EQ(json["predicted"]["memory_per_rank"]["limit_bytes"], 1 << 30);
}

TEST_F(PlanTest, FiguresForProgramsAreWhole) {
  const Outcome outcome = Plan({"--ranks", "2", "--prompt-tokens", "48", "--gen-tokens", "8",
                                "--allow", "layout,wire", "--json", "-"});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_TRUE(json["search_seconds"].is_number());
  EXPECT_TRUE(json["plan"].contains("layout"));
  EXPECT_GT(json["predicted"]["ttft_s"].get<double>(), 0);
  ASSERT_FALSE(json["alternatives"].empty());
  for (const auto& alternative : json["alternatives"]) {
    EXPECT_FALSE(alternative["reason"].get<std::string>().empty());
    EXPECT_THAT(alternative["would_win"].get<std::string>(), HasSubstr("wins"));
  }
  int num_with_changes = 0;
  const auto check_changes = [&](const nlohmann::json& one, const nlohmann::json& plan) {
    num_with_changes += one["changes"].empty() ? 0 : 1;
    const std::string changes = one["changes"].dump();
    const std::string wire = plan["wire"];
    const std::string layout = plan["layout"];
    EXPECT_EQ(changes.find("rounded to " + wire) != changes.npos, wire != "f32" && wire != "auto");
    if (layout.starts_with("attention=tp2")) {
      EXPECT_THAT(changes, HasSubstr("another order"));
    }
    if (layout == "attention=dp2,experts=ep2" && wire == "f32") {
      EXPECT_EQ(changes, "[]");
    }
  };
  check_changes(json, json["plan"]);
  for (const auto& one : json["alternatives"]) check_changes(one, one["plan"]);
  EXPECT_GT(num_with_changes, 0);
  EXPECT_EQ(json["passes"].size(), planner::SearchPasses().size());
}

// Of a larger model than that of the tests, so that there are more plans than are shown of which
// each rounds something and is faster than all that do not.
TEST_F(PlanTest, WhatIsRoundedIsSaidOfEveryPlanAndTheBestExactOneIsShown) {
  Write("config.json", kTwoLayersOfMixtral);
  const auto plan = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"plan", Path("config.json"), "--profile", "a100-nvlink", "--ranks",
                                 "2", "--batch", "16"});
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
    return outcome.out;
  };
  const std::string text = plan(
      {"--allow", "layout,wire,weights", "--json", Path("rounded.json"), "--html", Path("p.html")});
  const auto json = nlohmann::json::parse(Read("rounded.json"));
  ASSERT_FALSE(json["changes"].empty()) << json["name"];
  std::vector<nlohmann::json> all = {json};
  all.insert(all.end(), json["alternatives"].begin(), json["alternatives"].end());
  const std::string page = Read("p.html");
  std::vector<std::string> exact;
  for (const nlohmann::json& one : all) {
    const std::string weights = one["plan"]["weights"];
    const std::string changes = one["changes"].dump();
    EXPECT_EQ(changes.find("weights are " + weights) != changes.npos, weights != "bf16") << changes;
    for (const std::string change : one["changes"]) {
      EXPECT_THAT(text, HasSubstr(change));
      EXPECT_THAT(page, HasSubstr(change));
    }
    if (one["changes"].empty()) exact.push_back(one["name"]);
  }
  for (const std::string& told : {text, page}) {
    EXPECT_THAT(told, HasSubstr("changes: nothing"));
    EXPECT_THAT(told, HasSubstr("docs/planning.md"));
  }
  ASSERT_FALSE(exact.empty());
  // It is the first that was priced of those that may be chosen where nothing is allowed.
  const std::string plain = plan({"--json", Path("exact.json")});
  EXPECT_THAT(plain, Not(HasSubstr("changes: nothing")));
  const auto without = nlohmann::json::parse(Read("exact.json"));
  EXPECT_TRUE(without["changes"].empty());
  std::vector<std::string> may_be_chosen;
  for (const auto& one : without["ranked"]) {
    if (one["needs"].empty()) may_be_chosen.push_back(one["name"]);
  }
  std::string first;
  for (const auto& one : json["ranked"]) {
    const bool is_exact = std::ranges::count(may_be_chosen, one["name"].get<std::string>()) > 0;
    if (first.empty() && is_exact) first = one["name"];
  }
  EXPECT_EQ(exact.front(), first);
}

TEST_F(PlanTest, OfAPresetABackupOfExpertsIsSaidToHaveNoPrice) {
  const auto plan = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"plan", model_, "--profile", "a6000-pcie4", "--ranks", "2"});
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
    return outcome.out;
  };
  EXPECT_THAT(plan({"--allow", "layout,transition"}),
              HasSubstr("not looked at         experts from an int4 backup (--allow transition)"));
  EXPECT_THAT(plan({"--allow", "layout"}), Not(HasSubstr("int4 backup")));
  // Costs that were measured have it.
  const Outcome measured = Plan({"--ranks", "2", "--allow", "layout,transition"});
  ASSERT_EQ(measured.status, kSuccess) << measured.err;
  EXPECT_THAT(measured.out, Not(HasSubstr("have no price")));
}

TEST_F(PlanTest, MemoryThatWasNotLookedAtIsNotSaidToBeNothing) {
  const Outcome outcome = Plan({"--ranks", "2", "--without", "memory", "--json", Path("plan.json"),
                                "--html", Path("p.html")});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("memory per rank       not looked at (--without memory)"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("0 B of 0 B")));
  EXPECT_TRUE(nlohmann::json::parse(Read("plan.json"))["predicted"]["memory_per_rank"].is_null());
  EXPECT_THAT(Read("p.html"), AllOf(HasSubstr("not looked at"), Not(HasSubstr("<td>0 B"))));
}

TEST_F(PlanTest, SaysHowManyOfTheRequestsRunTogether) {
  const std::vector<std::string> words = {"--ranks",      "2", "--prompt-tokens", "48",
                                          "--gen-tokens", "8"};
  std::vector<std::string> of_requests = words;
  for (const char* word : {"--requests", "300", "--json"}) of_requests.emplace_back(word);
  of_requests.push_back(Path("answer.json"));
  const Outcome outcome = Plan(of_requests);
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("answers of 8 tokens, 300 requests; best throughput"));
  EXPECT_THAT(outcome.out, HasSubstr(" of 300 requests run together; "));
  const auto json = nlohmann::json::parse(Read("answer.json"));
  const int batch = json["batch"]["chosen"].get<int>();
  EXPECT_EQ(json["plan"]["sequences"], batch);
  EXPECT_EQ(json["predicted"]["batch"], batch);
  EXPECT_EQ(json["workload"]["num_requests"], 300);
  EXPECT_GE(json["batch"]["tried"].size(), 4u);
  // What it says is what a plan for so many is said to reach.
  std::vector<std::string> of_batch = words;
  for (const std::string& word :
       {std::string("--batch"), std::to_string(batch), std::string("--json"), std::string("-")}) {
    of_batch.push_back(word);
  }
  const auto same = nlohmann::json::parse(Plan(of_batch).out);
  EXPECT_EQ(same["predicted"]["ttft_s"], json["predicted"]["ttft_s"]);
  of_requests.insert(of_requests.end(), {"--objective", "ttft"});
  const Outcome other = Plan(of_requests);
  EXPECT_EQ(other.status, kFailure);
  EXPECT_THAT(other.err, HasSubstr("give --batch"));
}

TEST_F(PlanTest, DividesNoMatrixOfAPackedDirectory) {
  const std::string packed = Path("packed");
  ASSERT_EQ(Run({"quantize", model_, "--weights", "bf16", "--out", packed}).status, kSuccess);
  const auto plan = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"plan", packed, "--profile", Path("profile.json"), "--ranks", "2",
                                 "--prompt-tokens", "48", "--gen-tokens", "8", "--batch", "4"});
    return Run(words);
  };
  const Outcome outcome = plan({"--allow", "layout", "--explain", "--json", Path("plan.json")});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("packed as whole matrices"));
  const auto json = nlohmann::json::parse(Read("plan.json"));
  // A part of the head is some of its panels, which are whole.
  const auto divides_none = Not(AnyOf(HasSubstr("attention=tp2"), HasSubstr("experts=tp2")));
  EXPECT_THAT(json["plan"]["layout"].get<std::string>(), divides_none);
  for (const auto& alternative : json["alternatives"]) {
    EXPECT_THAT(alternative["plan"]["layout"].get<std::string>(), divides_none);
  }
  const Outcome wanted = plan({"--layout", "attention=tp2,experts=ep2"});
  EXPECT_EQ(wanted.status, kFailure);
  EXPECT_THAT(wanted.err, HasSubstr("packed as whole matrices"));
}

TEST_F(PlanTest, ReadsExpertsFromADiskWhereMemoryIsTooSmall) {
  cost::MachineProfile machine;
  machine.machine.disk_gbps = 2;
  machine.steps.push_back(planner::InventedCosts(1, 1e9, "bf16"));
  Write("disk.json", cost::ToJson(machine).dump());
  const auto plan_with = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"plan", model_, "--profile", Path("disk.json"), "--prompt-tokens",
                                 "48", "--gen-tokens", "8", "--weights", "bf16", "--json", "-"});
    return Run(words);
  };
  const Outcome whole = plan_with({});
  ASSERT_EQ(whole.status, kSuccess) << whole.err;
  const uint64_t needed = nlohmann::json::parse(whole.out)["predicted"]["memory_per_rank"]["bytes"];
  const std::string budget = fmt::format("{}B", needed - (uint64_t{64} << 10) + ProgramBytes(1));
  const Outcome outcome =
      plan_with({"--memory-budget", budget, "--out", Path("plan.json"), "--html", Path("p.html")});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_THAT(json["name"].get<std::string>(), HasSubstr("in memory and the others read from"));
  EXPECT_THAT(json["command"].get<std::string>(), HasSubstr("--memory-budget " + budget));
  EXPECT_LE(json["predicted"]["memory_per_rank"]["bytes"].get<uint64_t>(), needed);
  EXPECT_EQ(json["predicted"]["memory_per_rank"]["limit_bytes"], needed - (uint64_t{64} << 10))
      << "of a budget the program has a part";
  const auto plan = nlohmann::json::parse(Read("plan.json"));
  ASSERT_TRUE(plan.contains("experts_in_memory"));
  EXPECT_THAT(Read("p.html"), HasSubstr("read_pages"));
  const Outcome ran =
      Run({"run", model_, "--prompt", "abc", "-n", "2", "--temperature", "0", "--context", "64",
           "--plan", Path("plan.json"), "--page-dir", Path("pages"), "--trace", Path("t.json")});
  EXPECT_EQ(ran.status, kSuccess) << ran.err;
  // What is read has a price, too: bytes at the disk's rate.
  const Outcome report =
      Run({"report", Path("t.json"), "--plan", Path("plan.json"), "--json", "-"});
  ASSERT_EQ(report.status, kSuccess) << report.err;
  const auto compared = nlohmann::json::parse(report.out);
  const auto trace = nlohmann::json::parse(Read("t.json"));
  // Reads ahead of the choice have no work of their own, and are compared with those that they
  // spare, bytes and seconds.
  const auto& tasks = trace["otherData"]["steps"][0]["tasks"];
  double bytes = 0;
  int num_ahead = 0;
  for (const auto& task : tasks) {
    if (task["kind"] == "read_chosen") bytes += task.value("disk_bytes", 0.0);
    if (task["kind"] == "read_predicted") ++num_ahead;
  }
  double read_s = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["args"]["step"] != 0 || event["pid"] >= 1000) continue;
    const auto& kind = tasks[event["args"]["task"].get<size_t>()]["kind"];
    const bool reads = kind == "read_chosen" || kind == "read_predicted";
    if (reads) read_s += event["dur"].get<double>() * 1e-6;
  }
  EXPECT_GT(bytes, 0);
  EXPECT_GT(num_ahead, 0);
  for (const auto& kind : compared["plan"]["steps"][0]["kinds"]) {
    EXPECT_THAT(kind["kind"].get<std::string>(), Not(AnyOf("read_predicted", "read_next")));
    if (kind["kind"] != "read_chosen") continue;
    EXPECT_NEAR(kind["predicted_s"].get<double>(), bytes / 2e9, 1e-12);
    EXPECT_NEAR(kind["measured_s"].get<double>(), read_s, 1e-6);
  }
  EXPECT_THAT(ran.err, HasSubstr(fmt::format("of which memory has {} ",
                                             plan["experts_in_memory"].get<int>())));
  // Priced as the search prices it.
  const Outcome simulated =
      Run({"simulate", Path("plan.json"), "--model", model_, "--profile", Path("disk.json"),
           "--prompt-tokens", "48", "--gen-tokens", "8", "--json", "-", "--memory-budget", budget});
  ASSERT_EQ(simulated.status, kSuccess) << simulated.err;
  EXPECT_DOUBLE_EQ(
      nlohmann::json::parse(simulated.out)["predicted"]["throughput_tokens_per_s"].get<double>(),
      json["predicted"]["throughput_tokens_per_s"].get<double>());
}

TEST_F(PlanTest, KeepsKeysAndValuesOfABatchOnADiskAndTheBatchRunsAsThePlanSays) {
  const std::string packed = Path("packed");
  ASSERT_EQ(
      Run({"quantize", CONVENE_SOURCE_DIR "/models/demo", "--weights", "int8", "--out", packed})
          .status,
      kSuccess);
  cost::MachineProfile machine;
  machine.machine.disk_gbps = 2;
  machine.steps.push_back(planner::InventedCosts(1, 1e9, "int8"));
  Write("disk.json", cost::ToJson(machine).dump());
  const std::vector<std::string> workload = {"--profile",       Path("disk.json"),
                                             "--prompt-tokens", "80",
                                             "--gen-tokens",    "40",
                                             "--chunk",         "64",
                                             "--json",          "-"};
  const auto run_with = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), workload.begin(), workload.end());
    words.insert(words.end(), more.begin(), more.end());
    return Run(words);
  };
  const Outcome few = run_with({"plan", packed}, {"--batch", "4"});
  ASSERT_EQ(few.status, kSuccess) << few.err;
  const uint64_t needed = nlohmann::json::parse(few.out)["predicted"]["memory_per_rank"]["bytes"];
  const std::string budget = fmt::format("{}B", needed - (uint64_t{2} << 20) + ProgramBytes(1));
  const Outcome many = run_with(
      {"plan", packed}, {"--batch", "60", "--memory-budget", budget, "--out", Path("plan.json")});
  ASSERT_EQ(many.status, kSuccess) << many.err;
  const auto json = nlohmann::json::parse(many.out);
  EXPECT_THAT(json["name"].get<std::string>(),
              HasSubstr("keys and values of 60 sequences on the disk"));
  EXPECT_THAT(json["command"].get<std::string>(),
              HasSubstr("plan.json --memory-budget "));  // where they lie is as by default
  const auto plan = nlohmann::json::parse(Read("plan.json"));
  ASSERT_EQ(plan["sequences"], 60);
  EXPECT_EQ(plan["step_tokens"], 64);
  const Outcome simulated = run_with({"simulate", Path("plan.json"), "--model", packed},
                                     {"--batch", "60", "--memory-budget", budget});
  ASSERT_EQ(simulated.status, kSuccess) << simulated.err;
  EXPECT_EQ(nlohmann::json::parse(simulated.out)["predicted"]["throughput_tokens_per_s"],
            json["predicted"]["throughput_tokens_per_s"]);

  std::string input;
  for (int id = 0; id < 20; ++id) {
    input += fmt::format(R"({{"custom_id":"r{}","method":"POST","url":"/v1/completions",)"
                         R"("body":{{"model":"m","prompt":"The captain of ship {} said",)"
                         R"("max_tokens":8,"temperature":0}}}})"
                         "\n",
                         id, id);
  }
  Write("in.jsonl", input);
  std::vector<std::string> batch = {"batch",          packed,           "--input",
                                    Path("in.jsonl"), "--plan",         Path("plan.json"),
                                    "--output",       Path("out.jsonl")};
  batch.insert(batch.end(), {"--spill-dir", "none"});
  const Outcome nowhere = Run(batch);
  EXPECT_EQ(nowhere.status, kFailure);
  EXPECT_THAT(nowhere.err, HasSubstr("give --spill-dir DIR, which is on a disk"));
  batch.back() = Path("spill");
  const Outcome ran = Run(batch);
  ASSERT_EQ(ran.status, kSuccess) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("keys and values of 20 sequences, "));
  EXPECT_THAT(ran.err, HasSubstr("as the plan says"));
  // Who does not know what comes refuses it.
  const Outcome refused =
      Run({"run", packed, "--prompt", "abc", "-n", "2", "--plan", Path("plan.json")});
  EXPECT_EQ(refused.status, kFailure);
  EXPECT_THAT(refused.err, HasSubstr("run it with convene batch"));
}

TEST_F(PlanTest, OfABudgetTheProgramHasAPart) {
  cost::MachineProfile machine;
  machine.machine.disk_gbps = 2;
  machine.steps.push_back(planner::InventedCosts(1, 1e9, "bf16"));
  machine.steps.push_back(planner::InventedCosts(2, 1e9, "bf16"));
  Write("disk.json", cost::ToJson(machine).dump());
  const auto plan_with = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"plan", model_, "--profile", Path("disk.json"), "--prompt-tokens",
                                 "48", "--gen-tokens", "8", "--weights", "bf16", "--json", "-"});
    return Run(words);
  };
  const Outcome nothing = plan_with({"--ranks", "1", "--memory-budget", "20MiB"});
  EXPECT_EQ(nothing.status, kFailure);
  EXPECT_THAT(nothing.err, HasSubstr("--memory-budget 20.0 MiB has no room for a model"));
  const uint64_t mebibyte = uint64_t{1} << 20;
  const Outcome little = plan_with({"--ranks", "1", "--batch", "60", "--memory-budget", "36MiB"});
  EXPECT_EQ(little.status, kFailure);
  EXPECT_THAT(little.err, HasSubstr(fmt::format("of --memory-budget 36.0 MiB about {:.1f} MiB are "
                                                "for the program itself",
                                                double(ProgramBytes(1)) / double(mebibyte))));
  // What is said to be the least is that with all of it on the disk.
  EXPECT_THAT(little.err, HasSubstr("its experts, keys and values read from a disk a rank needs"));
  for (const int ranks : {1, 2}) {
    const Outcome enough = plan_with({"--ranks", std::to_string(ranks), "--memory-budget", "1GiB"});
    ASSERT_EQ(enough.status, kSuccess) << enough.err;
    EXPECT_EQ(nlohmann::json::parse(enough.out)["predicted"]["memory_per_rank"]["limit_bytes"],
              1024 * mebibyte - ProgramBytes(ranks));
  }
  const Outcome of_model = plan_with({"--ranks", "1", "--memory-per-rank", "1"});
  ASSERT_EQ(of_model.status, kSuccess) << of_model.err;
  EXPECT_EQ(nlohmann::json::parse(of_model.out)["predicted"]["memory_per_rank"]["limit_bytes"],
            1024 * mebibyte);
}

TEST_F(PlanTest, ADiskRateThatIsGivenPricesWhatAPresetDoesNotKnow) {
  const std::vector<std::string> workload = {"--profile", "epyc-7763",    "--prompt-tokens",
                                             "48",        "--gen-tokens", "8"};
  const auto run_with = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), workload.begin(), workload.end());
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), {"--json", "-"});
    return Run(words);
  };
  const std::vector<std::string> plan = {"plan", model_, "--ranks", "1", "--weights", "bf16"};
  const Outcome whole = run_with(plan, {});
  ASSERT_EQ(whole.status, kSuccess) << whole.err;
  const uint64_t needed = nlohmann::json::parse(whole.out)["predicted"]["memory_per_rank"]["bytes"];
  const std::string budget = fmt::format("{}B", needed - (uint64_t{64} << 10) + ProgramBytes(1));
  const Outcome unknown = run_with(plan, {"--memory-budget", budget});
  EXPECT_EQ(unknown.status, kFailure);
  EXPECT_THAT(unknown.err, HasSubstr("memory has no room for the whole model"));
  EXPECT_THAT(unknown.err, HasSubstr("with experts read from a disk there is room for it"));
  EXPECT_THAT(unknown.err, HasSubstr("--disk-rate"));
  const Outcome known =
      run_with(plan, {"--memory-budget", budget, "--disk-rate", "2", "--out", Path("plan.json")});
  ASSERT_EQ(known.status, kSuccess) << known.err;
  const auto json = nlohmann::json::parse(known.out);
  EXPECT_THAT(json["name"].get<std::string>(), HasSubstr("in memory and the others read from"));
  const std::vector<std::string> simulate = {"simulate", Path("plan.json"), "--model",
                                             model_,     "--memory-budget", budget};
  EXPECT_THAT(run_with(simulate, {}).err, HasSubstr("--disk-rate"));
  const Outcome simulated = run_with(simulate, {"--disk-rate", "2"});
  ASSERT_EQ(simulated.status, kSuccess) << simulated.err;
  EXPECT_DOUBLE_EQ(
      nlohmann::json::parse(simulated.out)["predicted"]["throughput_tokens_per_s"].get<double>(),
      json["predicted"]["throughput_tokens_per_s"].get<double>());
}

TEST_F(PlanTest, TheFileSaysTheQuestionAsItWasAsked) {
  cost::MachineProfile machine;
  machine.machine.disk_gbps = 2;
  machine.steps.push_back(planner::InventedCosts(1, 1e9, "bf16"));
  Write("disk.json", cost::ToJson(machine).dump());
  const Outcome outcome =
      Run({"plan", model_, "--profile", Path("disk.json"), "--weights", "bf16", "--without",
           "hybrid,wires", "--threads", "1", "--out", Path("plan.json")});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  nlohmann::json question = nlohmann::json::parse(Read("plan.json"))["predicted"]["question"];
  const auto read = PlannedQuestionFromJson(question);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->profile.machine.disk_gbps, 2);
  EXPECT_EQ(read->passes_off, (std::vector<std::string>{"hybrid", "wires"}));
  EXPECT_EQ(read->constraints.num_threads, 1);
  question["without"] = "hybrid";  // no list; what its names are is the search's to know
  EXPECT_FALSE(PlannedQuestionFromJson(question).ok());
  question.erase("without");
  question.erase("disk_gbps");
  EXPECT_TRUE(PlannedQuestionFromJson(question).ok());
}

TEST_F(PlanTest, DrawsAPageThatStandsAlone) {
  const Outcome outcome = Plan({"--ranks", "2", "--prompt-tokens", "48", "--gen-tokens", "8",
                                "--svg", Path("step.svg"), "--html", Path("plan.html")});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_THAT(Read("step.svg"), HasSubstr("<svg"));
  const std::string page = Read("plan.html");
  EXPECT_THAT(page, HasSubstr("</html>"));
  EXPECT_THAT(page, HasSubstr("where it would win"));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("src=")));
}

// Data sheets do not say how far they are off.
TEST_F(PlanTest, OfAPresetNoIntervalsAreShown) {
  const Outcome outcome = Run({"plan", model_, "--profile", "epyc-7763", "--ranks", "2",
                               "--prompt-tokens", "48", "--html", Path("plan.html")});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("its error is not known"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("e+0")));
  const std::string page = Read("plan.html");
  EXPECT_THAT(page, HasSubstr("is not known"));
  EXPECT_THAT(page, Not(HasSubstr("<small>")));
  EXPECT_THAT(page, Not(HasSubstr("nine times")));
  EXPECT_TRUE(IsKnown({1, 1.1}));
  EXPECT_FALSE(IsKnown({0.3, 0.1 + 0.2}));
}

TEST_F(PlanTest, OfAPresetNothingIsToBeMeasured) {
  const Outcome outcome =
      Run({"plan", model_, "--profile", "l4-pcie4", "--ranks", "2", "--weights", "f32"});
  EXPECT_EQ(outcome.status, kFailure);
  EXPECT_THAT(outcome.err, HasSubstr("take bf16, int8 or int4"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("convene measure")));
}

TEST_F(PlanTest, ReadsWorkloadsWithTracesAndRoutingBesideThem) {
  Write("trace.csv", "num_prefill_tokens,num_decode_tokens\n40,4\n20,8\n");
  Write("workload.json", R"({"version": 1, "trace": "trace.csv", "batch": 2})");
  const Outcome outcome = Plan({"--workload", Path("workload.json")});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2 requests"));
  Write("routing.json", R"({"layers": [{"experts": [1]}]})");
  Write("workload.json",
        R"({"version": 1, "trace": "trace.csv", "routing": {"recorded": "routing.json"}})");
  const Outcome wrong = Plan({"--workload", Path("workload.json")});
  EXPECT_EQ(wrong.status, kFailure);
  EXPECT_THAT(wrong.err, HasSubstr("recorded routing"));
  nlohmann::json config = nlohmann::json::parse(Read("model/config.json"));
  config["num_hidden_layers"] = 40;
  fs::create_directories(Path("deep"));
  Write("deep/config.json", config.dump());
  const Outcome deep = Run({"plan", Path("deep"), "--profile", "a6000-pcie4", "--ranks", "2",
                            "--workload", Path("workload.json")});
  EXPECT_EQ(deep.status, kFailure);
  EXPECT_THAT(deep.err, HasSubstr("the recorded routing has 1 layers, the model 40"));
}

TEST_F(PlanTest, WorkloadsAreGivenByOptionsToo) {
  Write("trace.csv", "num_prefill_tokens,num_decode_tokens\n40,4\n20,8\n400000,8\n");
  const Outcome outcome = Plan({"--trace", Path("trace.csv"), "--arrival-rate", "0.01"});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("1 of 3 requests have more than the "));
  EXPECT_THAT(outcome.err, Not(HasSubstr("no prompt or no answer")));
  Write("holes.csv", "num_prefill_tokens,num_decode_tokens\n40,4\n0,8\n20,8\n20,0\n");
  const Outcome holes = Plan({"--trace", Path("holes.csv")});
  ASSERT_EQ(holes.status, kSuccess) << holes.err;
  EXPECT_THAT(holes.out, HasSubstr("2 requests"));
  EXPECT_THAT(holes.err, HasSubstr("2 of 4 requests of "));
  EXPECT_THAT(holes.err, HasSubstr("have no prompt or no answer, and are left out"));
  EXPECT_EQ(Plan({"--trace", Path("trace.csv"), "--prompt-tokens", "4"}).status, kUsage);
  EXPECT_EQ(Plan({"--arrival-rate", "1", "--batch", "4"}).status, kUsage);
  Write("routing.json", R"({"layers": [{"experts": [1]}]})");
  const Outcome wrong = Plan({"--routing", Path("routing.json")});
  EXPECT_EQ(wrong.status, kFailure);
  EXPECT_THAT(wrong.err, HasSubstr("recorded routing"));
}

TEST_F(PlanTest, TurnsOfRanksWithExpertsAloneAreConstraints) {
  const std::vector<std::string> asked = {
      "plan", model_,      "--profile", "findep-a", "--ranks",
      "3",    "--weights", "bf16",      "--json",   Path("report.json")};
  const auto plan = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all = asked;
    all.insert(all.end(), words.begin(), words.end());
    return Run(all);
  };
  const Outcome outcome =
      plan({"--layout", "attention=dp1,experts=ep2", "--disaggregate", "--strategy", "pppipe",
            "--prompt-tokens", "64", "--gen-tokens", "8", "--batch", "8"});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  const auto report = nlohmann::json::parse(Read("report.json"));
  EXPECT_EQ(report["plan"]["strategy"], "pppipe");
  EXPECT_EQ(report["plan"]["layout"], "attention=dp1,experts=ep2,disaggregate");
  EXPECT_FALSE(report["ranked"].empty());
  const Outcome any = plan({"--disaggregate", "--order", "aass"});
  ASSERT_EQ(any.status, kSuccess) << any.err;
  EXPECT_THAT(any.out, HasSubstr("disaggregate"));
  EXPECT_THAT(any.out, HasSubstr(" GiB of a rank with "));  // the memory per rank
  const Outcome shared =
      plan({"--layout", "attention=dp1,experts=ep2,shared=tp2", "--disaggregate"});
  EXPECT_EQ(shared.status, kUsage);
  EXPECT_THAT(shared.err, HasSubstr("divides shared experts into 2 slices"));
  const Outcome alone = plan({"--strategy", "naive"});
  EXPECT_EQ(alone.status, kFailure);
  EXPECT_THAT(alone.err, HasSubstr("add --disaggregate"));
}

TEST_F(PlanTest, AChoiceIsVerifiedByRunningItAndCostsLearnFromThat) {
  const Outcome outcome = Plan({"--prompt-tokens", "48", "--gen-tokens", "8", "--batch", "2",
                                "--verify", "0.05", "--out", Path("plan.json")});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  for (const char* part : {"verified by running", "prefill", "decode", "predicted", "measured",
                           "no other plan to compare it with", "learnt"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  const auto plan = nlohmann::json::parse(Read("plan.json"));
  const auto& verified = plan["predicted"]["verified"];
  EXPECT_FALSE(verified["corrected"].get<bool>());
  EXPECT_GT(verified["plans"][0]["measured_prefill_s"].get<double>(), 0);
  EXPECT_GT(verified["plans"][0]["measured_decode_s"].get<double>(), 0);
  // On a machine that others disturb nothing is learnt.
  if (verified["learnt"].empty()) return;
  // Invented costs are wrong by much: later searches have others, and say so.
  const auto profile = nlohmann::json::parse(Read("profile.json"));
  const auto& costs = profile["steps"][0];
  ASSERT_TRUE(costs.contains("learnt_from"));
  EXPECT_FALSE(profile["steps"][1].contains("learnt_from"));
  const Outcome again =
      Plan({"--prompt-tokens", "48", "--gen-tokens", "8", "--batch", "2", "--verify", "0.05"});
  ASSERT_EQ(again.status, kSuccess) << again.err;
  EXPECT_THAT(again.out, HasSubstr("corrected by 1 plan that ran before"));
  EXPECT_THAT(again.out, HasSubstr("no test of a prediction"));
}

// Sampling that takes minutes for each token would be most of any prediction that had it.
TEST_F(PlanTest, RunsThatSampleNothingAreComparedWithoutSampling) {
  Result<cost::MachineProfile> profile =
      cost::MachineProfileFromJson(nlohmann::json::parse(InventedProfile()));
  ASSERT_TRUE(profile) << profile.error().message;
  std::vector<cost::OperatorSample> samples;
  for (int words = 16; words <= 1 << 20; words *= 2) {
    samples.push_back(
        {.features = {double(words)}, .ideal_seconds = 1e-9 * words, .seconds = double(words)});
  }
  const auto model = cost::FitOperatorModel(
      {.name = planner::kSampleGreedily, .feature_names = {"words"}}, samples);
  ASSERT_TRUE(model) << model.error().message;
  profile->machine.read_gbps = 4;
  profile->operators.emplace(planner::kSampleGreedily, *model);
  Write("profile.json", cost::ToJson(*profile).dump());
  const Outcome outcome = Plan({"--prompt-tokens", "48", "--gen-tokens", "8", "--batch", "2",
                                "--verify", "0.05", "--out", Path("plan.json")});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  const auto predicted = nlohmann::json::parse(Read("plan.json"))["predicted"];
  EXPECT_GT(predicted["ttft_s"].get<double>(), 100);
  EXPECT_GT(predicted["time_per_token_s"].get<double>(), 100);
  const auto& tried = predicted["verified"]["plans"][0];
  for (const char* phase : {"predicted_prefill_s", "predicted_decode_s"}) {
    EXPECT_GT(tried[phase].get<double>(), 0) << phase;
    EXPECT_LT(tried[phase].get<double>(), 10) << phase;
  }
}

TEST_F(PlanTest, WhatCannotBeVerifiedIsAnErrorThatSaysHowToStart) {
  const Outcome ranks = Plan({"--ranks", "2", "--verify", "1"});
  EXPECT_EQ(ranks.status, kFailure);
  EXPECT_THAT(ranks.err, HasSubstr("mpirun -n 2"));
  EXPECT_EQ(Plan({"--verify", "0"}).status, kUsage);
  const Outcome preset = Run({"plan", model_, "--profile", "a6000-pcie4", "--verify", "1"});
  EXPECT_EQ(preset.status, kFailure);
  EXPECT_THAT(preset.err, HasSubstr("is of another machine"));
}

TEST_F(PlanTest, AReportComparesARunWithItsPlan) {
  ASSERT_EQ(Plan({"--ranks", "1", "--prompt-tokens", "48", "--gen-tokens", "8", "--out",
                  Path("plan.json")})
                .status,
            kSuccess);
  const Outcome ran = Run({"run", model_, "--prompt", "abc", "-n", "4", "--temperature", "0",
                           "--plan", Path("plan.json"), "--trace", Path("trace.json")});
  ASSERT_EQ(ran.status, kSuccess) << ran.err;
  const Outcome told = Run(
      {"report", Path("trace.json"), "--plan", Path("plan.json"), "--json", Path("report.json")});
  ASSERT_EQ(told.status, kSuccess) << told.err;
  EXPECT_THAT(told.out, HasSubstr("the worst misprediction is"));
  EXPECT_THAT(told.out, HasSubstr("with the costs that were measured"));
  const auto report = nlohmann::json::parse(Read("report.json"))["plan"];
  ASSERT_FALSE(report["steps"].empty());
  for (const auto& step : report["steps"]) {
    for (const auto& kind : step["kinds"]) EXPECT_GT(kind["tasks"].get<int>(), 0);
  }
  // Without what was foreseen there is nothing to compare with, and another run is none of this
  // plan.
  auto plan = nlohmann::json::parse(Read("plan.json"));
  plan["threads"] = 77;
  Write("other.json", plan.dump());
  const Outcome other = Run({"report", Path("trace.json"), "--plan", Path("other.json")});
  EXPECT_EQ(other.status, kFailure);
  EXPECT_THAT(other.err, HasSubstr("the plan of bf16 and 77"));
  auto trace = nlohmann::json::parse(Read("trace.json"));
  ASSERT_TRUE(trace["otherData"].contains("run"));
  trace["otherData"]["run"] = "1 rank x 1 thread, bf16 of model 123";
  Write("foreign.json", trace.dump());
  const Outcome foreign = Run({"report", Path("foreign.json"), "--plan", Path("plan.json")});
  EXPECT_EQ(foreign.status, kFailure);
  EXPECT_THAT(foreign.err, HasSubstr("the trace is of 1 rank x 1 thread, bf16 of model 123"));
  plan.erase("predicted");
  Write("bare.json", plan.dump());
  const Outcome bare = Run({"report", Path("trace.json"), "--plan", Path("bare.json")});
  EXPECT_EQ(bare.status, kFailure);
  EXPECT_THAT(bare.err, HasSubstr("holds no predictions"));
}

TEST_F(PlanTest, PlansForOtherModelsOrRanksAreRefused) {
  ASSERT_EQ(Plan({"--ranks", "1", "--prompt-tokens", "8", "--out", Path("plan.json")}).status,
            kSuccess);
  auto plan = nlohmann::json::parse(Read("plan.json"));
  const auto run = [&] {
    Write("other.json", plan.dump());
    return Run({"run", model_, "--prompt", "abc", "-n", "1", "--plan", Path("other.json")});
  };
  plan["made_for"]["ranks"] = 3;
  EXPECT_THAT(run().err, HasSubstr("was made for 3 ranks, and there are 1"));
  plan["made_for"] = {{"ranks", 1}, {"model", "0123456789abcdef"}};
  EXPECT_THAT(run().err, HasSubstr("was made for another model"));
  plan["made_for"] = {{"ranks", 1}};
  EXPECT_THAT(run().err, HasSubstr("made_for"));
}

TEST_F(PlanTest, WhatCannotBePlannedIsAnErrorThatSaysWhatToChange) {
  const auto error = [&](const std::vector<std::string>& words) {
    const Outcome outcome = Plan(words);
    EXPECT_NE(outcome.status, kSuccess);
    return outcome.err;
  };
  EXPECT_THAT(error({"--prompt-tokens", "0"}), HasSubstr("at least 1"));
  EXPECT_THAT(error({"--prompt-tokens", "8", "--memory-per-rank", "0.001"}),
              HasSubstr("fits nowhere"));
  EXPECT_THAT(error({"--ranks", "2", "--memory-per-rank", "1,2,3"}), HasSubstr("3 numbers"));
  EXPECT_THAT(error({"--ranks", "2", "--memory-per-rank", "1,x"}), HasSubstr("\"x\" is no number"));
  EXPECT_THAT(error({"--prompt-tokens", "8", "--weights", "int8"}),
              HasSubstr("convene measure --steps int8"));
  EXPECT_THAT(error({"--prompt-tokens", "8", "--allow", "anything"}), HasSubstr("layout, wire"));
  EXPECT_THAT(error({"--prompt-tokens", "8", "--without", "nothing"}), HasSubstr("layouts"));
  EXPECT_THAT(error({"--ranks", "0"}), HasSubstr("--ranks"));
  const Outcome missing = Run({"plan", model_, "--profile", Path("nowhere.json")});
  EXPECT_EQ(missing.status, kFailure);
  EXPECT_THAT(missing.err, HasSubstr("convene measure --out"));
  Write("old.json", R"({"version": 7, "machine": {}, "links": [], "operators": {}})");
  const Outcome old = Run({"plan", model_, "--profile", Path("old.json")});
  EXPECT_EQ(old.status, kFailure);
  EXPECT_THAT(old.err, HasSubstr("version is 7"));
}

}  // namespace
}  // namespace convene::cli
