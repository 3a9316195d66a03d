// What a running server tells of itself: its plan, its steps, its metrics and the page that shows
// them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "tests/serve_client.h"

namespace convene {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string CompletionBody(int max_tokens, const json& more = json::object()) {
  json body = {{"prompt", "The old house"}, {"max_tokens", max_tokens}, {"ignore_eos", true}};
  body.update(more);
  return body.dump();
}

// Steps are looked at some times a second.
json LastStepOnceThere(const ServeProcess& server) {
  for (int i = 0; i < 1000; ++i) {
    json last = server.Get("/v1/steps/last").Json();
    if (!last["step"].is_null()) return last;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {};
}

TEST(ServeWatch, TellsThePlanAndNamesItInAnswers) {
  const ServeProcess server({"--model-name", "tale"});
  const json plan = server.Get("/v1/plan").Json();
  EXPECT_EQ(plan["chosen_by"], "one process");
  EXPECT_EQ(plan["plan"]["version"], 1);
  EXPECT_EQ(plan["plan"]["layout"], "attention=tp1,experts=ep1");
  EXPECT_TRUE(plan["alternatives"].is_array());
  EXPECT_TRUE(plan.contains("not_explained") || plan.contains("predicted")) << plan;
  const std::string id = plan["id"];
  EXPECT_THAT(id, ::testing::MatchesRegex("plan_[0-9a-f]{16}"));
  const json answer = server.Post("/v1/completions", CompletionBody(2)).Json();
  EXPECT_THAT(answer["system_fingerprint"].get<std::string>(), EndsWith("_" + id));

  // Another plan has another id.
  const ServeProcess other({"--no-overlap"});
  EXPECT_NE(other.Get("/v1/plan").Json()["id"], id);
}

TEST(ServeWatch, TellsWhatAPlansFileForesaw) {
  const std::string path = testing::TempDir() + "/foreseen.json";
  std::ofstream(path) << R"({"version": 1, "layout": "attention=tp1,experts=ep1",
    "predicted": {"throughput_tokens_per_s": 9.5, "profile": "/somewhere/profile.json"},
    "alternatives": [{"name": "another", "slower": 0.5, "reason": "experts +2 ms",
                      "would_win": "nowhere"}]})";
  const ServeProcess server({"--plan", path});
  const json plan = server.Get("/v1/plan").Json();
  EXPECT_EQ(plan["chosen_by"], "file");
  EXPECT_EQ(plan["alternatives"][0]["reason"], "experts +2 ms");
  EXPECT_EQ(plan["predicted"]["throughput_tokens_per_s"], 9.5);
  EXPECT_FALSE(plan["predicted"].contains("profile"));
}

TEST(ServeWatch, TellsWhatStepsDid) {
  const ServeProcess server({});
  EXPECT_TRUE(server.Get("/v1/steps/last").Json()["step"].is_null());
  EXPECT_EQ(server.Get("/v1/steps/last.svg").status, 404);
  EXPECT_EQ(server.Post("/v1/completions", CompletionBody(40)).status, 200);
  const json last = LastStepOnceThere(server);
  const json& step = last["step"];
  EXPECT_GT(step["measured_s"], 0);
  EXPECT_EQ(step["lanes"][0]["lane"], "compute");
  EXPECT_GE(step["lanes"][0]["idle_share"], 0);
  EXPECT_LT(step["lanes"][0]["idle_share"], 1);
  EXPECT_EQ(step["expert_tokens"].size(), 4u);  // layers
  EXPECT_EQ(last["experts"]["tokens"].size(), 4u);
  const HttpAnswer svg = server.Get("/v1/steps/last.svg");
  EXPECT_EQ(svg.headers.at("content-type"), "image/svg+xml");
  // The page shows it: whatever a policy would forbid there must not be in it.
  EXPECT_THAT(svg.body, AllOf(HasSubstr("<svg"), Not(HasSubstr("style=")), Not(HasSubstr("<style")),
                              Not(HasSubstr("<script"))));

  EXPECT_GT(server.Metric("convene:step_tasks_seconds_total"), 0);
  EXPECT_EQ(server.Metric("convene:wire_bytes_total"), 0);
  const std::string metrics = server.Get("/metrics").body;
  EXPECT_THAT(
      metrics,
      HasSubstr("\nconvene:lane_idle_ratio{model_name=\"demo\",rank=\"0\",lane=\"compute\"} "));
  const double idle_ratio = server.Metric("convene:lane_idle_ratio");
  EXPECT_GE(idle_ratio, 0);  // may be as small as 2e-05
  EXPECT_LT(idle_ratio, 1);
  for (int layer = 0; layer < 4; ++layer) {
    EXPECT_THAT(metrics, HasSubstr(fmt::format("layer=\"{}\"}} ", layer)));
  }
  // A token counts when it comes. The first of them is the prompt's.
  EXPECT_EQ(server.Metric("vllm:generation_tokens_total"), 40);
  EXPECT_EQ(server.Metric("vllm:inter_token_latency_seconds_count"), 39);
  EXPECT_EQ(server.Metric("vllm:request_time_per_output_token_seconds_count"), 1);
  EXPECT_EQ(server.Metric("vllm:prefix_cache_queries_total"),
            server.Metric("vllm:prompt_tokens_total"));

  const ServeProcess blind({"--no-watch"});
  EXPECT_EQ(blind.Post("/v1/completions", CompletionBody(2)).status, 200);
  EXPECT_EQ(blind.Get("/v1/steps/last").status, 404);
  EXPECT_EQ(blind.Metric("convene:step_tasks_seconds_total"), 0);
}

