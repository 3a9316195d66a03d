// Experts that come to decode's division from an int4 backup: what of them is another rank's is
// rounded once, and nothing else is; the way back gives the bytes of before; and tokens are those
// of ranks that have such experts in memory all the time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/pack.h"
#include "tests/golden_ranks.h"
#include "weights/expert_backup.h"

namespace convene {
namespace {

using kernels::PackedMatrix;
using kernels::WeightFormat;
using strategy::Layout;
using strategy::Phase;
using weights::ExpertBackup;
using weights::ExpertPart;
using weights::ExpertPiece;
using weights::FfnWeights;
using weights::PhasedWeights;

struct Case {
  Division division;  // of prefill, with the pipeline of both
  Layout decode;
};

std::vector<Case> Cases() {
  using strategy::ChunkCut;
  return {
      {{"ep2_then_slice2", {1, 2, 2, 1}}, {1, 2, 1, 2}},
      {{"slice2_then_ep2", {1, 2, 1, 2}}, {1, 2, 2, 1}},
      {{"ep3to1_then_ep2", {1, 2, 2, 1, {3, 1}}}, {1, 2, 2, 1}},
      {{"ep2_then_slice2_micro_batches_of_chunks", {1, 2, 2, 1}, {2, ChunkCut::kExperts, true, 2}},
       {1, 2, 1, 2}},
      {{"ep3_then_slice3", {1, 3, 3, 1}}, {1, 3, 1, 3}},
      {{"ep4_then_ep2tp2", {1, 4, 4, 1}}, {1, 4, 2, 2}},
  };
}

checkpoint::Checkpoint Open(const std::filesystem::path& path) {
  auto checkpoint = checkpoint::Checkpoint::Open(path.string());
  CHECK(checkpoint.ok(), "{}", checkpoint.error().message);
  return *std::move(checkpoint);
}

void PackFloats(const std::vector<float>& values, const PackedMatrix& target) {
  const kernels::StoredMatrix stored{.data = reinterpret_cast<const std::byte*>(values.data()),
                                     .row_stride = target.cols,
                                     .rows = target.rows,
                                     .cols = target.cols};
  for (int first = 0; first < target.rows; first += kernels::kLanes) {
    kernels::RowSource rows[kernels::kLanes] = {};
    for (int i = 0; i < kernels::kLanes && first + i < target.rows; ++i) {
      rows[i] = {&stored, first + i};
    }
    CHECK(kernels::PackGroup(rows, target, first / kernels::kLanes, Writable(target)), "finite");
  }
}

std::vector<float> Unpacked(const PackedMatrix& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.rows) * matrix.cols);
  for (int row = 0; row < matrix.rows; ++row) {
    kernels::UnpackRow(matrix, row, values.data() + static_cast<size_t>(row) * matrix.cols);
  }
  return values;
}

// Where a row's largest weight between two columns is, the first of several.
size_t LargestOf(const std::vector<float>& values, size_t first, size_t end) {
  return static_cast<size_t>(
      std::max_element(values.begin() + static_cast<std::ptrdiff_t>(first),
                       values.begin() + static_cast<std::ptrdiff_t>(end),
                       [](float a, float b) { return std::abs(a) < std::abs(b); }) -
      values.begin());
}

double CosineOf(const std::vector<float>& a, const std::vector<float>& b, size_t first,
                size_t end) {
  long double dot = 0;
  long double squares_a = 0;
  long double squares_b = 0;
  for (size_t i = first; i < end; ++i) {
    dot += static_cast<long double>(a[i]) * b[i];
    squares_a += static_cast<long double>(a[i]) * a[i];
    squares_b += static_cast<long double>(b[i]) * b[i];
  }
  if (squares_a == 0) return 1;
  return squares_b == 0 ? 0 : static_cast<double>(dot / std::sqrt(squares_a * squares_b));
}

// What a backup makes of a matrix, found by packing all of it again for each new outlier: the
// largest weight of every group below 0.995, or of its row where that keeps the group's steps
// coarse.
class SlowBackup {
 public:
  explicit SlowBackup(const PackedMatrix& matrix)
      : matrix_(matrix),
        cols_(static_cast<size_t>(matrix.cols)),
        values_(Unpacked(matrix)),
        rest_(values_),
        is_outlier_(values_.size()) {
    rounded_ = {
        .format = WeightFormat::kInt4, .group = kGroup, .rows = matrix.rows, .cols = matrix.cols};
    bytes_.resize(rounded_.size_bytes() + 64);
    rounded_.data = bytes_.data() + (64 - reinterpret_cast<uintptr_t>(bytes_.data()) % 64) % 64;
  }

