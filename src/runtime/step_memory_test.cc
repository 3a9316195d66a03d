#include "runtime/step_memory.h"

#include <gtest/gtest.h>

namespace convene::runtime {
namespace {

// A layer as large models have it: 256 experts, 8 per token.
model::ModelSpec LargeSpec() {
  model::ModelSpec spec;
  spec.hidden_size = 7168;
  model::LayerSpec& layer = spec.layers.emplace_back();
  layer.moe.emplace();
  layer.moe->num_experts = 256;
  layer.moe->top_k = 8;
  return spec;
}

int64_t BytesOf(const strategy::Layout& layout, comm::WireFormat wire) {
  TransformerOptions options{.max_step_tokens = 512,
                             .activations = kernels::ActivationFormat::kBf16};
  options.parallel.roles = layout;
  options.parallel.wire = wire;
  return StepShapeOf(LargeSpec(), options).frames.front().exchange_bytes;
}

// By hand: rows that go out and come in, their sums, and the rows that rank 0 gathers.
TEST(ExchangeBytes, AreThoseOfTheRowsThatALayoutSends) {
  EXPECT_EQ(BytesOf({1, 1, 1, 1}, comm::WireFormat::kF32), 0);
  constexpr int64_t kRow = 7168 * 2;
  constexpr int64_t kSum = 7168 * 4;
  const auto near = [](int64_t bytes, int64_t expected) {
    EXPECT_GE(bytes, expected);
    EXPECT_LE(bytes, expected + expected / 50);  // beside the rows: experts' numbers and weights
  };
  near(BytesOf({1, 8, 8, 1}, comm::WireFormat::kF32), 7 * 512 * (2 * kRow + 2 * kSum + kRow));
  near(BytesOf({1, 8, 8, 1}, comm::WireFormat::kBf16), 7 * 512 * (2 * kRow + 2 * kRow + kRow));
  near(BytesOf({1, 2, 1, 2}, comm::WireFormat::kF32), 512 * (2 * kRow + 2 * kSum + kRow));
  // Heads on four ranks: each owns a quarter of the rows; partial sums of all of them go out.
  near(BytesOf({4, 1, 4, 1}, comm::WireFormat::kF32),
       3 * 128 * (2 * kRow + 2 * kSum + kRow) + 512 * kSum + 4 * 128 * kSum + 4 * 512 * 2 * 4);
}

}  // namespace
}  // namespace convene::runtime
