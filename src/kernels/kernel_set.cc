#include "kernels/kernel_set.h"

namespace convene::kernels {

size_t KeyBlockBytes(WeightFormat format, int head_dim) {
  return PackedMatrix{.format = format, .rows = kKvBlockTokens, .cols = head_dim}.size_bytes();
}

size_t ValueBlockBytes(WeightFormat format, int head_dim) {
  return PackedMatrix{.format = format, .rows = head_dim, .cols = kKvBlockTokens}.size_bytes();
}

size_t AttentionScratchBytes(int head_dim) {
  const int padded_dim = (head_dim + kLanes - 1) / kLanes * kLanes;
  const size_t scores = size_t{kAttentionRows} * kSpanTokens * sizeof(float);
  const size_t outputs = size_t{2} * kAttentionRows * padded_dim * sizeof(float);
  return 2 * scores + outputs;  // scores and probabilities; of this span and of all before
}

}  // namespace convene::kernels
