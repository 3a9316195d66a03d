#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/score_tokens.h"

namespace convene::engine {
namespace {

using ::testing::HasSubstr;

const std::string kModels = CONVENE_SOURCE_DIR "/tests/golden/models/";

// A token per printable ASCII character, at its code; the rest have names of no use in a text.
text::Tokenizer AsciiTokenizer(int vocab_size) {
  nlohmann::json vocab;
  for (int id = 0; id < vocab_size; ++id) {
    const bool is_printable = id > ' ' && id < 127;
    vocab[is_printable ? std::string(1, static_cast<char>(id)) : fmt::format("<{}>", id)] = id;
  }
  const nlohmann::json tokenizer = {
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}},
  };
  Result<text::Tokenizer> result = text::Tokenizer::FromJson(tokenizer.dump());
  CHECK(result.ok(), "{}", result.error().message);
  return *std::move(result);
}

std::unique_ptr<Engine> Load(const LoadOptions& options, const std::string& name = "olmoe_plain") {
  Result<std::unique_ptr<LoadedModel>> model = LoadedModel::Load(kModels + name, options, {});
  CHECK(model.ok(), "{}", model.error().message);
  text::Tokenizer tokenizer = AsciiTokenizer((*model)->spec().vocab_size);
  return std::make_unique<Engine>(*std::move(model), std::move(tokenizer), options.max_sequences);
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<double> logprobs;
  std::string text;
  std::optional<FinishReason> finish;
};

// Runs the engine until all its requests are done.
std::map<RequestId, Answer> Finish(Engine& engine) {
  std::map<RequestId, Answer> answers;
  while (engine.num_requests() > 0) {
    for (const Update& update : engine.Step()) {
      Answer& answer = answers[update.request];
      EXPECT_FALSE(answer.finish);
      answer.tokens.push_back(update.token.token);
      answer.logprobs.push_back(update.token.logprob);
      answer.text += update.text;
      answer.finish = update.finish;
    }
  }
  return answers;
}

Answer Ask(Engine& engine, const Request& request) {
  const Result<RequestId> id = engine.Submit(request);
  CHECK(id.ok(), "{}", id.error().message);
  return Finish(engine).at(*id);
}

Request Greedy(std::vector<int32_t> prompt, int max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  request.ignore_eos = true;
  return request;
}

std::vector<int32_t> RandomPrompt(std::mt19937& random, int length, int vocab_size = 128) {
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % vocab_size);
  return prompt;
}

// Requests of many shapes, some of which begin alike.
std::vector<Request> MixedRequests(uint32_t seed, int vocab_size = 128) {
  std::mt19937 random(seed);
  const std::vector<int32_t> shared = RandomPrompt(random, 150, vocab_size);
  std::vector<Request> requests;
  for (const int length : {1, 3, 64, 65, 130, 200, 40, 17}) {
    std::vector<int32_t> prompt = RandomPrompt(random, length, vocab_size);
    if (requests.size() % 2 == 0) prompt.insert(prompt.begin(), shared.begin(), shared.end());
    requests.push_back(Greedy(std::move(prompt), 5 + static_cast<int>(random() % 60)));
    requests.back().num_logprobs = 0;
    if (requests.size() % 3 == 0) requests.back().sampling = {.temperature = 1.5, .seed = random()};
  }
  return requests;
}

TEST(Engine, EndsARequestWhoseValuesOverflowAndNamesTheLayer) {
  LoadOptions options{.context = 64};
  options.edit = [](model::TensorRole role, int, std::vector<float>& values) {
    if (role != model::TensorRole::kExpertDown) return;
    for (float& value : values) value = std::copysign(3e38f, value);
  };
  const auto engine = Load(options);
  const Result<RequestId> id = engine->Submit(Greedy({5, 6, 7}, 4));
  ASSERT_TRUE(id);
  const std::vector<Update> updates = engine->Step();
  ASSERT_EQ(updates.size(), 1u);
  ASSERT_TRUE(updates[0].error);
  EXPECT_FALSE(updates[0].finish);
  EXPECT_EQ(updates[0].request, *id);
  EXPECT_THAT(updates[0].error->message, HasSubstr("values overflow in layer 0 ("));
  EXPECT_EQ(engine->num_requests(), 0);
}

