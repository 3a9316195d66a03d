// The server as clients meet it: the running binary, over sockets.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/eventually_test.h"
#include "tests/serve_client.h"

namespace convene {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kCompletions = "/v1/completions";

std::string ChatBody(const std::string& text, const json& more = json::object()) {
  json body = {{"messages", {{{"role", "user"}, {"content", text}}}}, {"max_tokens", 12}};
  body.update(more);
  return body.dump();
}

// The text of a streamed chat.
std::string StreamedText(const HttpAnswer& answer, int choice_idx = 0) {
  std::string text;
  for (const std::string& event : answer.Events()) {
    if (event == "[DONE]") continue;
    for (const json& choice : json::parse(event).value("choices", json::array())) {
      if (choice["index"] != choice_idx) continue;
      text += choice["delta"].value("content", "");
    }
  }
  return text;
}

TEST(Serve, AnswersChatsCompletionsAndQuestionsAboutItself) {
  const ServeProcess server({"--model-name", "tale"});
  EXPECT_EQ(server.Get("/health").Json()["status"], "ok");
  EXPECT_EQ(server.Get("/v1/models").Json()["data"][0]["id"], "tale");
  EXPECT_GT(server.Get("/v1/models").Json()["data"][0]["created"], 1'700'000'000);
  EXPECT_EQ(server.Get("/v1/models/tale").Json(), server.Get("/v1/models").Json()["data"][0]);
  EXPECT_EQ(server.Get("/v1/models/t%61le").Json()["id"], "tale");
  EXPECT_EQ(server.Get("/v1/models/other").Json()["error"]["code"], "model_not_found");
  EXPECT_EQ(server.Get("/v1/models/").status, 404);
  EXPECT_TRUE(server.Get("/version").Json().contains("version"));

  const std::string body = ChatBody("Who goes there?", {{"seed", 3}, {"model", "tale"}});
  const json whole = server.Post(kChat, body).Json();
  EXPECT_EQ(whole["object"], "chat.completion");
  const std::string text = whole["choices"][0]["message"]["content"];
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(
      whole["usage"]["total_tokens"].get<int>(),
      whole["usage"]["prompt_tokens"].get<int>() + whole["usage"]["completion_tokens"].get<int>());

  // Streamed it is the same text; its prompt is known by now, as far as it fills blocks.
  const HttpAnswer stream = server.Post(
      kChat,
      ChatBody("Who goes there?",
               {{"seed", 3}, {"stream", true}, {"stream_options", {{"include_usage", true}}}}));
  EXPECT_THAT(stream.headers.at("content-type"), HasSubstr("text/event-stream"));
  EXPECT_TRUE(stream.is_whole);
  EXPECT_EQ(StreamedText(stream), text);
  const std::vector<std::string> events = stream.Events();
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(json::parse(events.front())["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(json::parse(events[events.size() - 2])["usage"], whole["usage"]);
  EXPECT_EQ(json::parse(events[events.size() - 3])["choices"][0]["finish_reason"],
            whole["choices"][0]["finish_reason"]);

  // The choices of a request have seeds one after the other.
  const json two = server.Post(kChat, ChatBody("Who goes there?", {{"seed", 2}, {"n", 2}})).Json();
  ASSERT_EQ(two["choices"].size(), 2u);
  EXPECT_EQ(two["choices"][1]["message"]["content"], text);

  const json completion =
      server
          .Post(
              kCompletions,
              R"({"prompt": ["The old", "A ship"], "max_tokens": 3, "logprobs": 2, "temperature": 0})")
          .Json();
  ASSERT_EQ(completion["choices"].size(), 2u);
  EXPECT_EQ(completion["choices"][1]["index"], 1);
  EXPECT_EQ(completion["choices"][0]["logprobs"]["top_logprobs"].size(), 3u);
  EXPECT_EQ(completion["choices"][0]["logprobs"]["text_offset"][0], 0);

  const json tokens =
      server.Post("/tokenize", R"({"prompt": "Call me Ishmael.", "return_token_strs": true})")
          .Json();
  EXPECT_EQ(tokens["count"], 8);
  EXPECT_EQ(tokens["token_strs"].size(), 8u);
  EXPECT_EQ(server.Post("/detokenize", json{{"tokens", tokens["tokens"]}}.dump()).Json()["prompt"],
            "Call me Ishmael.");

  EXPECT_EQ(server.Metric("vllm:num_requests_running"), 0);
  EXPECT_GT(server.Metric("vllm:generation_tokens_total"), 30);
  EXPECT_GT(server.Metric("vllm:time_to_first_token_seconds_count"), 3);
  EXPECT_THAT(server.log(), HasSubstr("event=request"));
  EXPECT_THAT(server.log(), Not(HasSubstr("goes there")));
}

TEST(Serve, RefusesWithTheRightStatusAndTheNameOfTheField) {
  const ServeProcess server({"--api-key", "secret", "--cors-origin", "https://page.example"});
  const std::string key = "Authorization: Bearer secret\r\n";
  const auto error = [&](const std::string& path, const std::string& body, int status) {
    const HttpAnswer answer = server.Post(path, body, key);
    EXPECT_EQ(answer.status, status) << body << answer.body;
    const json parsed = answer.Json();
    return parsed.is_object() ? parsed.value("error", json::object()) : json::object();
  };
  EXPECT_EQ(error(kChat, ChatBody("x", {{"top_p", 2}}), 400)["param"], "top_p");
  EXPECT_EQ(error(kChat, ChatBody("x", {{"guided_regex", "a"}}), 400)["param"], "guided_regex");
  const json bias = error(kChat, ChatBody("x", {{"logit_bias", {{"99999", 1}}}}), 400);
  EXPECT_EQ(bias["type"], "invalid_request_error");
  EXPECT_EQ(bias["param"], "logit_bias");
  EXPECT_EQ(error(kChat, ChatBody("x", {{"stop", ""}}), 400)["param"], "stop");
  EXPECT_EQ(error(kChat, ChatBody("x", {{"stop", json(99, "x")}}), 400)["param"], "stop");
  EXPECT_EQ(error(kCompletions, R"({"prompt": [99999]})", 400)["param"], "prompt");
  EXPECT_EQ(error(kChat, ChatBody("x", {{"model", "other"}}), 404)["code"], "model_not_found");
  EXPECT_EQ(error(kChat, ChatBody(std::string(20000, 'x')), 400)["code"],
            "context_length_exceeded");
  EXPECT_EQ(error(kCompletions, "{}", 400)["param"], "prompt");
  EXPECT_THAT(error("/v1/embeddings", "{}", 400)["message"], HasSubstr("embed"));
  error("/v1/nothing", "{}", 404);
  error("/health", "{}", 405);
  EXPECT_THAT(error(kChat, "{\"a\": ", 400)["message"], HasSubstr("cannot be read as JSON"));
  EXPECT_THAT(error(kChat, "[]", 400)["message"], HasSubstr("object"));
  error(kChat, "{\"model\": \"\xff\"}", 400);
  error(kChat, std::string(100, '[') + std::string(100, ']'), 400);
  error("/detokenize", R"({"tokens": [-1]})", 400);
  error("/detokenize", R"({"tokens": [1], "model": "other"})", 404);
  EXPECT_EQ(error("/tokenize", R"({"prompt": "x", "model": "other"})", 404)["param"], "model");
  EXPECT_EQ(error("/tokenize", R"({"prompt": "x", "model": 3})", 400)["param"], "model");

  const HttpAnswer without_key = server.Post(kChat, ChatBody("x"));
  EXPECT_EQ(without_key.status, 401);
  EXPECT_EQ(server.Post(kChat, ChatBody("x"), "Authorization: Bearer secreT\r\n").status, 401);
  EXPECT_EQ(server.Get("/metrics").status, 401);
  EXPECT_EQ(server.Get("/health").status, 200);
  Connection form(server.port());
  form.Send(
      fmt::format("POST {} HTTP/1.1\r\nHost: x\r\n{}Content-Type: text/plain\r\n\r\n", kChat, key));
  EXPECT_EQ(form.ReadAnswer().status, 415);

  Connection page(server.port());
  page.Send(
      fmt::format("OPTIONS {} HTTP/1.1\r\nHost: x\r\nOrigin: https://page.example\r\n\r\n", kChat));
  const HttpAnswer asked = page.ReadAnswer();
  EXPECT_EQ(asked.status, 204);
  EXPECT_EQ(asked.headers.at("access-control-allow-origin"), "https://page.example");
  // OpenAI's client for browsers sends headers of its own (x-stainless-...).
  EXPECT_EQ(asked.headers.at("access-control-allow-headers"), "Authorization, *");
  EXPECT_EQ(asked.headers.at("access-control-allow-methods"), "POST");
  EXPECT_EQ(server.Get("/health", "Origin: https://page.example\r\n")
                .headers.at("access-control-expose-headers"),
            "Retry-After");
  EXPECT_FALSE(server.Get("/health", "Origin: https://other.example\r\n")
                   .headers.contains("access-control-allow-origin"));
}

TEST(Serve, RunsAsManyTogetherAsAPlanSays) {
  const std::string path = testing::TempDir() + "serve_plan.json";
  std::ofstream(path) << R"({"version": 1, "sequences": 2, "step_tokens": 16})";
  const ServeProcess server({"--plan", path});
  std::vector<std::thread> clients;
  std::vector<int> statuses(5);
  for (int& status : statuses) {
    clients.emplace_back([&] { status = server.Post(kChat, ChatBody("Who goes there?")).status; });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_THAT(statuses, ::testing::Each(200));
  EXPECT_EQ(server.Get("/v1/plan").Json()["plan"]["sequences"], 2);
}

TEST(Serve, ReadsKeysOfAFileButNotItsComments) {
  const std::string path =
      std::filesystem::temp_directory_path() / fmt::format("serve_test_{}_keys", getpid());
  std::ofstream(path) << "# of the team\nfirst\n\n#old\nsecond\n";
  const ServeProcess server({"--api-key-file", path});
  std::filesystem::remove(path);
  const auto status = [&](const char* key) {
    return server.Get("/v1/models", fmt::format("Authorization: Bearer {}\r\n", key)).status;
  };
  EXPECT_EQ(status("first"), 200);
  EXPECT_EQ(status("second"), 200);
  EXPECT_EQ(status("#old"), 401);
  EXPECT_EQ(status("# of the team"), 401);
}

TEST(Serve, RefusesChatsWithAModelThatHasNoTemplate) {
  namespace fs = std::filesystem;
  const fs::path model = fs::temp_directory_path() / fmt::format("serve_test_{}_model", getpid());
  fs::create_directory(model);
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) {
    fs::create_symlink(fs::path(kDemoModel) / name, model / name);
  }
  json config = json::parse(std::ifstream(fs::path(kDemoModel) / "tokenizer_config.json"));
  ASSERT_EQ(config.erase("chat_template"), 1u);
  std::ofstream(model / "tokenizer_config.json") << config;
  const ServeProcess server({}, model);
  const HttpAnswer answer = server.Post(kChat, ChatBody("x"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.Json()["error"]["type"], "invalid_request_error");
  EXPECT_EQ(answer.Json()["error"]["param"], "messages");
  EXPECT_EQ(server.Post(kCompletions, R"({"prompt": "A", "max_tokens": 1})").status, 200);
  fs::remove_all(model);
}

TEST(Serve, HoldsAnswersToASchemaAndGrowsResponsesByItems) {
  const ServeProcess server({});
  const json schema = {
      {"type", "object"},
      {"properties",
       {{"age", {{"type", "integer"}}},
        {"rank", {{"enum", {"sailor", "captain"}}}},
        {"ships", {{"type", "array"}, {"items", {{"type", "boolean"}}}, {"maxItems", 2}}}}},
      {"required", {"age", "rank", "ships"}}};
  const auto with_schema = [&](int seed) {
    return ChatBody(
        "Who goes there?",
        {{"seed", seed},
         {"max_tokens", 200},
         {"min_p", 0.02},
         {"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", schema}}}}}});
  };
  for (int seed = 0; seed < 4; ++seed) {
    const json choice = server.Post(kChat, with_schema(seed)).Json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop");
    const json value = json::parse(choice["message"]["content"].get<std::string>());
    EXPECT_TRUE(value["age"].is_number_integer());
    EXPECT_TRUE(value["rank"] == "sailor" || value["rank"] == "captain");
    EXPECT_LE(value["ships"].size(), 2u);
    EXPECT_EQ(server.Post(kChat, with_schema(seed)).Json()["choices"][0]["message"],
              choice["message"]);
  }
  const json refused =
      server
          .Post(kChat, ChatBody("x", {{"response_format",
                                       {{"type", "json_schema"},
                                        {"json_schema",
                                         {{"schema", {{"type", "string"}, {"pattern", "a"}}}}}}}}))
          .Json()["error"];
  EXPECT_EQ(refused["param"], "response_format");
  EXPECT_THAT(refused["message"], HasSubstr("\"pattern\""));
  // The demo model's template continues stories.
  EXPECT_EQ(
      server
          .Post(kChat,
                ChatBody("x", {{"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}}))
          .Json()["error"]["param"],
      "tools");
  const json in_response =
      server
          .Post("/v1/responses",
                R"({"input": "x", "text": {"format": {"type": "json_schema", "name": "n",
                    "schema": {"type": "string", "pattern": "a"}}}})")
          .Json()["error"];
  EXPECT_EQ(in_response["param"], "text.format");
  EXPECT_THAT(in_response["message"], StartsWith("text.format.schema: the keyword"));

  const std::string body =
      R"({"input": "Who goes there?", "max_output_tokens": 9, "seed": 3, "temperature": 0)";
  const json response = server.Post("/v1/responses", body + "}").Json();
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["usage"]["output_tokens"], 9);
  const std::vector<std::string> events =
      server.Post("/v1/responses", body + R"(, "stream": true})").Events();
  ASSERT_GE(events.size(), 8u);
  EXPECT_EQ(json::parse(events.front())["type"], "response.created");
  const json last = json::parse(events.back());
  EXPECT_EQ(last["type"], "response.incomplete");
  EXPECT_EQ(last["response"]["output"][0]["content"], response["output"][0]["content"]);
}

TEST(Serve, AnswersUnderLoadAreThoseAloneAndClientsThatLeaveFreeTheirMemory) {
  const ServeProcess server({"--max-batch", "8"});
  const auto body = [](int i) {
    return ChatBody(
        fmt::format("{} Tell me of ship {}.", std::string(size_t{40} * (i % 3), 'a'), i),
        {{"seed", i}, {"stream", true}, {"max_tokens", 24}});
  };
  constexpr int kClients = 20;  // more than run together
  std::vector<std::string> alone;
  for (int i = 0; i < kClients; ++i) alone.push_back(StreamedText(server.Post(kChat, body(i))));

  std::vector<Connection> leaving;
  for (int i = 0; i < 6; ++i) {
    leaving.emplace_back(server.port());
    leaving.back().Send(PostText(kChat, ChatBody("On and on.", {{"seed", i},
                                                                {"stream", i % 2 == 0},
                                                                {"ignore_eos", true},
                                                                {"max_tokens", 900}})));
  }
  leaving[0].ReadUntil("content\":\"");
  std::vector<Connection> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back(server.port());
    clients.back().Send(PostText(kChat, body(i)));
  }
  leaving.clear();  // some in the middle of their streams, some before
  for (int i = 0; i < kClients; ++i) {
    const HttpAnswer answer = clients[static_cast<size_t>(i)].ReadAnswer();
    EXPECT_TRUE(answer.is_whole);
    EXPECT_EQ(StreamedText(answer), alone[static_cast<size_t>(i)]) << i;
  }
  EXPECT_TRUE(Eventually([&] {
    return server.Metric("vllm:num_requests_running") == 0 &&
           server.Metric("vllm:num_requests_waiting") == 0 &&
           server.Metric("vllm:kv_cache_usage_perc") == 0;
  }));
  EXPECT_TRUE(Eventually([&] { return server.log().find("finish=abort") != std::string::npos; }));
}

