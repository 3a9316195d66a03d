// Every group of weights is as close to what it was as asked, whatever the weights are distributed
// like, as long as there is room; and what there is no room for is told.
#include "weights/backup_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/pack.h"

namespace convene::weights {
namespace {

using kernels::WeightFormat;
using Draw = std::function<float(std::mt19937&)>;

struct OwnedBackup {
  OwnedBackup(int rows, int cols)
      : matrix{.packed = {.format = WeightFormat::kInt4,
                          .group = BackupMatrix::kGroup,
                          .rows = rows,
                          .cols = cols}},
        storage(matrix.size_bytes() + 64 + kFence, std::byte{0x5a}) {
    std::byte* const at =
        storage.data() + (64 - reinterpret_cast<uintptr_t>(storage.data()) % 64) % 64;
    end = at + matrix.PlaceAt(at);
  }
  bool IsFenceWhole() const {
    for (int i = 0; i < kFence; ++i) {
      if (end[i] != std::byte{0x5a}) return false;
    }
    return true;
  }

  static constexpr int kFence = 64;
  BackupMatrix matrix;
  std::vector<std::byte> storage;
  std::byte* end;
};

struct Shape {
  int rows;
  int cols;
};

class BackupOf {
 public:
  BackupOf(Shape shape, WeightFormat becomes, std::vector<float> values)
      : cols_(static_cast<size_t>(shape.cols)),
        before_(std::move(values)),
        after_(before_.size()),
        backup_(shape.rows, shape.cols) {
    const auto read = [&](int row, float* out) {
      std::memcpy(out, &before_[static_cast<size_t>(row) * cols_], sizeof(float) * cols_);
    };
    quality = RoundMatrix(read, becomes, backup_.matrix);
    EXPECT_TRUE(backup_.IsFenceWhole());
    kernels::PackedMatrix floats{.format = becomes, .rows = shape.rows, .cols = shape.cols};
    std::vector<std::byte> bytes(floats.size_bytes() + 64);
    floats.data = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
    kernels::DequantizeInt4(backup_.matrix.packed, backup_.matrix.outliers, floats,
                            Writable(floats));
    for (int row = 0; row < shape.rows; ++row) {
      kernels::UnpackRow(floats, row, &after_[static_cast<size_t>(row) * cols_]);
    }
  }

  // Of what floats were made of the backup, by groups of 32 columns.
  double LeastCosine() const {
    double least = 1;
    for (size_t row = 0; row < before_.size(); row += cols_) {
      for (size_t col = 0; col < cols_; col += 32) {
        double dot = 0;
        double squares = 0;
        double rounded_squares = 0;
        for (size_t i = row + col; i < row + std::min(cols_, col + 32); ++i) {
          dot += double{before_[i]} * after_[i];
          squares += double{before_[i]} * before_[i];
          rounded_squares += double{after_[i]} * after_[i];
        }
        if (squares > 0) least = std::min(least, dot / std::sqrt(squares * rounded_squares));
      }
    }
    return least;
  }
  const std::vector<float>& after() const { return after_; }

  BackupQuality quality;

