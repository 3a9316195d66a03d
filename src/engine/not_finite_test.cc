#include "engine/not_finite.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

namespace convene::engine {
namespace {

// After each step the first experts of the next one are read; a sanitizer of threads tells if that
// goes on while the weights are looked at.
TEST(NotFiniteReason, LooksAtExpertsThatNobodyReadsMeanwhile) {
  const std::filesystem::path pages =
      std::filesystem::path(testing::TempDir()) / fmt::format("looked_at_pages_{}", getpid());
  std::filesystem::remove_all(pages);
  LoadOptions options{.formats = {.weights = kernels::WeightFormat::kInt8}, .context = 256};
  options.plan.experts_in_memory = 6;
  options.page_directory = pages.string();
  auto model = LoadedModel::Load(CONVENE_SOURCE_DIR "/models/demo", options, {});
  ASSERT_TRUE(model) << model.error().message;
  ASSERT_NE((*model)->paged(), nullptr);
  const std::vector<int32_t> tokens(60, 3);
  const std::vector<int32_t> blocks = {0};
  const device::SequenceStep step{.tokens = tokens, .blocks = blocks, .prompt_length = 60};
  for (int round = 0; round < 5; ++round) {
    std::vector<float> logits;
    ASSERT_TRUE((*model)->transformer().Forward(
        {&step, 1},
        [&](int, int, std::span<const float> row) { logits.assign(row.begin(), row.end()); }));
    EXPECT_FALSE(logits.empty());
    EXPECT_THAT(NotFiniteReason().Find(**model, {&step, 1}), testing::HasSubstr("(head)"));
  }
  std::filesystem::remove_all(pages);
}

}  // namespace
}  // namespace convene::engine