TEST(Engine, AStepThatFailsEndsItsRequestsAndLeavesNothingInTheCache) {
  bool fails = false;
  LoadOptions options{.context = 256, .max_step_tokens = 256, .max_sequences = 2};
  options.experiment.before_task = [&](const schedule::Task& task) -> Status {
    // Keys and values of the first layer are in the cache by then.
    if (fails && task.layer == 1) return ResourceExhausted("planted");
    return {};
  };
  std::mt19937 random(7);
  const std::vector<int32_t> prompt = RandomPrompt(random, 150);
  const Answer expected = Ask(*Load({.context = 256}), Greedy(prompt, 4));

  const auto engine = Load(options);
  std::vector<int32_t> other = prompt;
  other.back() = 5;
  ASSERT_TRUE(engine->Submit(Greedy(prompt, 4)));
  ASSERT_TRUE(engine->Submit(Greedy(other, 4)));
  fails = true;
  std::map<RequestId, int> num_errors;
  while (engine->num_requests() > 0) {
    for (const Update& update : engine->Step()) {
      ASSERT_TRUE(update.error);
      EXPECT_EQ(update.error->kind, ErrorKind::kResourceExhausted);
      EXPECT_THAT(update.error->message, HasSubstr("of layer 1 failed"));
      EXPECT_THAT(update.error->message, HasSubstr("planted"));
      ++num_errors[update.request];
    }
  }
  EXPECT_EQ(num_errors.size(), 2u);
  for (const auto& [request, count] : num_errors) EXPECT_EQ(count, 1) << request;
  fails = false;
  const Answer answer = Ask(*engine, Greedy(prompt, 4));
  EXPECT_EQ(answer.tokens, expected.tokens);
  EXPECT_EQ(answer.logprobs, expected.logprobs);
  EXPECT_EQ(engine->num_reused_tokens(), 0);
}

class EngineOnModel : public ::testing::TestWithParam<const char*> {};

