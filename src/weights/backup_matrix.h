// How a backup of experts (expert_backup.h) keeps a matrix: in int4, and beside that as they are
// the outliers, a few large weights for which the steps of the others in their group would be too
// coarse (SqueezeLLM and SpQR keep a dense and a sparse part so). Which experts, and when, is not
// known here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/dequantize.h"
#include "kernels/packed_matrix.h"
#include "model/model_spec.h"
#include "weights/model_weights.h"

namespace convene::weights {

// How close a backup is to what it stands for: the cosine of each group of weights that have a
// scale in common, in what the backup gives back and before. Groups of zeros alone do not count.
struct BackupQuality {
  static constexpr double kGoodCosine = 0.995;  // HAP's bound

  int64_t num_groups = 0;
  int64_t num_good = 0;        // of kGoodCosine and more
  int64_t num_good_plain = 0;  // that would be good without any outlier
  int64_t num_weights = 0;
  int64_t num_outliers = 0;
  int64_t num_left_out = 0;  // outliers that found no room
  double least_cosine = 1;
  double sum_of_cosines = 0;
  // Of all weights together: their products with what became of them, and squares of both.
  double dot = 0;
  double squares = 0;
  double rounded_squares = 0;

  void Add(const BackupQuality& other);
  double mean_cosine() const {
    return num_groups > 0 ? sum_of_cosines / static_cast<double>(num_groups) : 1;
  }
  double cosine() const;  // of all weights as one vector; 1 where there are none
};

struct BackupMatrix {
  // A scale for each kGroup columns, and room for so many outliers as there are such groups,
  // wherever in the matrix they are. Of normal weights a twelfth of it is used, of Laplace's a
  // half, of Student's with 2 degrees of freedom nearly all (docs/results/transition.md).
  static constexpr int kGroup = 32;
  // Outliers are looked for before this column, so that 16 bits say where they are.
  static constexpr int kMostColumns = 1 << 16;

  kernels::PackedMatrix packed;
  kernels::Outliers outliers = {};

  int64_t most_outliers() const;
  uint64_t size_bytes() const;  // a multiple of 64
  // From `at` on, 64-byte aligned. Returns its bytes.
  uint64_t PlaceAt(std::byte* at);
};

// Row `row` of a matrix into `out` (cols floats).
using RowReader = std::function<void(int row, float* out)>;

// Makes a backup of the finite rows that `read` gives, each of them twice at least. Outliers are
// taken until all groups are good, as they will be in `becomes` (f32 or bf16). Where the room is
// too small, those of the worst groups are kept. `target` has memory, which is written. Threads may
// round several matrices at a time.
BackupQuality RoundMatrix(const RowReader& read, kernels::WeightFormat becomes,
                          const BackupMatrix& target);

// Row `row` (cols floats) of what a backup gives back in f32.
void UnpackRow(const BackupMatrix& matrix, int row, float* out);

// An expert, or a part of one.
struct BackupFfn {
  BackupMatrix up;
  BackupMatrix down;
};
// Of so many columns, without memory.
BackupFfn BackupFfnOf(const model::ActivationSpec& activation, int hidden, int intermediate);
uint64_t SizeBytes(const BackupFfn& ffn);
// Its parts one behind the other from `at` on (64-byte aligned). Returns their bytes.
uint64_t PlaceAt(std::byte* at, BackupFfn* ffn);
BackupQuality RoundFfn(const FfnWeights& from, const BackupFfn& target);
// Into the memory of `target`, an expert of as many columns in f32 or bf16.
void DequantizeFfn(const BackupFfn& from, const FfnWeights& target);

}  // namespace convene::weights