 private:
  size_t cols_;
  std::vector<float> before_;
  std::vector<float> after_;
  OwnedBackup backup_;
};

std::vector<float> Drawn(Shape shape, const Draw& draw) {
  std::mt19937 random(5);
  std::vector<float> values(static_cast<size_t>(shape.rows) * shape.cols);
  for (float& value : values) value = draw(random);
  return values;
}

float Normal(std::mt19937& random) { return std::normal_distribution<float>(0, 0.02f)(random); }

float Laplace(std::mt19937& random) {
  const float size = std::exponential_distribution<float>(50)(random);
  return random() % 2 == 0 ? size : -size;
}

Draw Student(float degrees) {
  return [degrees](std::mt19937& random) {
    return 0.02f * std::student_t_distribution<float>(degrees)(random);
  };
}

// Large weights in a few columns, as models have where activations are small.
Draw NormalWithLargeOnes() {
  return [](std::mt19937& random) { return Normal(random) * (random() % 500 == 0 ? 300.0f : 1); };
}

TEST(BackupMatrix, GivesEveryGroupItsCosineWhateverTheWeights) {
  const std::vector<std::pair<std::string, Draw>> all = {{"normal", Normal},
                                                         {"Laplace", Laplace},
                                                         {"Student 5", Student(5)},
                                                         {"Student 3", Student(3)},
                                                         {"large ones", NormalWithLargeOnes()}};
  for (const auto& [name, draw] : all) {
    for (const WeightFormat becomes : {WeightFormat::kF32, WeightFormat::kBf16}) {
      for (const Shape shape : {Shape{64, 2048}, Shape{200, 256}, Shape{70, 100}, Shape{1, 33}}) {
        SCOPED_TRACE(testing::Message() << name << " in " << Name(becomes) << ", " << shape.rows
                                        << " x " << shape.cols);
        std::vector<float> values = Drawn(shape, draw);
        for (float& value : values) value = tensor::FloatFromBf16(tensor::Bf16FromFloat(value));
        const BackupOf backup(shape, becomes, values);
        EXPECT_EQ(backup.quality.num_left_out, 0);
        EXPECT_GE(backup.LeastCosine(), 0.995);
        EXPECT_NEAR(backup.quality.least_cosine, backup.LeastCosine(), 1e-12);
        EXPECT_EQ(backup.quality.num_good, backup.quality.num_groups);
        EXPECT_EQ(backup.quality.num_groups, int64_t{shape.rows} * ((shape.cols + 31) / 32));
        EXPECT_EQ(backup.quality.num_weights, int64_t{shape.rows} * shape.cols);
      }
    }
  }
}

TEST(BackupMatrix, KeepsFewOfNormalWeights) {
  const Shape shape{256, 1024};
  const BackupQuality quality = BackupOf(shape, WeightFormat::kF32, Drawn(shape, Normal)).quality;
  // A group in twelve is not good without, and needs one.
  EXPECT_GT(quality.num_groups - quality.num_good_plain, quality.num_groups / 14);
  EXPECT_LT(quality.num_groups - quality.num_good_plain, quality.num_groups / 10);
  EXPECT_LT(quality.num_outliers, quality.num_groups / 10);
  EXPECT_GE(quality.num_outliers, quality.num_groups - quality.num_good_plain);
}

TEST(BackupMatrix, LeavesZerosAndWeightsThatInt4Has) {
  const Shape shape{33, 96};
  const BackupOf zeros(shape, WeightFormat::kF32, Drawn(shape, [](auto&) { return 0.0f; }));
  EXPECT_EQ(zeros.after(), std::vector<float>(33 * 96, 0.0f));
  EXPECT_EQ(zeros.quality.num_groups, 0);
  EXPECT_EQ(zeros.quality.num_outliers, 0);
  EXPECT_EQ(zeros.quality.cosine(), 1);
  // Whole numbers up to -8, which each group has.
  std::vector<float> steps(33 * 96);
  for (size_t i = 0; i < steps.size(); ++i) steps[i] = 0.5f * (static_cast<float>(i % 16) - 8);
  const BackupOf exact(shape, WeightFormat::kBf16, steps);
  EXPECT_EQ(exact.after(), steps);
  EXPECT_EQ(exact.quality.num_outliers, 0);
  EXPECT_EQ(exact.quality.least_cosine, 1);
}

// Of a group of one large and 31 small weights it is the large one that makes the steps coarse.
TEST(BackupMatrix, KeepsTheLargestAsItIs) {
  const Shape shape{1, 64};
  std::vector<float> values = Drawn(shape, Normal);
  values[40] = -1.0f;
  const BackupOf backup(shape, WeightFormat::kBf16, values);
  EXPECT_EQ(backup.after()[40], -1.0f);
  EXPECT_GE(backup.LeastCosine(), 0.995);
}

// Cauchy's weights need half as many again as there is room for.
TEST(BackupMatrix, TellsWhatFindsNoRoomAndKeepsTheWorst) {
  const Shape shape{128, 1024};
  const std::vector<float> values = Drawn(shape, Student(1));
  const BackupOf backup(shape, WeightFormat::kF32, values);
  const BackupQuality& quality = backup.quality;
  EXPECT_GT(quality.num_left_out, 0);
  EXPECT_EQ(quality.num_outliers, 128 * 1024 / 32);
  EXPECT_LT(quality.num_good, quality.num_groups);
  EXPECT_GT(quality.num_good, quality.num_good_plain);
  EXPECT_NEAR(quality.least_cosine, backup.LeastCosine(), 1e-12);
  EXPECT_LT(quality.least_cosine, 0.995);
}

}  // namespace
}  // namespace convene::weights
