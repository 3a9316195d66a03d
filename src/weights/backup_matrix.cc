#include "weights/backup_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/pack.h"
#include "kernels/quantize_weights.h"
#include "weights/expert_parts.h"

namespace convene::weights {
namespace {

using kernels::Outlier;
using kernels::PackedMatrix;
using kernels::WeightFormat;

constexpr size_t kGroup = BackupMatrix::kGroup;
// Bounds the time that a row takes. Of Cauchy's weights 2,048 need 28.
constexpr int kMostPasses = 64;
// A group whose largest weight is less than so many of its row's finest steps would need a finer
// one: the row's largest weights are why it has none.
constexpr float kFewSteps = 7;

float AsBf16(float value) { return tensor::FloatFromBf16(tensor::Bf16FromFloat(value)); }

// Of one group, and nothing of one that was all zeros.
BackupQuality QualityOfGroup(std::span<const float> before, const float* after) {
  BackupQuality group;
  for (size_t i = 0; i < before.size(); ++i) {
    group.dot += double{before[i]} * after[i];
    group.squares += double{before[i]} * before[i];
    group.rounded_squares += double{after[i]} * after[i];
  }
  if (!(group.squares > 0)) return {};
  const double cosine = group.cosine();
  group.num_groups = 1;
  group.num_good = cosine >= BackupQuality::kGoodCosine ? 1 : 0;
  group.least_cosine = group.sum_of_cosines = cosine;
  return group;
}

// An outlier that is to be kept, and the cosine of the group for whose sake, before that.
struct Wanted {
  double cosine = 0;
  int row = 0;
  Outlier outlier;
};

size_t IndexOfLargest(std::span<const float> values) {
  size_t largest = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    if (std::abs(values[i]) > std::abs(values[largest])) largest = i;
  }
  return largest;
}

// Finds the outliers of a row: of each group that is not good the largest weight, again and again;
// where its steps are too coarse for the row's sake, the row's largest instead.
class OutlierSearch {
 public:
  OutlierSearch(int cols, WeightFormat becomes)
      : becomes_(becomes),
        row_(static_cast<size_t>(cols)),
        rest_(row_.size()),
        is_taken_(row_.size()),
        numbers_(row_.size()),
        scales_((row_.size() + kGroup - 1) / kGroup),
        num_columns_(std::min<size_t>(row_.size(), BackupMatrix::kMostColumns)),
        all_groups_((num_columns_ + kGroup - 1) / kGroup) {
    std::iota(all_groups_.begin(), all_groups_.end(), size_t{0});
  }

  float* row() { return row_.data(); }

  // Of what row() points to, row `index` of its matrix. Returns how many groups are good without.
  int64_t Find(int index, std::vector<Wanted>& wanted) {
    rest_ = row_;
    std::fill(is_taken_.begin(), is_taken_.end(), uint8_t{0});
    std::vector<size_t> groups = all_groups_;
    int64_t num_good = 0;
    for (int pass = 0; pass < kMostPasses && !groups.empty(); ++pass) {
      Quantize(groups);
      std::vector<std::pair<size_t, double>> bad;  // and their cosines
      for (const size_t group : groups) {
        const BackupQuality quality = QualityOf(group);
        if (pass == 0) num_good += quality.num_good;
        if (quality.num_good < quality.num_groups) bad.emplace_back(group, quality.least_cosine);
      }
      if (bad.empty()) break;
      const auto take = [&](size_t col, double cosine) {
        rest_[col] = 0;
        is_taken_[col] = 1;
        const Outlier outlier{static_cast<uint16_t>(col), tensor::Bf16FromFloat(row_[col])};
        wanted.push_back({cosine, index, outlier});
      };
      const size_t largest = IndexOfLargest(std::span(rest_).first(num_columns_));
      const bool is_any_left = rest_[largest] != 0;
      double least_of_coarse = 1;
      groups.clear();
      for (const auto& [group, cosine] : bad) {
        const size_t col = group * kGroup + IndexOfLargest(Columns(group, rest_));
        if (std::abs(rest_[col]) < kFewSteps * finest_step_) {
          least_of_coarse = std::min(least_of_coarse, cosine);
        } else {
          take(col, cosine);
          groups.push_back(group);
        }
      }
      if (least_of_coarse < 1 && is_any_left && is_taken_[largest] == 0) {
        take(largest, least_of_coarse);
      }
      // The row's largest weight gives all its groups their finest step.
      if (is_any_left && is_taken_[largest] != 0) groups = all_groups_;
    }
    return num_good;
  }

 private:
  template <typename T>
  std::span<const T> Columns(size_t group, const std::vector<T>& of) const {
    const size_t first = group * kGroup;
    return std::span(of).subspan(first, std::min(kGroup, of.size() - first));
  }