  // Returns what became of the weights.
  std::vector<float> Made() {
    bool is_done = false;
    while (!is_done) {
      PackFloats(rest_, rounded_);
      made_ = Unpacked(rounded_);
      for (size_t i = 0; i < made_.size(); ++i) {
        if (is_outlier_[i] != 0) made_[i] = values_[i];
        if (is_outlier_[i] != 0 || matrix_.format == WeightFormat::kBf16) {
          made_[i] = tensor::FloatFromBf16(tensor::Bf16FromFloat(made_[i]));
        }
      }
      is_done = true;
      const std::vector<float> before = rest_;
      for (size_t row = 0; row < values_.size(); row += cols_) {
        if (TakeFromRow(before, row)) is_done = false;
      }
    }
    return made_;
  }
  int64_t num_outliers() const {
    return std::count(is_outlier_.begin(), is_outlier_.end(), char{1});
  }
  int64_t room() const { return matrix_.rows * ((int64_t{matrix_.cols} + kGroup - 1) / kGroup); }

 private:
  static constexpr int kGroup = 32;

  bool TakeFromRow(const std::vector<float>& before, size_t row) {
    const size_t row_end = row + cols_;
    const size_t largest = LargestOf(before, row, row_end);
    const float finest = std::abs(before[largest]) / 8 / 15;
    bool takes = false;
    const auto take = [&](size_t at) {
      rest_[at] = 0;
      is_outlier_[at] = 1;
      takes = true;
    };
    for (size_t first = row; first < row_end; first += kGroup) {
      const size_t end = std::min(row_end, first + kGroup);
      if (CosineOf(values_, made_, first, end) >= 0.995) continue;
      const size_t top = LargestOf(before, first, end);
      take(std::abs(before[top]) < 7 * finest ? largest : top);
    }
    return takes;
  }

  const PackedMatrix& matrix_;
  size_t cols_;
  std::vector<float> values_;
  std::vector<float> rest_;  // zero where outliers are
  std::vector<char> is_outlier_;
  std::vector<float> made_;
  PackedMatrix rounded_;
  std::vector<std::byte> bytes_;
};

// Through the backup and back.
void RoundTrip(const PackedMatrix& matrix) {
  SlowBackup backup(matrix);
  PackFloats(backup.Made(), matrix);
  CHECK(backup.num_outliers() <= backup.room(), "the fixture needs another way to choose");
}

// In decode's experts, wherever they lie, what the rank has not in prefill.
void RoundDecode(const PhasedWeights& weights) {
  const model::ModelSpec& whole = weights.whole();
  for (int layer = 0; layer < whole.num_layers(); ++layer) {
    if (!whole.layers[layer].moe) continue;
    const bool gated = whole.layers[layer].moe->activation.gated();
    const ExpertPart decode = weights.PartOf(layer, Phase::kDecode);
    for (const ExpertPiece& piece : weights::PiecesBeside(weights.PartOf(layer, Phase::kPrefill),
                                                          decode, ExpertBackup::kMostColumns)) {
      const FfnWeights& expert =
          weights.ExpertsIn(layer, Phase::kDecode)[piece.expert - decode.experts.first];
      FfnWeights packed = weights::FfnOf(weights.formats(), whole.layers[layer].moe->activation,
                                         whole.hidden_size, piece.slice.size);
      std::vector<std::byte> bytes(SizeBytes(packed) + 64);
      PlaceFfnAt(bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64,
                 &packed);
      FillPadding(packed, gated, piece.slice.size);
      TakePiece(piece, expert, decode.slice.first, gated, packed, piece.slice.first);
      RoundTrip(packed.up);
      RoundTrip(packed.down);
      TakePiece(piece, packed, piece.slice.first, gated, expert, decode.slice.first);
    }
  }
}

std::vector<std::byte> BytesOf(const PhasedWeights& weights, Phase phase) {
  std::vector<std::byte> bytes;
  for (int layer = 0; layer < weights.whole().num_layers(); ++layer) {
    if (!weights.whole().layers[layer].moe) continue;
    for (const FfnWeights& expert : weights.ExpertsIn(layer, phase)) {
      for (const PackedMatrix* matrix : {&expert.up, &expert.down}) {
        bytes.insert(bytes.end(), matrix->data, matrix->data + matrix->size_bytes());
      }
    }
  }
  return bytes;
}