TEST_P(EngineOnModel, AnswersDoNotDependOnCompanyPrefixesChunksOrPreemption) {
  std::vector<Request> requests;
  std::vector<Answer> expected;
  for (size_t i = 0; i < 8; ++i) {
    const auto fresh = Load({.context = 512}, GetParam());
    requests = MixedRequests(5, fresh->model().spec().vocab_size);
    ASSERT_EQ(requests.size(), 8u);
    expected.push_back(Ask(*fresh, requests[i]));
  }
  for (const LoadOptions& options :
       {LoadOptions{.context = 512, .max_step_tokens = 512, .max_sequences = 8},
        LoadOptions{.context = 512, .max_step_tokens = 9, .max_sequences = 3},
        LoadOptions{.context = 512, .max_step_tokens = 100, .max_sequences = 1}}) {
    const auto engine = Load(options, GetParam());
    // The second finds everything in the cache; the third computes what is padding besides.
    for (int round = 0; round < 3; ++round) {
      std::vector<RequestId> ids;
      for (Request& request : requests) {
        request.padded_length = round < 2 ? 0 : 400;
        ids.push_back(*engine->Submit(request));
      }
      const std::map<RequestId, Answer> answers = Finish(*engine);
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(answers.at(ids[i]).tokens, expected[i].tokens) << "request " << i;
        EXPECT_EQ(answers.at(ids[i]).logprobs, expected[i].logprobs) << "request " << i;
        EXPECT_EQ(answers.at(ids[i]).text, expected[i].text) << "request " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, EngineOnModel,
                         ::testing::Values("olmoe_plain", "mixtral_plain", "deepseek_v2_groups",
                                           "gpt_oss_plain"));

TEST(Engine, AnswersOfAnEncoderDecoderDoNotDependOnCompanyOrPreemption) {
  std::vector<Request> requests = MixedRequests(9, 100);
  std::vector<Answer> expected;
  const LoadOptions alone{.context = 384, .max_step_tokens = 384};
  for (const Request& request : requests) {
    expected.push_back(Ask(*Load(alone, "switch_plain"), request));
    EXPECT_EQ(std::ssize(expected.back().tokens), *request.max_tokens);
  }
  for (const int max_sequences : {1, 3, 8}) {
    // Blocks for `max_sequences` inputs and answers; more sequences than that have to wait.
    const LoadOptions options{
        .context = 384, .max_step_tokens = 384, .max_sequences = max_sequences};
    Result<std::unique_ptr<LoadedModel>> model =
        LoadedModel::Load(kModels + "switch_plain", options, {});
    ASSERT_TRUE(model);
    Engine engine(*std::move(model), std::nullopt, /*max_sequences=*/8);
    for (int round = 0; round < 2; ++round) {
      std::vector<RequestId> ids;
      for (const Request& request : requests) ids.push_back(*engine.Submit(request));
      const std::map<RequestId, Answer> answers = Finish(engine);
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(answers.at(ids[i]).tokens, expected[i].tokens) << "request " << i;
        EXPECT_EQ(answers.at(ids[i]).logprobs, expected[i].logprobs) << "request " << i;
      }
    }
  }
}

TEST(Engine, AnEncodersInputMustFitInAStep) {
  const auto engine = Load({.context = 384, .max_step_tokens = 64}, "switch_plain");
  std::mt19937 random(4);
  const Result<RequestId> id = engine->Submit(Greedy(RandomPrompt(random, 65, 100), 3));
  ASSERT_FALSE(id);
  EXPECT_THAT(id.error().message, HasSubstr("raise --chunk"));
  EXPECT_EQ(Ask(*engine, Greedy(RandomPrompt(random, 64, 100), 3)).tokens.size(), 3u);
}

TEST(Engine, PreemptedRequestsGiveTheSameAnswers) {
  std::mt19937 random(8);
  std::vector<Request> requests;
  for (int i = 0; i < 5; ++i) requests.push_back(Greedy(RandomPrompt(random, 50), 250));
  std::vector<Answer> expected;
  {
    const auto roomy = Load({.context = 320, .max_sequences = 5});
    for (const Request& request : requests) expected.push_back(Ask(*roomy, request));
  }
  // Blocks for one full context only.
  const LoadOptions options{.context = 320, .max_sequences = 1};
  Result<std::unique_ptr<LoadedModel>> model =
      LoadedModel::Load(kModels + "olmoe_plain", options, {});
  ASSERT_TRUE(model);
  Engine tight(*std::move(model), std::nullopt, /*max_sequences=*/5);
  std::vector<RequestId> ids;
  for (const Request& request : requests) ids.push_back(*tight.Submit(request));
  const std::map<RequestId, Answer> answers = Finish(tight);
  EXPECT_GT(tight.num_preemptions(), 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(answers.at(ids[i]).tokens, expected[i].tokens) << "request " << i;
  }
}

TEST(Engine, PaddedPromptsAreComputedToTheirEndAndGiveTheSameAnswers) {
  std::mt19937 random(8);
  std::vector<Request> requests;
  for (const int length : {1, 30, 64, 65, 100}) {
    requests.push_back(Greedy(RandomPrompt(random, length), 60));
  }
  std::vector<Answer> expected;
  for (const Request& request : requests) expected.push_back(Ask(*Load({.context = 320}), request));
  // With blocks for all, and for one full context only.
  for (const int max_sequences : {5, 1}) {
    const LoadOptions options{
        .context = 320, .max_step_tokens = 50, .max_sequences = max_sequences};
    Result<std::unique_ptr<LoadedModel>> model =
        LoadedModel::Load(kModels + "olmoe_plain", options, {});
    ASSERT_TRUE(model);
    Engine engine(*std::move(model), std::nullopt, /*max_sequences=*/5);
    std::vector<RequestId> ids;
    for (Request& request : requests) {
      request.padded_length = 100;
      ids.push_back(*engine.Submit(request));
    }
    const std::map<RequestId, Answer> answers = Finish(engine);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(answers.at(ids[i]).tokens, expected[i].tokens) << "request " << i;
    }
    if (max_sequences == 5) {
      EXPECT_EQ(engine.num_preemptions(), 0);
    }
  }
}

