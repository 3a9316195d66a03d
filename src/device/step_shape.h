// How large steps are at most: what the memory that a device works in follows from.
#pragma once

#include <cstdint>
#include <vector>

namespace convene::device {

// How large a frame is.
struct FrameShape {
  int tokens = 0;  // of this rank's sequences in the micro-batch; 0 where it has no attention
  int slots = 0;   // (token, expert) pairs; at least `tokens`
  bool is_partial = false;     // attention's heads are divided among ranks
  int64_t exchange_bytes = 0;  // of what travels between ranks
};

// How large steps are.
struct StepShape {
  std::vector<FrameShape> frames = {};  // by micro-batch; none is larger than the first
  int head_rows = 0;                    // rows whose logits are wanted in a step
  int context = 0;                      // of the longest sequence, in tokens
  int num_ranks = 1;
};

}  // namespace convene::device
