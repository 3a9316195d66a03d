#include "server/engine_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace convene::server {
namespace {

const std::string kModel = CONVENE_SOURCE_DIR "/models/demo";

std::unique_ptr<engine::Engine> LoadDemo() {
  engine::LoadOptions options;
  options.max_sequences = 2;
  options.context = 512;
  auto model = engine::LoadedModel::Load(kModel, options, {});
  CHECK(model.ok(), "{}", model.error().message);
  auto tokenizer = text::Tokenizer::Load(kModel);
  CHECK(tokenizer.ok(), "{}", tokenizer.error().message);
  return std::make_unique<engine::Engine>(*std::move(model), *std::move(tokenizer), 2);
}

Job MakeJob(JobId id, size_t num_prompt_tokens, int max_tokens) {
  engine::Request request;
  request.prompt.assign(num_prompt_tokens, 300 + static_cast<int32_t>(id));
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return {.id = id, .requests = {request}};
}

bool HasJob(const std::vector<JobEvent>& events, JobId id) {
  return std::ranges::find(events, id, &JobEvent::job) != events.end();
}

TEST(EngineLoop, ARequestWhoseClientGoesHoldsNoMemoryInTheNextStep) {
  const std::unique_ptr<engine::Engine> engine = LoadDemo();
  JobQueue queue(8);
  Metrics metrics;
  constexpr JobId kLeaving = 1;
  constexpr JobId kStaying = 2;
  ASSERT_EQ(queue.Push(MakeJob(kLeaving, 200, 300)), Admission::kAccepted);
  ASSERT_EQ(queue.Push(MakeJob(kStaying, 2, 12)), Admission::kAccepted);
  queue.Close();
  int num_steps = 0;
  int cancelled_at = 0;
  int held_before = 0;
  const auto sink = [&](const std::vector<JobEvent>& events) {
    ++num_steps;
    if (cancelled_at == 0) {
      EXPECT_TRUE(HasJob(events, kLeaving));
      if (num_steps < 4) return;
      held_before = engine->num_held_kv_blocks();
      queue.Cancel(kLeaving);  // as the HTTP thread does when the connection is closed
      cancelled_at = num_steps;
      return;
    }
    EXPECT_FALSE(HasJob(events, kLeaving));
    if (num_steps != cancelled_at + 1) return;
    // Of the other request, which has fewer tokens than a block.
    EXPECT_GT(held_before, 1);
    EXPECT_EQ(engine->num_held_kv_blocks(), 1);
    EXPECT_EQ(engine->num_requests(), 1);
  };
  EXPECT_EQ(EngineLoop(*engine, queue, metrics, 2, sink).Run(), 0);
  EXPECT_EQ(num_steps, 12);
  EXPECT_EQ(cancelled_at, 4);
}

TEST(EngineLoop, AnAbortTellsEveryRequestThatItEnded) {
  const std::unique_ptr<engine::Engine> engine = LoadDemo();
  JobQueue queue(8);
  Metrics metrics;
  // Two run, two wait.
  for (JobId id = 1; id <= 4; ++id) {
    ASSERT_EQ(queue.Push(MakeJob(id, 5, 400)), Admission::kAccepted);
  }
  std::vector<JobId> told;
  const auto sink = [&](const std::vector<JobEvent>& events) {
    for (const JobEvent& event : events) {
      if (event.update.error) told.push_back(event.job);
    }
    queue.Abort();
  };
  EXPECT_EQ(EngineLoop(*engine, queue, metrics, 2, sink).Run(), 4);
  std::ranges::sort(told);
  EXPECT_EQ(told, (std::vector<JobId>{1, 2, 3, 4}));
  EXPECT_EQ(engine->num_held_kv_blocks(), 0);
}

}  // namespace
}  // namespace convene::server