  // What is left of some groups; the others stay as they are.
  void Quantize(const std::vector<size_t>& groups) {
    if (groups.size() == all_groups_.size()) {
      finest_step_ = kernels::QuantizeInt4Row(rest_, rest_, BackupMatrix::kGroup, numbers_.data(),
                                              scales_.data());
      return;
    }
    for (const size_t group : groups) {
      kernels::QuantizeInt4Row(Columns(group, rest_), rest_, BackupMatrix::kGroup,
                               &numbers_[group * kGroup], &scales_[group]);
    }
  }

  BackupQuality QualityOf(size_t group) const {
    std::array<float, kGroup> after = {};
    const std::span<const float> before = Columns(group, row_);
    for (size_t i = 0; i < before.size(); ++i) {
      const size_t col = group * kGroup + i;
      const int whole = (numbers_[col] - kernels::kInt4Zero) * scales_[group];
      after[i] = static_cast<float>(whole) * finest_step_;
      if (is_taken_[col] != 0 || becomes_ == WeightFormat::kBf16) {
        after[i] = AsBf16(is_taken_[col] != 0 ? before[i] : after[i]);
      }
    }
    return QualityOfGroup(before, after.data());
  }

  WeightFormat becomes_;
  std::vector<float> row_;
  std::vector<float> rest_;        // of it, with zeros for outliers
  std::vector<uint8_t> is_taken_;  // whether a weight is an outlier
  std::vector<uint8_t> numbers_;   // of the rest
  std::vector<int8_t> scales_;
  float finest_step_ = 0;
  size_t num_columns_;  // that outliers are looked for in
  std::vector<size_t> all_groups_;
};

// Keeps those that there is room for, of the worst groups first, in the order of the matrix.
void Choose(std::vector<Wanted>& wanted, size_t most) {
  if (wanted.size() > most) {
    std::ranges::stable_sort(wanted, {}, &Wanted::cosine);
    wanted.resize(most);
  }
  std::ranges::sort(wanted, {},
                    [](const Wanted& one) { return std::pair(one.row, one.outlier.col); });
}

void WriteLists(const std::vector<Wanted>& chosen, const BackupMatrix& target) {
  auto* const ends = const_cast<uint32_t*>(target.outliers.ends);
  auto* const list = const_cast<Outlier*>(target.outliers.list);
  uint32_t count = 0;
  for (int row = 0; row < target.packed.rows; ++row) {
    while (count < chosen.size() && chosen[count].row == row) {
      list[count] = chosen[count].outlier;
      ++count;
    }
    ends[row] = count;
  }
}

std::span<const Outlier> OutliersOf(const BackupMatrix& matrix, int row) {
  const uint32_t* const ends = matrix.outliers.ends;
  const uint32_t begin = row > 0 ? ends[row - 1] : 0;
  return {matrix.outliers.list + begin, ends[row] - begin};
}

void PackLanes(const kernels::StoredMatrix& rows, const PackedMatrix& target, int first_row) {
  kernels::RowSource sources[kernels::kLanes] = {};
  for (int i = 0; i < rows.rows; ++i) sources[i] = {&rows, i};
  const bool is_finite =
      kernels::PackGroup(sources, target, first_row / kernels::kLanes, Writable(target));
  CHECK(is_finite, "weights that were packed are finite");
}

// Rows [first_row, first_row + kLanes) of a backup whose outliers are chosen.
class LanesRounding {
 public:
  LanesRounding(const BackupMatrix& target, WeightFormat becomes)
      : target_(target),
        becomes_(becomes),
        cols_(static_cast<size_t>(target.packed.cols)),
        before_(kernels::kLanes * cols_),
        after_(cols_) {}

  BackupQuality Round(const RowReader& read, int first_row) {
    const int num_rows = std::min(kernels::kLanes, target_.packed.rows - first_row);
    for (int i = 0; i < num_rows; ++i) read(first_row + i, Row(i));
    rest_ = before_;
    for (int i = 0; i < num_rows; ++i) {
      for (const Outlier& one : OutliersOf(target_, first_row + i)) rest_[i * cols_ + one.col] = 0;
    }
    PackLanes({.data = reinterpret_cast<const std::byte*>(rest_.data()),
               .row_stride = target_.packed.cols,
               .rows = num_rows,
               .cols = target_.packed.cols},
              target_.packed, first_row);
    BackupQuality quality;
    for (int i = 0; i < num_rows; ++i) AddRow(first_row + i, Row(i), quality);
    return quality;
  }

 private:
  float* Row(int lane) { return before_.data() + static_cast<size_t>(lane) * cols_; }

  // As the backup gives it back.
  void AddRow(int row, const float* before, BackupQuality& quality) {
    UnpackRow(target_, row, after_.data());
    if (becomes_ == WeightFormat::kBf16) {
      for (float& value : after_) value = AsBf16(value);
    }
    for (size_t first = 0; first < cols_; first += kGroup) {
      quality.Add(
          QualityOfGroup({before + first, std::min(kGroup, cols_ - first)}, &after_[first]));
    }
  }