TEST(Engine, ReportsHowMuchOfAPromptWasComputed) {
  std::mt19937 random(8);
  const auto engine = Load({.context = 512, .max_step_tokens = 100});
  Request request = Greedy(RandomPrompt(random, 250), 3);
  const Answer expected = Ask(*engine, request);
  request.reports_progress = true;
  // The second finds whole blocks of 64 tokens in the cache; another prompt none.
  for (const int num_cached : {192, 0}) {
    if (num_cached == 0) request.prompt = RandomPrompt(random, 250);
    const RequestId id = *engine->Submit(request);
    std::vector<int> computed;
    std::vector<int32_t> tokens;
    while (engine->num_requests() > 0) {
      for (const Update& update : engine->Step()) {
        EXPECT_EQ(update.request, id);
        EXPECT_EQ(update.num_reused_tokens, num_cached);
        if (!update.progress) {
          tokens.push_back(update.token.token);
          continue;
        }
        EXPECT_TRUE(tokens.empty());
        EXPECT_EQ(update.progress->num_tokens, 250);
        computed.push_back(update.progress->num_computed);
      }
    }
    if (num_cached > 0) {
      EXPECT_EQ(tokens, expected.tokens);
    }
    EXPECT_EQ(computed, num_cached > 0 ? std::vector<int>() : std::vector<int>({100, 200}));
  }
}

TEST(Engine, APaddedPromptMustFitTheContext) {
  const auto engine = Load({.context = 128});
  Request request = Greedy({1, 2, 3}, 4);
  request.padded_length = 125;
  const Result<RequestId> id = engine->Submit(request);
  ASSERT_FALSE(id);
  EXPECT_THAT(id.error().message, HasSubstr("raise --context"));
  request.padded_length = 124;
  EXPECT_EQ(Ask(*engine, request).tokens.size(), 4u);
}

TEST(Engine, ANextTurnReusesPromptAndAnswer) {
  std::mt19937 random(2);
  const auto engine = Load({.context = 512});
  std::vector<int32_t> conversation = RandomPrompt(random, 100);
  const Answer first = Ask(*engine, Greedy(conversation, 60));
  EXPECT_EQ(engine->num_reused_tokens(), 0);
  conversation.insert(conversation.end(), first.tokens.begin(), first.tokens.end());
  conversation.push_back(5);
  Ask(*engine, Greedy(conversation, 3));
  EXPECT_EQ(engine->num_reused_tokens(), 128);
}

TEST(Engine, LogprobsAreThoseOfTheScoredSequence) {
  std::mt19937 random(3);
  auto engine = Load({.context = 128});
  Request request = Greedy(RandomPrompt(random, 30), 10);
  request.num_logprobs = 3;
  std::vector<int32_t> sequence = request.prompt;
  ASSERT_TRUE(engine->Submit(request));
  std::vector<GeneratedToken> generated;
  while (engine->num_requests() > 0) {
    for (const Update& update : engine->Step()) generated.push_back(update.token);
  }
  for (const GeneratedToken& token : generated) sequence.push_back(token.token);

  engine.reset();
  const LoadOptions options{.num_threads = 1, .context = 128, .max_step_tokens = 7};
  Result<std::unique_ptr<LoadedModel>> model =
      LoadedModel::Load(kModels + "olmoe_plain", options, {});
  ASSERT_TRUE(model);
  const std::span<const int32_t> sequences[] = {sequence};
  int num_compared = 0;
  ASSERT_TRUE(ForEachLogits(**model, sequences, [&](int, int position, auto logits) {
    const int index = position - 29;
    if (index < 0 || index >= 10) return;
    const GeneratedToken& token = generated[static_cast<size_t>(index)];
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit});
    EXPECT_NEAR(token.logprob, logits[static_cast<size_t>(token.token)] - std::log(sum), 1e-9);
    ASSERT_EQ(token.top.size(), 3u);
    EXPECT_EQ(token.top[0].token, token.token);
    EXPECT_EQ(token.top[0].logprob, token.logprob);
    EXPECT_GE(token.top[1].logprob, token.top[2].logprob);
    ++num_compared;
  }));
  EXPECT_EQ(num_compared, 10);
}

