// What requests were like in an epoch, an interval of time with enough of them, and whether they
// have become other ones. Pure; what follows from it is replanner.h.
#pragma once

#include <cstdint>
#include <optional>

namespace convene::server {

// Means.
struct LoadShape {
  double prompt_tokens = 0;
  double gen_tokens = 0;
  double num_running = 0;  // choices in a step
};

// Whether one of the figures is at least twice as large in one as in the other.
bool DifferMuch(const LoadShape& a, const LoadShape& b);

// Counts of an epoch.
class EpochCounts {
 public:
  // Fewer choices than these say little.
  static constexpr int64_t kFewestChoices = 16;

  void AddPrompt(int64_t num_tokens) {
    ++num_prompts_;
    prompt_tokens_ += num_tokens;
  }
  // A step of so many choices, which generated so many tokens; so many of them have ended with it.
  void AddStep(int num_running, int64_t num_generated, int64_t num_ended) {
    ++num_steps_;
    num_running_ += num_running;
    gen_tokens_ += num_generated;
    num_ended_ += num_ended;
  }

  // Nothing: there were too few choices.
  std::optional<LoadShape> Shape() const;

 private:
  int64_t num_prompts_ = 0;
  int64_t prompt_tokens_ = 0;
  int64_t num_steps_ = 0;
  int64_t num_running_ = 0;  // in all steps together
  int64_t gen_tokens_ = 0;
  int64_t num_ended_ = 0;
};

}  // namespace convene::server
