// `convene bench --server` against a server of the same binary.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/serve_client.h"

namespace convene {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Its exit status.
int Bench(const std::string& arguments) {
  const std::string command = fmt::format("{} bench {} >/dev/null 2>&1", CONVENE_BINARY, arguments);
  return WEXITSTATUS(std::system(command.c_str()));
}

json FileJson(const std::string& path) { return json::parse(std::ifstream(path), nullptr, false); }

TEST(ServeLoad, ManyClientsStreamAtTheSameTimeAndAreCounted) {
  const ServeProcess server({"--max-batch", "64", "--max-queue", "300", "--model-name", "tale"});
  const std::string path = testing::TempDir() + "/load.json";
  ASSERT_EQ(Bench(fmt::format("--server http://127.0.0.1:{}/v1 --batch 1,120 -p 8 -n 10 "
                              "--requests 2 --json {}",
                              server.port(), path)),
            0);
  const json figures = FileJson(path);
  EXPECT_EQ(figures["model"], "tale");
  ASSERT_EQ(figures["loads"].size(), 2u);
  for (const auto& [idx, num_clients] : {std::pair(0, 1), std::pair(1, 120)}) {
    const json& load = figures["loads"][idx];
    EXPECT_EQ(load["clients"], num_clients);
    EXPECT_EQ(load["requests"], 2 * num_clients);
    EXPECT_EQ(load["errors"], 0) << load;
    EXPECT_EQ(load["generated_tokens"], 20 * num_clients);
    EXPECT_GE(load["mean_prompt_tokens"], 8);
    EXPECT_LE(load["mean_prompt_tokens"], 12);
    EXPECT_GT(load["time_to_first_token_s"]["median"], 0);
    EXPECT_GE(load["gap_between_tokens_s"]["p99"], load["gap_between_tokens_s"]["median"]);
    EXPECT_GT(load["tokens_per_s_overall"], 0);
  }
  EXPECT_EQ(server.Metric("vllm:generation_tokens_total"), 20 * 121);
  EXPECT_EQ(server.Metric("vllm:num_requests_running"), 0);
}

TEST(ServeLoad, PromptsAreNewToTheServerUnlessASeedSaysWhich) {
  const ServeProcess server({});
  const std::string load = fmt::format(
      "--server http://127.0.0.1:{} --batch 1,3 -p 100 -n 2 --requests 2", server.port());
  ASSERT_EQ(Bench(load), 0);
  ASSERT_EQ(Bench(load), 0);
  EXPECT_EQ(server.Metric("vllm:prefix_cache_hits_total"), 0);
  const std::string path = testing::TempDir() + "/seeded.json";
  ASSERT_EQ(Bench(load + " --seed 7"), 0);
  EXPECT_EQ(server.Metric("vllm:prefix_cache_hits_total"), 0);
  ASSERT_EQ(Bench(load + " --seed 7 --json " + path), 0);
  const json figures = FileJson(path);
  EXPECT_EQ(figures["seed"], 7);
  EXPECT_GT(figures["loads"][0]["mean_cached_tokens"], 0);
}

TEST(ServeLoad, AnswersThatTheContextCutsOffAreErrors) {
  const ServeProcess server({"--context", "64"});
  const std::string path = testing::TempDir() + "/cut.json";
  EXPECT_EQ(Bench(fmt::format("--server http://127.0.0.1:{} --batch 2 -p 20 -n 60 --json {}",
                              server.port(), path)),
            1);
  const json load = FileJson(path)["loads"][0];
  EXPECT_EQ(load["errors"], 2);
  EXPECT_THAT(load["errors_by_message"].begin().key(), HasSubstr("of 60 tokens"));
}

TEST(ServeLoad, RequestsThatAreRefusedAreErrorsWithTheirReason) {
  const ServeProcess server({"--max-batch", "1", "--max-queue", "1", "--api-key", "secret"});
  const std::string path = testing::TempDir() + "/refused.json";
  const std::string url = fmt::format("--server http://127.0.0.1:{}", server.port());
  EXPECT_EQ(Bench(url), 1);  // no key
  EXPECT_EQ(Bench(fmt::format("{} --api-key secret --batch 30 -p 4 -n 60 --reconnect --json {}",
                              url, path)),
            1);
  const json load = FileJson(path)["loads"][0];
  EXPECT_GT(load["errors"], 0);
  EXPECT_LT(load["errors"], 30);
  EXPECT_THAT(load["errors_by_message"].begin().key(), HasSubstr("status 429"));
  EXPECT_TRUE(load["tokens_per_s_while_all_stream"].is_null());
}

TEST(ServeLoad, SaysWhenNobodyAnswersAndWhatDoesNotGoTogether) {
  EXPECT_EQ(Bench("--server http://127.0.0.1:1"), 1);
  EXPECT_EQ(Bench("--server https://127.0.0.1:1"), 2);
  EXPECT_EQ(Bench("--server http://127.0.0.1:1 --weights int8"), 2);
  EXPECT_EQ(Bench("--server http://127.0.0.1:1 " CONVENE_SOURCE_DIR "/models/demo"), 2);
  EXPECT_EQ(Bench("--requests 3 " CONVENE_SOURCE_DIR "/models/demo"), 2);
  EXPECT_EQ(Bench(""), 2);
}

}  // namespace
}  // namespace convene