std::vector<float> AllLogits(const LoadOptions& options, std::span<const int32_t> tokens) {
  const auto model = LoadedModel::Load(kModels + "dbrx_top1", options, {});
  CHECK(model.ok(), "{}", model.error().message);
  std::vector<float> all;
  const std::span<const int32_t> sequences[] = {tokens, tokens.subspan(20)};
  CHECK(ForEachLogits(**model, sequences, [&](int, int, auto logits) {
          all.insert(all.end(), logits.begin(), logits.end());
        }).ok());
  return all;
}

TEST(Engine, ExpertCapacityDoesNotDependOnChunks) {
  std::vector<int32_t> tokens(100);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7 % 50);
  const std::vector<float> dropless = AllLogits({.context = 256}, tokens);
  EXPECT_EQ(AllLogits({.context = 256, .expert_capacity = 100}, tokens), dropless);
  const std::vector<float> limited = AllLogits({.context = 256, .expert_capacity = 5}, tokens);
  EXPECT_NE(limited, dropless);
  for (const int chunk : {1, 7, 33}) {
    EXPECT_EQ(AllLogits({.context = 256, .max_step_tokens = chunk, .expert_capacity = 5}, tokens),
              limited)
        << chunk;
  }
}

TEST(Engine, ExpertCapacityIsForOneExpertPerToken) {
  const auto model = LoadedModel::Load(kModels + "olmoe_plain", {.expert_capacity = 5}, {});
  ASSERT_FALSE(model);
  EXPECT_THAT(model.error().message, HasSubstr("--expert-capacity"));
}

TEST(Engine, StopStringsEndTheAnswerBeforeThem) {
  const auto engine = Load({.context = 256});
  Request request = Greedy({65, 66, 67}, 100);
  request.sampling = {.temperature = 1.0, .seed = 4};
  const Answer whole = Ask(*engine, request);
  ASSERT_GT(whole.text.size(), 60u);
  request.stop = {"never in it", whole.text.substr(20, 3)};
  const Answer stopped = Ask(*engine, request);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(request.stop[1])));
  EXPECT_LT(stopped.tokens.size(), whole.tokens.size());
}

TEST(Engine, EndsAtMaxTokensOrWhereTheContextIsFull) {
  const auto engine = Load({.context = 70});
  std::mt19937 random(6);
  const Answer short_one = Ask(*engine, Greedy({1, 2}, 5));
  EXPECT_EQ(short_one.tokens.size(), 5u);
  EXPECT_EQ(short_one.finish, FinishReason::kLength);
  Request request = Greedy(RandomPrompt(random, 60), 1);
  request.max_tokens.reset();
  EXPECT_EQ(Ask(*engine, request).tokens.size(), 10u);
  request.max_tokens = 1 << 30;
  EXPECT_EQ(Ask(*engine, request).tokens.size(), 10u);
}

