// What `batch` says of itself while it runs: requests done, tokens per second, time left. Not its
// summary at the end.
#pragma once

#include <cstdint>
#include <string>

#include "base/message.h"

namespace convene::cli {

// "batch: 12 of 1,000 requests done, 85.3 tokens/s, 2 min 10 s left" after `elapsed_s` seconds. The
// time is what the rest takes at the rate of those done; until one is done there is none.
std::string DescribeProgress(int64_t num_done, int64_t num_requests, int64_t num_tokens,
                             double elapsed_s);

// A line that moves at a terminal, one a minute elsewhere.
class BatchProgress {
 public:
  explicit BatchProgress(int64_t num_requests);

  // After every step.
  void Update(int64_t num_done, int64_t num_tokens);

 private:
  int64_t num_requests_;
  ProgressLine::Clock::time_point start_ = ProgressLine::Clock::now();
  ProgressLine line_;
};

}  // namespace convene::cli
