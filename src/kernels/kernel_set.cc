#include "kernels/kernel_set.h"

namespace convene::kernels {

size_t AttentionScratchBytes(int key_dim, int value_dim) {
  const int padded_dim = (value_dim + kLanes - 1) / kLanes * kLanes;
  // Scores and probabilities of a span; outputs of this span and of all before.
  const size_t scores = size_t{2} * kAttentionRows * kSpanTokens * sizeof(float);
  const size_t outputs = size_t{2} * kAttentionRows * padded_dim * sizeof(float);
  const auto unpacked = static_cast<size_t>(KeyBlockBytes(KvFormat::kBf16, key_dim) +
                                            ValueBlockBytes(KvFormat::kBf16, value_dim));
  const auto transposed = static_cast<size_t>(ValueBlockBytes(KvFormat::kF32, value_dim));
  const size_t queries = size_t{2} * kAttentionRows * PaddedHead(key_dim);
  return scores + outputs + unpacked + transposed + queries;
}

}  // namespace convene::kernels
