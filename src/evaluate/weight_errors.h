// How far rounded weights are from the stored ones, for each scheme and each kind of matrix. What
// that does to a model's answers is logits_difference.h.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "evaluate/rounding_scheme.h"
#include "model/model_spec.h"

namespace convene::evaluate {

// The kinds of matrices that the table tells apart. Gate, up and down are those of experts, shared
// experts and dense layers together.
enum class MatrixKind { kAttention, kGate, kUp, kDown, kHead };
inline constexpr int kNumMatrixKinds = 5;
std::string_view Name(MatrixKind kind);
// The kind of a matrix that integer formats round (the embedding is one only where it is also the
// head); none for all others.
std::optional<MatrixKind> KindOf(model::TensorRole role, bool tied_embeddings);

// Sums over weights.
struct WeightError {
  double dot = 0;      // stored times rounded
  double stored = 0;   // squares
  double rounded = 0;  // squares
  double error = 0;    // squares of the differences

  void Add(std::span<const float> stored_values, std::span<const float> rounded_values);
  void Add(const WeightError& other);
  // 1 for equal directions; 1 too where there are only zeros.
  double cosine() const;
  // The norm of the difference over the norm of the stored weights; 0 where those are zeros.
  double relative() const;
};

struct SchemeErrors {
  RoundingScheme scheme;
  std::array<WeightError, kNumMatrixKinds> by_kind = {};

  WeightError total() const;
};

// One entry per scheme. Of a kind with more weights than `max_weights` only a sample of matrices is
// taken, evenly from the first to the last. Errors: of the checkpoint, of the threads' CPUs.
Result<std::vector<SchemeErrors>> MeasureWeightErrors(const std::string& model_directory,
                                                      std::span<const RoundingScheme> schemes,
                                                      std::optional<int> num_threads,
                                                      int64_t max_weights = int64_t{1} << 25);

}  // namespace convene::evaluate
