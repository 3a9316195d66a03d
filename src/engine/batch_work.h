// A batch as it is known before it runs: how many requests, how long they are, and what may be
// chosen for them. How it is chosen is choose_batch.h.
#pragma once

#include <cstdint>

namespace convene::engine {

// Requests that are all there at once.
struct BatchWork {
  int64_t num_requests = 1;
  double prompt_tokens = 1;  // of a request, on average
  double gen_tokens = 1;     // likewise, at least 1
  int longest = 0;  // tokens of the longest with its answer; 0: as long as the context may be
  // What may be chosen; otherwise it is as in LoadOptions. Where all weights fit memory, sequences
  // are chosen with `plans` alone: without it nothing is chosen that need not be.
  bool chooses_sequences = false;
  bool plans = true;
  bool chooses_step_tokens = false;

  double all_gen_tokens() const { return static_cast<double>(num_requests) * gen_tokens; }
};

// KV blocks that a sequence of the work takes, on average, with the one that the scheduler wants to
// be free before it lets another sequence in. Where all requests are alike, that one is among those
// which a sequence fills later.
int BlocksOfSequence(const BatchWork& work);

// Steps until all requests are answered: as many as generate, `max_sequences` at a time, behind
// those that read the first prompts; or as all tokens fill, if these are more. Answers are about as
// long as each other, so those that come last take as many steps as any, however few they are.
double StepsOf(const BatchWork& work, int max_sequences, int max_step_tokens);

}  // namespace convene::engine
