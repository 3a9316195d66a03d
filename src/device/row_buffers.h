// A frame's memory for the rows that ranks exchange besides those of experts (expert_rows.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/exchange_memory.h"
#include "strategy/role.h"

namespace convene::device {

// As large as any step needs it; none that these roles do not need.
struct RowBuffers {
  struct Options {
    strategy::Roles roles = {};
    int rank = 0;
    int most_tokens = 0;  // of the rank's sequences in a step
    int most_rows = 0;    // own ones of any rank
    int64_t sum_bytes = 0;
    int64_t gathered_bytes = 0;
    // Where the head is divided, of the first frame: rows whose logits are computed at once, and
    // all tokens.
    int head_rows = 0;
    int vocab_size = 0;
  };
  static RowBuffers Take(const Options& options, ExchangeMemory& memory);

  std::span<float> squares;                    // (parts, rows, 2)
  std::span<std::byte> sums_out;               // (rows, sum_bytes)
  std::span<std::byte> sums_in;                // (parts, own rows, sum_bytes)
  std::vector<std::span<std::byte>> gathered;  // by rank
  // Logits of a chunk of rows, (rows, the rank's tokens) floats, or (rows) of what is said of the
  // largest (runtime/head.cc): the own ones, and on rank 0 those of the others.
  std::span<std::byte> logits_out;
  std::vector<std::span<std::byte>> logits_in;  // by rank
};

}  // namespace convene::device