json FileJson(const std::string& path) { return json::parse(std::ifstream(path), nullptr, false); }

TEST(ServeWatch, WritesTheTraceAndTheRoutingOfAllItsStepsWhenItHasDrained) {
  const std::string trace_path = testing::TempDir() + "/served_trace.json";
  const std::string routing_path = testing::TempDir() + "/served_routing.json";
  ServeProcess server({"--trace", trace_path, "--record-routing", routing_path});
  const json usage = server.Post("/v1/completions", CompletionBody(40)).Json()["usage"];
  server.Signal(SIGTERM);
  ASSERT_EQ(server.Wait(), 0) << server.log();
  const int num_prompt_tokens = usage["prompt_tokens"];
  const json steps = FileJson(trace_path)["otherData"]["steps"];
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0]["name"], fmt::format("prefill, {} tokens of 1 sequence", num_prompt_tokens));
  EXPECT_EQ(steps[1]["name"], "decode, 1 token of 1 sequence");
  // No step was left out: of each token but the last one some experts were chosen.
  int64_t num_choices = 0;
  const json routing = FileJson(routing_path);
  for (const json& count : routing["layers"][0]["experts"]) {
    num_choices += count.get<int64_t>();
  }
  EXPECT_GT(num_choices, 0);
  EXPECT_EQ(num_choices % (num_prompt_tokens + 39), 0);
}

// The names of metrics in the queries of a dashboard, wherever they stand.
void AddQueried(const json& part, std::set<std::string>& names, int& num_queries) {
  static const std::regex pattern("(vllm|convene):[a-zA-Z0-9_]+");
  if (part.is_object() && part.contains("expr")) {
    const std::string expression = part["expr"];
    ++num_queries;
    std::sregex_iterator found(expression.begin(), expression.end(), pattern);
    EXPECT_NE(found, std::sregex_iterator()) << expression << " names no metric of this server";
    for (; found != std::sregex_iterator(); ++found) names.insert(found->str());
  }
  if (!part.is_structured()) return;
  for (const json& inner : part) AddQueried(inner, names, num_queries);
}

TEST(ServeWatch, EveryQueryOfTheDashboardNamesAMetricThatThereIs) {
  std::ifstream file(CONVENE_SOURCE_DIR "/deploy/grafana-dashboard.json");
  ASSERT_TRUE(file.is_open());
  std::stringstream text;
  text << file.rdbuf();
  const json dashboard = json::parse(text.str());
  std::set<std::string> names;
  int num_queries = 0;
  AddQueried(dashboard["panels"], names, num_queries);
  AddQueried(dashboard["templating"], names, num_queries);
  EXPECT_GT(num_queries, 10);

  const ServeProcess server({});
  EXPECT_EQ(server.Post("/v1/completions", CompletionBody(3)).status, 200);
  LastStepOnceThere(server);
  const std::string metrics = server.Get("/metrics").body;
  for (const std::string& name : names) {
    EXPECT_THAT(metrics, HasSubstr("\n" + name + "{")) << "the dashboard asks for it";
  }
}

TEST(ServeWatch, ThePageLetsNothingRunButItsOwnScript) {
  const ServeProcess server({"--api-key", "secret"});
  const HttpAnswer page = server.Get("/");  // which asks for the key
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  const std::string policy = page.headers.at("content-security-policy");
  EXPECT_THAT(policy, AllOf(HasSubstr("default-src 'none'"), Not(HasSubstr("unsafe")),
                            HasSubstr("frame-ancestors 'none'"), HasSubstr("base-uri 'none'")));
  std::smatch nonce;
  ASSERT_TRUE(std::regex_search(policy, nonce, std::regex("'nonce-([0-9a-f]{32})'")));
  EXPECT_THAT(page.body, HasSubstr("<script nonce=\"" + nonce[1].str() + "\""));
  EXPECT_THAT(page.body, Not(HasSubstr("{{")));
  // Nothing from elsewhere, no handlers in markup, and no markup made of text.
  EXPECT_FALSE(
      std::regex_search(page.body, std::regex("\\son[a-z]+=\"|(src|href)=\"(https?:)?//")));
  for (const char* way :
       {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("}) {
    EXPECT_THAT(page.body, Not(HasSubstr(way)));
  }
  EXPECT_NE(server.Get("/").headers.at("content-security-policy"), policy);
  EXPECT_EQ(server.Get("/v1/plan").status, 401);
  EXPECT_EQ(server.Get("/v1/steps/last").status, 401);
}

}  // namespace
}  // namespace convene
