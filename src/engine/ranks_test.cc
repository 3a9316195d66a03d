// What ranks other than rank 0 say themselves.
#include "engine/ranks.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "comm/threads/thread_group.h"
#include "engine/announce_load.h"
#include "engine/loaded_model.h"

namespace convene::engine {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Ranks, EachSaysWhatItPacks) {
  const std::filesystem::path pages =
      std::filesystem::path(testing::TempDir()) / fmt::format("told_pages_{}", getpid());
  std::filesystem::remove_all(pages);
  LoadOptions options{.formats = {.weights = kernels::WeightFormat::kInt8}, .context = 256};
  // Each has parts of its own, which it packs.
  options.plan.layout = {.attention_dp = 2, .expert_tp = 2};
  options.plan.experts_in_memory = 3;
  options.page_directory = pages.string();
  std::string of_rank_zero;
  testing::internal::CaptureStderr();
  comm::RunOnThreads(2, [&](comm::Group& group) {
    if (group.rank() != 0) {
      const Status followed = FollowRankZero(group);
      EXPECT_TRUE(followed) << followed.error().message;
      return;
    }
    LoadOptions own = options;
    own.group = &group;
    LoadObserver observer;
    observer.decided = [&](const std::string& line) { of_rank_zero += line + "\n"; };
    const auto model =
        LoadedModel::Load(CONVENE_SOURCE_DIR "/tests/golden/models/olmoe_plain", own, observer);
    EXPECT_TRUE(model) << model.error().message;
    if (model) (*model)->transformer().EndSteps();
    Dismiss(group);
  });
  const std::string of_others = testing::internal::GetCapturedStderr();
  std::filesystem::remove_all(pages);
  EXPECT_THAT(of_rank_zero, HasSubstr("packing "));
  EXPECT_THAT(of_others, HasSubstr("rank 1: packing "));
  EXPECT_THAT(of_others, HasSubstr("slice2of2"));
  EXPECT_THAT(of_others, Not(HasSubstr("slice1of2"))) << "that is rank 0's to say";
}

}  // namespace
}  // namespace convene::engine