TEST(Engine, EndsAtTheEndOfTextTokenUnlessToldToGoOn) {
  const auto engine = Load({.context = 512});
  const std::vector<int> eos = engine->model().generation_config().eos_token_ids;
  ASSERT_FALSE(eos.empty());
  Request request = Greedy({1, 2, 3}, 400);
  request.sampling = {.temperature = 3.0, .seed = 1};  // nearly uniform: the token comes soon
  const Answer endless = Ask(*engine, request);
  EXPECT_EQ(endless.tokens.size(), 400u);
  const auto first_eos = std::find(endless.tokens.begin(), endless.tokens.end(), eos[0]);
  ASSERT_NE(first_eos, endless.tokens.end());
  request.ignore_eos = false;
  const Answer answer = Ask(*engine, request);
  EXPECT_EQ(answer.finish, FinishReason::kStop);
  EXPECT_EQ(answer.tokens, std::vector<int32_t>(endless.tokens.begin(), first_eos + 1));
}

TEST(Engine, CancelledRequestsSendNothingMore) {
  const auto engine = Load({.context = 256, .max_sequences = 2});
  const RequestId first = *engine->Submit(Greedy({1, 2, 3}, 50));
  const RequestId second = *engine->Submit(Greedy({4, 5, 6}, 5));
  const RequestId waiting = *engine->Submit(Greedy({7, 8}, 5));
  engine->Step();
  engine->Cancel(first);
  engine->Cancel(waiting);
  engine->Cancel(first);  // again: no effect
  const std::map<RequestId, Answer> rest = Finish(*engine);
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest.begin()->first, second);
}

TEST(Engine, RefusesWhatCannotRunAndSaysWhatToChange) {
  const auto engine = Load({.context = 64});
  std::mt19937 random(7);
  const auto error = [&](const Request& request) {
    const Result<RequestId> id = engine->Submit(request);
    return id ? std::string("accepted") : id.error().message;
  };
  EXPECT_THAT(error(Greedy({}, 1)), HasSubstr("no tokens"));
  EXPECT_THAT(error(Greedy({1, 128}, 1)), HasSubstr("token id 128 at index 1"));
  EXPECT_THAT(error(Greedy({-1}, 1)), HasSubstr("token id -1"));
  EXPECT_THAT(error(Greedy(RandomPrompt(random, 64), 1)), HasSubstr("raise --context"));
  EXPECT_THAT(error(Greedy({1}, 0)), HasSubstr("max_tokens 0"));
  Request request = Greedy({1}, 1);
  request.sampling.top_p = 2;
  EXPECT_THAT(error(request), HasSubstr("top_p 2"));
  request = Greedy({1}, 1);
  request.stop = {""};
  EXPECT_THAT(error(request), HasSubstr("stop string of 0 bytes"));
  request.stop.assign(17, "x");
  EXPECT_THAT(error(request), HasSubstr("17 stop strings"));
  request = Greedy({1}, 1);
  request.num_logprobs = 101;
  EXPECT_THAT(error(request), HasSubstr("101 logprobs"));
  EXPECT_EQ(engine->num_requests(), 0);
  EXPECT_EQ(Ask(*engine, Greedy(RandomPrompt(random, 63), 5)).tokens.size(), 1u);
}

TEST(DefaultSampling, IsGreedyUnlessTheCheckpointSamples) {
  EXPECT_EQ(DefaultSampling({}).temperature, 0);
  checkpoint::GenerationConfig config;
  config.temperature = 0.6;
  EXPECT_EQ(DefaultSampling(config).temperature, 0);
  config.do_sample = true;
  EXPECT_EQ(DefaultSampling(config).temperature, 0.6);
  EXPECT_EQ(DefaultSampling(config).top_k, 50);
  config.top_k = 20;
  config.top_p = 0.9;
  config.min_p = 0.1;
  config.repetition_penalty = 1.1;
  const SamplingOptions sampling = DefaultSampling(config);
  EXPECT_EQ(sampling.top_k, 20);
  EXPECT_EQ(sampling.top_p, 0.9);
  EXPECT_EQ(sampling.min_p, 0.1);
  EXPECT_EQ(sampling.repetition_penalty, 1.1);
  config.do_sample = false;
  EXPECT_EQ(DefaultSampling(config).temperature, 0);
}

}  // namespace
}  // namespace convene::engine