TEST(Serve, SurvivesHostileInput) {
  const ServeProcess server({"--max-body", "1"});
  std::vector<Connection> slow;
  for (int i = 0; i < 50; ++i) {
    slow.emplace_back(server.port());
    slow.back().Send("POST /v1/chat/comple");
  }
  const auto status = [&](const std::string& bytes) {
    Connection connection(server.port());
    connection.Send(bytes);
    return connection.ReadAnswer().status;
  };
  std::string many_headers = "GET /health HTTP/1.1\r\nHost: x\r\n";
  for (int i = 0; i < 10000; ++i) many_headers += fmt::format("X-{}: {}\r\n", i, i);
  EXPECT_EQ(status(many_headers + "\r\n"), 431);
  EXPECT_EQ(status(fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                               "Content-Length: 104857600\r\n\r\n",
                               kChat)),
            413);
  EXPECT_EQ(status(PostText(kChat, std::string(size_t{3} << 20, ' '))), 413);
  EXPECT_EQ(status(std::string("GET /health HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n", 41)), 400);
  EXPECT_EQ(status("\x16\x03\x01\x02 this is TLS \r\n\r\n"), 400);
  EXPECT_EQ(status("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                   "Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
            400);
  EXPECT_EQ(status(PostText(kChat, std::string("{\"messages\": \"\0\"}", 17))), 400);

  Connection pipelining(server.port());
  const std::string one = PostText("/tokenize", R"({"prompt": "a"})");
  pipelining.Send(one + one + "GET /version HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(pipelining.ReadAnswer().Json()["count"], 1);
  EXPECT_EQ(pipelining.ReadAnswer().Json()["count"], 1);
  EXPECT_EQ(pipelining.ReadAnswer().status, 200);

  Connection waiting(server.port());
  waiting.Send(
      "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Content-Length: 15\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_THAT(waiting.ReadUntil("\r\n\r\n"), HasSubstr("100 Continue"));
  waiting.Send(R"({"prompt": "a"})");
  EXPECT_EQ(waiting.ReadAnswer().status, 200);

  Connection old(server.port());
  old.Send(
      "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 49"
      "\r\n\r\n{\"prompt\": \"a\", \"max_tokens\": 2, \"stream\": true } ");
  EXPECT_THAT(old.ReadUntil("never"), HasSubstr("data: [DONE]"));
  EXPECT_EQ(server.Get("/health").status, 200);
}

TEST(Serve, EndsAcceptedRequestsAtSigtermOrSaysThatItDoesNot) {
  // Long answers: none has ended when the signal comes, however busy the machine is.
  const std::string body = ChatBody(
      "On and on.", {{"stream", true}, {"ignore_eos", true}, {"max_tokens", 600}, {"seed", 1}});
  ServeProcess patient({"--max-batch", "2"});
  std::vector<Connection> clients;
  for (int i = 0; i < 5; ++i) {
    clients.emplace_back(patient.port());
    clients.back().Send(PostText(kChat, body));
  }
  ASSERT_TRUE(Eventually([&] {
    return patient.Metric("vllm:num_requests_running") +
               patient.Metric("vllm:num_requests_waiting") ==
           5;
  }));
  patient.Signal(SIGTERM);
  for (Connection& client : clients) {
    const HttpAnswer answer = client.ReadAnswer();
    EXPECT_TRUE(answer.is_whole);
    EXPECT_EQ(answer.Events().back(), "[DONE]");
    EXPECT_THAT(answer.body, HasSubstr("\"finish_reason\":\"length\""));
  }
  EXPECT_EQ(patient.Wait(), 0) << patient.log();

  ServeProcess hasty({"--max-batch", "1", "--shutdown-timeout", "0"});
  const std::string endless =
      ChatBody("On and on.", {{"ignore_eos", true}, {"max_tokens", 900}, {"stream", true}});
  Connection running(hasty.port());
  running.Send(PostText(kChat, endless));
  running.ReadUntil("content\":\"");
  Connection queued(hasty.port());
  queued.Send(PostText(kChat, endless));
  ASSERT_TRUE(Eventually([&] { return hasty.Metric("vllm:num_requests_waiting") == 1; }));
  hasty.Signal(SIGTERM);
  const HttpAnswer cut = running.ReadAnswer();
  EXPECT_TRUE(cut.is_whole);
  EXPECT_THAT(cut.body, HasSubstr("\"error\""));
  EXPECT_EQ(queued.ReadAnswer().status, 503);
  EXPECT_EQ(hasty.Wait(), 1) << hasty.log();
}

TEST(Serve, RequestsThatAreStillReadAtSigtermAreAnsweredOrTold) {
  const std::string long_text(size_t{4} << 20, 'a');  // takes longer than the test to the signal
  const std::string slow = PostText("/tokenize", json{{"prompt", long_text}}.dump());
  const auto statuses_after_sigterm = [&](ServeProcess& server) {
    const auto is_accepted = [&](const char* path) {
      return server.log().find(fmt::format("event=accepted client=127.0.0.1 path={}", path)) !=
             std::string::npos;
    };
    Connection half(server.port());
    half.Send("GET /hea");
    Connection tokens(server.port());
    tokens.Send(slow);
    EXPECT_TRUE(Eventually([&] { return is_accepted("/tokenize"); }));
    Connection behind(server.port());
    behind.Send(PostText(kCompletions, json{{"prompt", long_text}}.dump()));
    EXPECT_TRUE(Eventually([&] { return is_accepted(kCompletions); }));
    server.Signal(SIGTERM);
    std::vector<int> statuses;
    for (Connection* client : {&half, &tokens, &behind}) {
      statuses.push_back(client->ReadAnswer().status);
    }
    return statuses;
  };
  ServeProcess patient({"--log-level", "debug"});
  EXPECT_EQ(statuses_after_sigterm(patient), (std::vector<int>{503, 200, 400}));
  EXPECT_EQ(patient.Wait(), 0) << patient.log();
  ServeProcess hasty({"--log-level", "debug", "--shutdown-timeout", "0"});
  EXPECT_EQ(statuses_after_sigterm(hasty), (std::vector<int>{503, 503, 503}));
  EXPECT_EQ(hasty.Wait(), 1) << hasty.log();
}

TEST(Serve, ASecondSignalEndsItAtOnce) {
  ServeProcess server({"--max-batch", "1", "--shutdown-timeout", "600"});
  // More than would be answered while this test waits.
  const std::string endless = ChatBody(
      "On and on.", {{"ignore_eos", true}, {"max_tokens", 900}, {"n", 100}, {"stream", true}});
  Connection client(server.port());
  client.Send(PostText(kChat, endless));
  client.ReadUntil("content\":\"");
  server.Signal(SIGTERM);
  ASSERT_TRUE(Eventually([&] { return server.log().find("event=draining") != std::string::npos; }));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 128 + SIGTERM) << server.log();
  EXPECT_THAT(server.log(), Not(HasSubstr("event=stopped")));
}

TEST(Serve, AClientThatIsKilledFreesItsMemory) {
  const ServeProcess server({});
  const std::string endless =
      ChatBody("On and on.", {{"ignore_eos", true}, {"max_tokens", 900}, {"n", 20}});
  const pid_t client = fork();
  if (client == 0) {
    Connection connection(server.port());
    connection.Send(PostText(kChat, endless));
    for (;;) pause();
  }
  EXPECT_TRUE(Eventually([&] { return server.Metric("vllm:kv_cache_usage_perc") > 0; }));
  kill(client, SIGKILL);
  waitpid(client, nullptr, 0);
  EXPECT_TRUE(Eventually([&] {
    return server.Metric("vllm:num_requests_running") == 0 &&
           server.Metric("vllm:kv_cache_usage_perc") == 0;
  }));
  EXPECT_THAT(server.log(), HasSubstr("finish=abort"));
}

TEST(Serve, TellsOfClientsThatGoBeforeTheirRequestIsRead) {
  const ServeProcess server({"--log-level", "debug"});
  const std::string long_text(size_t{4} << 20, 'a');
  for (const char* path : {"/tokenize", kCompletions}) {
    Connection client(server.port());
    client.Send(PostText(path, json{{"prompt", long_text}}.dump()));
    const std::string accepted = fmt::format("event=accepted client=127.0.0.1 path={}", path);
    EXPECT_TRUE(Eventually([&] { return server.log().find(accepted) != std::string::npos; }));
  }
  for (const char* path : {"/tokenize", kCompletions}) {
    const std::string line =
        fmt::format("event=request client=127.0.0.1 path={} status=499 finish=abort", path);
    EXPECT_TRUE(Eventually([&] { return server.log().find(line) != std::string::npos; })) << path;
  }
  EXPECT_THAT(
      server.Get("/metrics").body,
      HasSubstr("vllm:request_success_total{model_name=\"demo\",finished_reason=\"abort\"} 1"));
}

TEST(Serve, RaisesTheLimitOfOpenFilesAndLeaksNone) {
  rlimit before = {};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(256, before.rlim_max);
  setrlimit(RLIMIT_NOFILE, &low);
  const ServeProcess server({});
  setrlimit(RLIMIT_NOFILE, &before);
  rlimit raised = {};
  ASSERT_EQ(prlimit(server.pid(), RLIMIT_NOFILE, nullptr, &raised), 0);
  EXPECT_EQ(raised.rlim_cur, before.rlim_max);

  const auto num_files = [&] {
    return std::distance(
        std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", server.pid())), {});
  };
  ASSERT_EQ(server.Get("/health").status, 200);
  ASSERT_TRUE(Eventually([&] { return server.Metric("convene:connections") == 1; }));
  const auto files_before = num_files();
  {
    std::vector<Connection> clients;
    for (int i = 0; i < 300; ++i) {
      clients.emplace_back(server.port());
      clients.back().Send(i % 3 == 0   ? "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
                          : i % 3 == 1 ? PostText(kChat, ChatBody("a", {{"max_tokens", 1}}))
                                       : "POST /v1/chat");
    }
    EXPECT_EQ(clients[299 / 3 * 3].ReadAnswer().status, 200);
  }
  EXPECT_TRUE(Eventually([&] { return server.Metric("convene:connections") == 1; }));
  EXPECT_TRUE(Eventually([&] { return num_files() <= files_before; }));
}

TEST(Serve, BoundsTheQueueAndTheTimeOfRequests) {
  ServeProcess server({"--max-batch", "1", "--max-queue", "1", "--request-timeout", "1"});
  const std::string endless = ChatBody("On.", {{"ignore_eos", true}, {"max_tokens", 900}});
  std::vector<Connection> clients;
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back(server.port());
    clients.back().Send(PostText(kChat, endless));
  }
  int num_refused = 0;
  for (Connection& client : clients) {
    const HttpAnswer answer = client.ReadAnswer();
    EXPECT_THAT((std::vector<int>{200, 429, 503}), ::testing::Contains(answer.status));
    if (answer.status != 429) continue;
    ++num_refused;
    EXPECT_EQ(answer.headers.at("retry-after"), "1");
    EXPECT_EQ(answer.Json()["error"]["code"], "queue_full");
  }
  EXPECT_GE(num_refused, 3);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.log();
}

}  // namespace
}  // namespace convene
