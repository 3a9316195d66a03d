#include "server/engine_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace convene::server {
namespace {

const std::string kModel = CONVENE_SOURCE_DIR "/models/demo";

std::unique_ptr<engine::Engine> LoadDemo(int max_sequences = 2) {
  engine::LoadOptions options;
  options.max_sequences = 2;
  options.context = 512;
  auto model = engine::LoadedModel::Load(kModel, options, {});
  CHECK(model.ok(), "{}", model.error().message);
  auto tokenizer = text::Tokenizer::Load(kModel);
  CHECK(tokenizer.ok(), "{}", tokenizer.error().message);
  return std::make_unique<engine::Engine>(*std::move(model), *std::move(tokenizer), max_sequences);
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
  ASSERT_EQ(queue.Push(MakeJob(kLeaving, 200, 300)).admission, Admission::kAccepted);
  ASSERT_EQ(queue.Push(MakeJob(kStaying, 2, 12)).admission, Admission::kAccepted);
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
    ASSERT_EQ(queue.Push(MakeJob(id, 5, 400)).admission, Admission::kAccepted);
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

// A job's first choice computes the prompt that the others repeat; a job of many choices leaves
// places to others.
TEST(EngineLoop, AJobOfManyChoicesReadsItsPromptOnceAndLetsOthersInBetween) {
  const std::unique_ptr<engine::Engine> engine = LoadDemo();
  JobQueue queue(100);
  Metrics metrics;
  Job many = MakeJob(1, 200, 10);
  many.requests.resize(12, many.requests.front());
  many.client = "a";
  ASSERT_EQ(queue.Push(std::move(many)).admission, Admission::kAccepted);
  Job other = MakeJob(2, 5, 10);
  other.client = "b";
  ASSERT_EQ(queue.Push(std::move(other)).admission, Admission::kAccepted);
  queue.Close();
  std::vector<JobId> ended;
  int num_computed = 0;  // prompts of the first job
  const auto sink = [&](const std::vector<JobEvent>& events) {
    for (const JobEvent& event : events) {
      if (event.is_first && event.job == 1) num_computed += event.update.num_reused_tokens == 0;
      if (event.update.finish) ended.push_back(event.job);
    }
  };
  EXPECT_EQ(EngineLoop(*engine, queue, metrics, 2, sink).Run(), 0);
  EXPECT_EQ(num_computed, 1);
  ASSERT_EQ(ended.size(), 13u);
  EXPECT_LT(std::ranges::find(ended, 2u) - ended.begin(), 3);
}

// Two of its choices run, the others wait: all end, or are told.
TEST(EngineLoop, AJobThatWasTakenInPartEndsWhole) {
  const std::unique_ptr<engine::Engine> engine = LoadDemo();
  for (const bool is_abort : {true, false}) {
    JobQueue queue(100);
    Metrics metrics;
    Job job = MakeJob(1, 20, 400);
    job.requests.resize(6, job.requests.front());
    if (!is_abort) job.deadline = Clock::now() + std::chrono::milliseconds(50);
    ASSERT_EQ(queue.Push(std::move(job)).admission, Admission::kAccepted);
    std::vector<int> told;
    const auto sink = [&](const std::vector<JobEvent>& events) {
      for (const JobEvent& event : events) {
        if (event.update.error || event.update.finish) told.push_back(event.choice_idx);
      }
      if (is_abort && queue.num_waiting() < 5) queue.Abort();
      if (!told.empty()) queue.Close();
    };
    EXPECT_EQ(EngineLoop(*engine, queue, metrics, 2, sink).Run(), is_abort ? 6 : 0);
    std::ranges::sort(told);
    EXPECT_EQ(told, (std::vector<int>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(queue.num_waiting(), 0);
    EXPECT_EQ(engine->num_requests(), 0);
  }
}

// On a KV cache for two of 512 tokens eight may run, of 200 tokens each: blocks, and not places,
// say who waits.
class ShortOfBlocks {
 public:
  explicit ShortOfBlocks(int num_jobs, const std::string& client) : engine_(LoadDemo(8)) {
    for (JobId id = 1; id <= static_cast<JobId>(num_jobs); ++id) Push(id, 200, 40, client, 0);
  }

  void Push(JobId id, size_t num_prompt_tokens, int max_tokens, const std::string& client,
            int64_t priority) {
    Job job = MakeJob(id, num_prompt_tokens, max_tokens);
    job.client = client;
    job.priority = priority;
    job.requests[0].priority = client.empty() ? priority : 0;
    ASSERT_EQ(queue_.Push(std::move(job)).admission, Admission::kAccepted);
  }

  // Calls `after_step` with the number of each; the jobs in the order in which their tokens began.
  std::vector<JobId> Run(const std::function<void(int)>& after_step) {
    std::vector<JobId> begun;
    int num_steps = 0;
    const auto sink = [&](const std::vector<JobEvent>& events) {
      for (const JobEvent& event : events) {
        if (event.is_first) begun.push_back(event.job);
      }
      after_step(++num_steps);
      if (num_steps == 3) queue_.Close();
    };
    EXPECT_EQ(EngineLoop(*engine_, queue_, metrics_, 8, sink).Run(), 0);
    return begun;
  }

  const JobQueue& queue() const { return queue_; }

 private:
  std::unique_ptr<engine::Engine> engine_;
  JobQueue queue_{100};
  Metrics metrics_;
};

TEST(EngineLoop, AnUrgentRequestDoesNotWaitForKvBlocks) {
  ShortOfBlocks load(8, "");
  size_t num_begun = 0;
  const std::vector<JobId> begun = load.Run([&](int num_steps) {
    if (num_steps != 2) return;
    EXPECT_GT(load.queue().num_waiting(), 2);  // and not in the engine, where nobody overtakes
    num_begun = static_cast<size_t>(8 - load.queue().num_waiting());
    load.Push(99, 20, 10, "", -100);
  });
  ASSERT_EQ(begun.size(), 9u);
  EXPECT_LE(std::ranges::find(begun, 99u) - begun.begin(), static_cast<ptrdiff_t>(num_begun));
}

TEST(EngineLoop, ClientsTakeTurnsWhereKvBlocksAreFew) {
  ShortOfBlocks load(8, "a");
  const std::vector<JobId> begun = load.Run([&](int num_steps) {
    if (num_steps == 2) load.Push(99, 200, 10, "b", 0);
  });
  ASSERT_EQ(begun.size(), 9u);
  EXPECT_LT(std::ranges::find(begun, 99u) - begun.begin(), 6);
}

}  // namespace
}  // namespace convene::server
