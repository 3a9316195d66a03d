#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/enumerators_test.h"
#include "weights/load_weights.h"

namespace convene::weights {
namespace {

constexpr auto kNuma = hardware::NumaPolicy::kAuto;

checkpoint::Checkpoint Fixture(const std::string& name) {
  Result<checkpoint::Checkpoint> checkpoint =
      checkpoint::Checkpoint::Open(CONVENE_SOURCE_DIR "/tests/golden/models/" + name);
  CHECK(checkpoint.ok(), "{}", checkpoint.error().message);
  return *std::move(checkpoint);
}

TEST(ToFloats, ReadsRowsOfATransposedMatrix) {
  const std::vector<float> stored = {1, 2, 3, 4, 5, 6};  // (cols, rows)
  const kernels::StoredMatrix matrix{.data = reinterpret_cast<const std::byte*>(stored.data()),
                                     .row_stride = 1,
                                     .col_stride = 2,
                                     .rows = 2,
                                     .cols = 3};
  EXPECT_EQ(ToFloats(matrix), (std::vector<float>{1, 3, 5, 2, 4, 6}));
}

TEST(MatrixEdit, ThatChangesNothingGivesTheSameBytes) {
  hardware::ThreadPool pool({0, 0});
  memory::Ledger ledger;
  for (const char* name : {"dbrx_plain", "qwen2_many", "olmoe_plain"}) {  // transposed, shared
    const checkpoint::Checkpoint checkpoint = Fixture(name);
    for (const kernels::WeightFormat format : kEvery<kernels::WeightFormat>) {
      const Result<ModelWeights> plain =
          LoadWeights(checkpoint, {.matrices = format}, {}, kNuma, pool, ledger, {});
      const Result<ModelWeights> edited =
          LoadWeights(checkpoint, {.matrices = format}, {}, kNuma, pool, ledger, {},
                      [](model::TensorRole, int, std::vector<float>&) {});
      ASSERT_TRUE(plain.ok() && edited.ok());
      EXPECT_TRUE(std::ranges::equal(plain->bytes, edited->bytes))
          << name << " " << kernels::Name(format);
    }
  }
}

TEST(MatrixEdit, ReservesItsCopiesWhileItHasThem) {
  hardware::ThreadPool pool({0});
  const checkpoint::Checkpoint checkpoint = Fixture("olmoe_plain");
  const uint64_t size_bytes = PackedSizeBytes(checkpoint.spec(), {});
  memory::Ledger tight({.budget_bytes = size_bytes, .limited_by = "the test"});
  EXPECT_TRUE(LoadWeights(checkpoint, {}, {}, kNuma, pool, tight, {}).ok());
  uint64_t copied_bytes = 0;
  const MatrixEdit edit = [&](model::TensorRole, int, std::vector<float>& values) {
    copied_bytes += values.size() * sizeof(float);
  };
  const Result<ModelWeights> refused =
      LoadWeights(checkpoint, {}, {}, kNuma, pool, tight, {}, edit);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kResourceExhausted);
  EXPECT_NE(refused.error().message.find("staging buffers"), std::string::npos);
  EXPECT_EQ(copied_bytes, 0u);
  EXPECT_EQ(tight.reserved().total(), 0u);

  memory::Ledger roomy;
  uint64_t staging_bytes = 0;
  const Result<ModelWeights> edited =
      LoadWeights(checkpoint, {}, {}, kNuma, pool, roomy, {},
                  [&](model::TensorRole role, int cols, std::vector<float>& values) {
                    edit(role, cols, values);
                    staging_bytes = roomy.reserved()[memory::Use::kStaging];
                  });
  ASSERT_TRUE(edited.ok());
  EXPECT_GE(staging_bytes, copied_bytes) << "all of a fixture is one batch";
  // Beside the copies what they are made of, and what packing has mapped at a time.
  EXPECT_LE(staging_bytes, copied_bytes + 2 * checkpoint.size_bytes());
  EXPECT_EQ(roomy.reserved()[memory::Use::kStaging], 0u);
  EXPECT_EQ(roomy.reserved()[memory::Use::kWeights], size_bytes);
}

TEST(MatrixEdit, ReachesThePackedWeightsOfItsRole) {
  hardware::ThreadPool pool({0});
  memory::Ledger ledger;
  const checkpoint::Checkpoint checkpoint = Fixture("dbrx_plain");
  const Result<ModelWeights> weights =
      LoadWeights(checkpoint, {.matrices = kernels::WeightFormat::kF32}, {}, kNuma, pool, ledger,
                  {}, [](model::TensorRole role, int cols, std::vector<float>& values) {
                    if (role != model::TensorRole::kExpertDown) return;
                    for (size_t i = 0; i < values.size(); ++i) {
                      values[i] = static_cast<float>(i % static_cast<size_t>(cols));
                    }
                  });
  ASSERT_TRUE(weights.ok());
  const kernels::PackedMatrix& down = weights->layers[0].moe->experts[1].down;
  std::vector<float> row(static_cast<size_t>(down.cols));
  kernels::UnpackRow(down, 1, row.data());
  for (size_t i = 0; i < row.size(); ++i) EXPECT_EQ(row[i], static_cast<float>(i));
  const kernels::PackedMatrix& output = weights->layers[0].output;
  row.resize(static_cast<size_t>(output.cols));
  kernels::UnpackRow(output, 1, row.data());
  EXPECT_NE(row[1], 1);
}

}  // namespace
}  // namespace convene::weights