  const BackupMatrix& target_;
  WeightFormat becomes_;
  size_t cols_;
  std::vector<float> before_;  // (kLanes, cols)
  std::vector<float> rest_;
  std::vector<float> after_;  // (cols)
};

}  // namespace

void BackupQuality::Add(const BackupQuality& other) {
  num_groups += other.num_groups;
  num_good += other.num_good;
  num_good_plain += other.num_good_plain;
  num_weights += other.num_weights;
  num_outliers += other.num_outliers;
  num_left_out += other.num_left_out;
  least_cosine = std::min(least_cosine, other.least_cosine);
  sum_of_cosines += other.sum_of_cosines;
  dot += other.dot;
  squares += other.squares;
  rounded_squares += other.rounded_squares;
}

double BackupQuality::cosine() const {
  if (!(squares > 0)) return 1;
  return rounded_squares > 0 ? dot / std::sqrt(squares * rounded_squares) : 0;
}

int64_t BackupMatrix::most_outliers() const {
  return packed.rows * ((int64_t{packed.cols} + kGroup - 1) / kGroup);
}

uint64_t BackupMatrix::size_bytes() const {
  const uint64_t lists = sizeof(uint32_t) * static_cast<uint64_t>(packed.rows) +
                         sizeof(Outlier) * static_cast<uint64_t>(most_outliers());
  return packed.size_bytes() + (lists + 63) / 64 * 64;
}

uint64_t BackupMatrix::PlaceAt(std::byte* at) {
  packed.data = at;
  outliers.ends = reinterpret_cast<const uint32_t*>(at + packed.size_bytes());
  outliers.list = reinterpret_cast<const Outlier*>(outliers.ends + packed.rows);
  return size_bytes();
}

BackupQuality RoundMatrix(const RowReader& read, WeightFormat becomes, const BackupMatrix& target) {
  const PackedMatrix& packed = target.packed;
  CHECK(target.most_outliers() < int64_t{1} << 32, "a piece of {} x {}", packed.rows, packed.cols);
  std::vector<Wanted> wanted;
  BackupQuality quality;
  OutlierSearch search(packed.cols, becomes);
  for (int row = 0; row < packed.rows; ++row) {
    read(row, search.row());
    quality.num_good_plain += search.Find(row, wanted);
  }
  const size_t num_wanted = wanted.size();
  Choose(wanted, static_cast<size_t>(target.most_outliers()));
  WriteLists(wanted, target);
  quality.num_weights = int64_t{packed.rows} * packed.cols;
  quality.num_outliers = std::ssize(wanted);
  quality.num_left_out = static_cast<int64_t>(num_wanted - wanted.size());
  LanesRounding lanes(target, becomes);
  for (int row = 0; row < packed.rows; row += kernels::kLanes) quality.Add(lanes.Round(read, row));
  return quality;
}

void UnpackRow(const BackupMatrix& matrix, int row, float* out) {
  kernels::UnpackRow(matrix.packed, row, out);
  for (const Outlier& one : OutliersOf(matrix, row)) {
    out[one.col] = tensor::FloatFromBf16(one.value);
  }
}

BackupFfn BackupFfnOf(const model::ActivationSpec& activation, int hidden, int intermediate) {
  const FfnWeights ffn = FfnOf({.matrices = WeightFormat::kInt4, .group = BackupMatrix::kGroup},
                               activation, hidden, intermediate);
  return {.up = {.packed = ffn.up}, .down = {.packed = ffn.down}};
}

uint64_t SizeBytes(const BackupFfn& ffn) { return ffn.up.size_bytes() + ffn.down.size_bytes(); }

uint64_t PlaceAt(std::byte* at, BackupFfn* ffn) {
  const uint64_t up = ffn->up.PlaceAt(at);
  return up + ffn->down.PlaceAt(at + up);
}

BackupQuality RoundFfn(const FfnWeights& from, const BackupFfn& target) {
  const auto round = [](const PackedMatrix& matrix, const BackupMatrix& into) {
    return RoundMatrix([&](int row, float* out) { kernels::UnpackRow(matrix, row, out); },
                       matrix.format, into);
  };
  BackupQuality quality = round(from.up, target.up);
  quality.Add(round(from.down, target.down));
  return quality;
}

void DequantizeFfn(const BackupFfn& from, const FfnWeights& target) {
  const auto dequantize = [](const BackupMatrix& matrix, const PackedMatrix& into) {
    kernels::DequantizeInt4(matrix.packed, matrix.outliers, into, Writable(into));
  };
  dequantize(from.up, target.up);
  dequantize(from.down, target.down);
}

}  // namespace convene::weights
