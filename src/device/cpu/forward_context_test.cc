#include "device/cpu/forward_context.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/choose_kernels.h"

namespace convene::device {
namespace {

class ForwardContextTest : public testing::Test {
 protected:
  weights::ModelWeights model_;
  weights::ResidentWeights store_{model_};
  hardware::ThreadPool pool_{{0, 0, 0}};
  Workspace workspace_;
  StepStatistics statistics_;
  ForwardContext context_{.weights = store_,
                          .kernels = **kernels::ChooseKernels(),
                          .pool = pool_,
                          .workspace = workspace_,
                          .statistics = statistics_};
  // Two experts with six rows.
  std::vector<kernels::GemmGroup> groups_{{.num_rows = 2}, {.num_rows = 4}};
};

TEST_F(ForwardContextTest, ProductsLeaveThreadsToExchangesThatAreUnderWay) {
  bool is_exchanging = true;
  context_.exchanging = [&] { return is_exchanging; };
  EXPECT_EQ(context_.WayOf(groups_).num_threads, 3);
  context_.comm_budget = 1;
  EXPECT_EQ(context_.WayOf(groups_).num_threads, 2);
  is_exchanging = false;
  EXPECT_EQ(context_.WayOf(groups_).num_threads, 3);
  is_exchanging = true;
  context_.comm_budget = 8;
  EXPECT_EQ(context_.WayOf(groups_).num_threads, 1) << "somebody has to compute";
}

TEST_F(ForwardContextTest, ExpertsAreOneAfterTheOtherFromSoManyRowsEachOn) {
  EXPECT_EQ(context_.WayOf(groups_).order, kernels::GemmOrder::kGrouped);
  context_.dense_from_rows = 4;
  EXPECT_EQ(context_.WayOf(groups_).order, kernels::GemmOrder::kGrouped);
  context_.dense_from_rows = 3;
  EXPECT_EQ(context_.WayOf(groups_).order, kernels::GemmOrder::kDense);
}

}  // namespace
}  // namespace convene::device