// The work done twice, so that the experts have gone back before the second.
struct Outcome {
  Answers answers;
  runtime::PhaseChanges changes;
  std::map<int, std::vector<std::byte>> prefill;  // by rank, bytes of its experts
  std::map<int, std::vector<std::byte>> decode;
};

Outcome RunTwice(const checkpoint::Checkpoint& checkpoint, DividedOptions divided,
                 const Work& work) {
  Outcome run;
  std::mutex mutex;
  std::map<int, PhasedWeights*> stores;
  std::map<int, std::vector<std::byte>> loaded;
  divided.loaded = [&](int rank, weights::WeightStore& store) {
    const std::lock_guard lock(mutex);
    stores[rank] = store.phased();
    loaded[rank] = BytesOf(*store.phased(), Phase::kPrefill);
  };
  const auto num_sequences = static_cast<int>(work.prompts.size());
  // Other ranks wait for the next step meanwhile.
  const auto bytes_in = [&](Phase phase) {
    std::map<int, std::vector<std::byte>> bytes;
    for (const auto& [rank, store] : stores) bytes[rank] = BytesOf(*store, phase);
    return bytes;
  };
  RunDivided(checkpoint, divided,
             {.max_step_tokens = work.num_tokens(),
              .num_kv_blocks = work.num_blocks_each() * num_sequences},
             [&](runtime::Transformer& transformer) {
               if (divided.keeps_both) {
                 ExpectDone(transformer.ChangePhase(Phase::kDecode));
                 for (const auto& [rank, store] : stores) RoundDecode(*store);
                 ExpectDone(transformer.ChangePhase(Phase::kPrefill));
               }
               const int num_groups = divided.division.layout.attention_dp;
               run.answers = PromptsRun(transformer, work, num_groups).Execute();
               run.decode = bytes_in(Phase::kDecode);
               ExpectSameAnswers(PromptsRun(transformer, work, num_groups).Execute(), run.answers,
                                 /*to_the_bit=*/true);
               run.changes = transformer.phase_changes();
               ExpectDone(transformer.ChangePhase(Phase::kPrefill));
               run.prefill = bytes_in(Phase::kPrefill);
             });
  EXPECT_TRUE(run.prefill == loaded) << "the way back rounds";
  return run;
}

class GoldenExpertLoads : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenExpertLoads, ComputeWhatExpertsDoThatWereRoundedOnce) {
  const checkpoint::Checkpoint checkpoint = Open(GetParam());
  Work work = {.prompts = {}, .most_tokens = {9, 1000}, .num_generated = 4};
  for (const char* name : {"prompt_17", "prompt_1", "prompt_17"}) {
    work.prompts.push_back(ReadNpy<int32_t>(GetParam() / (std::string(name) + ".tokens.npy")));
  }
  int num_tried = 0;
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    for (const Case& one : Cases()) {
      DividedOptions divided{.formats = runtime::DefaultFormats(format),
                             .division = one.division,
                             .decode = one.decode};
      if (!Fits(checkpoint, divided)) continue;
      SCOPED_TRACE(fmt::format("{} in {}", one.division.name, Name(format)));
      ++num_tried;
      divided.keeps_both = true;
      const Outcome expected = RunTwice(checkpoint, divided, work);
      divided.keeps_both = false;
      divided.loads_experts = true;
      for (const bool beside : {false, true}) {
        SCOPED_TRACE(beside ? "beside the last prompts" : "between two steps");
        work.tells_what_follows = beside;
        const Outcome actual = RunTwice(checkpoint, divided, work);
        ExpectSameAnswers(actual.answers, expected.answers, /*to_the_bit=*/true);
        EXPECT_TRUE(actual.decode == expected.decode);
        EXPECT_EQ(actual.changes.count, 3);  // there, back, there
        EXPECT_EQ(actual.changes.beside_count, beside ? 2 : 0);
        EXPECT_EQ(actual.changes.sent_bytes, 0);
      }
      work.tells_what_follows = false;
    }
  }
  EXPECT_GE(num_tried, 6);
}

