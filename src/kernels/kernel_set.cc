#include "kernels/kernel_set.h"

namespace convene::kernels {

size_t AttentionScratchBytes(int head_dim) {
  const int padded_dim = (head_dim + kLanes - 1) / kLanes * kLanes;
  const size_t scores = size_t{kAttentionRows} * kSpanTokens * sizeof(float);
  const size_t outputs = size_t{2} * kAttentionRows * padded_dim * sizeof(float);
  const auto block = static_cast<size_t>(ValueBlockBytes(KvFormat::kBf16, head_dim));
  const auto queries = static_cast<size_t>(2 * kAttentionRows * PaddedHead(head_dim));
  return 2 * scores + outputs + block +
         queries;  // scores and probabilities; of this span and of all before
}

}  // namespace convene::kernels
