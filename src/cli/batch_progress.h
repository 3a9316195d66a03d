// What `batch` says of itself while it runs: prompts read, requests done, tokens per second, time
// left. Not its summary at the end.
#pragma once

#include <cstdint>
#include <string>

#include "base/message.h"

namespace convene::cli {

// One request on its way, in tokens.
struct RequestProgress {
  int64_t prompt_tokens = 0;
  int64_t most_tokens = 0;  // of its answer
  int64_t num_computed = 0;
  int64_t num_generated = 0;
};

// What of a batch is done, in which time, and what is expected of the rest. It knows no clock.
class BatchCounts {
 public:
  // Of all requests `num_waiting` will be begun. They are expected to be like the usual ones until
  // they are.
  BatchCounts(int64_t num_requests, int64_t num_waiting, double usual_prompt_tokens,
              double usual_answer_tokens)
      : num_requests_(num_requests),
        num_waiting_(num_waiting),
        usual_prompt_tokens_(usual_prompt_tokens),
        usual_answer_tokens_(usual_answer_tokens) {}

  void Begin(const RequestProgress& request);
  // So much of its prompt is computed now. Less than before changes nothing: a request that had to
  // give way is computed again.
  void Compute(RequestProgress& request, int64_t num_computed);
  // One more token; its prompt is computed then.
  void Generate(RequestProgress& request);
  void End(const RequestProgress& request);
  void EndUnbegun(bool was_waiting);
  // What has changed since the step before was done in so many seconds.
  void AddStep(double seconds);

  // In tokens, of all requests. Answers are as long as they may be, or as those that have ended
  // were on average for what they might have been.
  double all_prompt_tokens() const;
  double all_generated_tokens() const;
  // Below 0: nothing was seen yet that would tell.
  double seconds_left() const;
  double prompt_seconds_left() const;

  // "batch: 12 of 1,000 requests done, 85.3 tokens/s, 2 min 10 s left". Until one is done, also how
  // far prompts are; until a token is generated, only their time can be foreseen.
  std::string Describe() const;

 private:
  int64_t num_requests_;
  int64_t num_waiting_;
  double usual_prompt_tokens_;
  double usual_answer_tokens_;
  int64_t num_done_ = 0;
  int64_t begun_prompt_tokens_ = 0;
  int64_t computed_tokens_ = 0;
  int64_t generated_tokens_ = 0;
  int64_t open_most_tokens_ = 0;       // of answers that are begun
  int64_t open_generated_tokens_ = 0;  // likewise
  int64_t ended_most_tokens_ = 0;      // of answers that have ended
  // Of the steps so far. What a step took is shared by all of its tokens.
  double elapsed_s_ = 0;
  double prompt_s_ = 0;
  double generated_s_ = 0;
  int64_t step_computed_ = 0;  // since the step before
  int64_t step_generated_ = 0;
};

// Shows them: a line that moves at a terminal, one a minute elsewhere.
class BatchProgress {
 public:
  explicit BatchProgress(const BatchCounts& counts);

  BatchCounts& counts() { return counts_; }
  // After every step.
  void Update();

 private:
  BatchCounts counts_;
  ProgressLine::Clock::time_point last_step_ = ProgressLine::Clock::now();
  ProgressLine line_;
};

}  // namespace convene::cli