INSTANTIATE_TEST_SUITE_P(Fixture, GoldenExpertLoads,
                         testing::ValuesIn(FixturesNamed({"deepseek_v2_groups", "gpt_oss_plain",
                                                          "mixtral_plain", "olmoe_plain"})),
                         [](const auto& fixture) { return fixture.param.filename().string(); });

TEST(ExpertBackup, TakesTheMemoryThatIsPlanned) {
  const checkpoint::Checkpoint checkpoint = Open(FixturesNamed({"olmoe_plain"}).front());
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    DividedOptions divided{.formats = runtime::DefaultFormats(format),
                           .division = {"ep2", {1, 2, 2, 1}},
                           .decode = Layout{1, 2, 1, 2}};
    const weights::Share share = ShareOf(divided, 0);
    const auto bytes = ExpertBackup::BytesOf(checkpoint.spec(), divided.formats.weights, share);
    const model::MoeSpec& moe = *checkpoint.spec().layers[0].moe;
    const auto each = [&](const weights::WeightFormats& formats) {
      return SizeBytes(weights::FfnOf(formats, moe.activation, checkpoint.spec().hidden_size,
                                      moe.intermediate_size / 2));
    };
    // Half of each expert is in both divisions; each rank lacks half of the other rank's.
    const auto count = static_cast<uint64_t>(checkpoint.spec().num_layers()) * moe.num_experts / 2;
    EXPECT_EQ(bytes.originals, count * each(divided.formats.weights));
    // Beside int4 the ends of rows, and a weight of 4 bytes for each group.
    const weights::FfnWeights int4 =
        weights::FfnOf({WeightFormat::kInt4, 32}, moe.activation, checkpoint.spec().hidden_size,
                       moe.intermediate_size / 2);
    const auto lists = [](const PackedMatrix& matrix) {
      const auto rows = static_cast<uint64_t>(matrix.rows);
      const auto groups = static_cast<uint64_t>(matrix.cols + 31) / 32;
      return (4 * rows + 4 * rows * groups + 63) / 64 * 64;
    };
    EXPECT_EQ(bytes.backup, count * (SizeBytes(int4) + lists(int4.up) + lists(int4.down)));
    EXPECT_EQ(bytes.working, each(divided.formats.weights));
    EXPECT_LT(bytes.backup, bytes.originals);
  }
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    const Status fits = ExpertBackup::CheckFormats({format});
    ASSERT_FALSE(fits);
    EXPECT_NE(fits.error().message.find("--weights bf16"), std::string::npos);
  }
}

TEST(ExpertBackup, QualityIsThatOfItsGroups) {
  weights::BackupQuality all;
  all.Add({.num_groups = 1,
           .num_good = 1,
           .least_cosine = 0.999,
           .sum_of_cosines = 0.999,
           .dot = 1,
           .squares = 1,
           .rounded_squares = 1});
  all.Add({.num_groups = 1,
           .num_good = 0,
           .least_cosine = 0.9,
           .sum_of_cosines = 0.9,
           .dot = 0,
           .squares = 1,
           .rounded_squares = 1});
  EXPECT_EQ(all.num_groups, 2);
  EXPECT_EQ(all.num_good, 1);
  EXPECT_EQ(all.least_cosine, 0.9);
  EXPECT_NEAR(all.mean_cosine(), 0.9495, 1e-12);
  EXPECT_NEAR(all.cosine(), 0.5, 1e-12);
  EXPECT_EQ(weights::BackupQuality().cosine(), 1);
}

TEST(PiecesBeside, AreWhatIsNotInBothParts) {
  const ExpertPart from{.experts = {2, 3}, .slice = {32, 64}};
  const ExpertPart to{.experts = {4, 2}, .slice = {0, 128}};
  std::vector<std::vector<int>> covered(8, std::vector<int>(128, 0));
  for (const auto& pieces :
       {weights::PiecesOf(from, to, 32), weights::PiecesBeside(from, to, 32)}) {
    for (const ExpertPiece& piece : pieces) {
      EXPECT_LE(piece.slice.size, 32);
      for (int i = 0; i < piece.slice.size; ++i) ++covered[piece.expert][piece.slice.first + i];
    }
  }
  for (int expert = 0; expert < 8; ++expert) {
    const bool is_wanted = expert == 4 || expert == 5;
    EXPECT_EQ(covered[expert], std::vector<int>(128, is_wanted ? 1 : 0)) << expert;
  }
}

}  // namespace
}  // namespace convene
