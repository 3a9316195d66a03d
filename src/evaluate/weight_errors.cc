#include "evaluate/weight_errors.h"

#include <fmt/format.h>

#include <atomic>
#include <cmath>

#include "base/environment.h"
#include "base/quote.h"
#include "checkpoint/checkpoint.h"
#include "hardware/thread_pool.h"
#include "hardware/topology.h"
#include "tensor/finite.h"
#include "weights/stored_matrix.h"

namespace convene::evaluate {
namespace {

struct Sample {
  MatrixKind kind;
  const model::TensorBinding* binding;
};

// Every n-th matrix of each kind, so that about `max_weights` of it are taken at most.
std::vector<Sample> ChooseMatrices(const model::ModelSpec& spec, int64_t max_weights) {
  std::array<std::vector<Sample>, kNumMatrixKinds> by_kind;
  std::array<int64_t, kNumMatrixKinds> num_weights = {};
  for (const model::TensorBinding& binding : spec.tensors) {
    const std::optional<MatrixKind> kind = KindOf(binding.role, spec.tied_embeddings);
    if (!kind) continue;
    by_kind[static_cast<size_t>(*kind)].push_back({*kind, &binding});
    num_weights[static_cast<size_t>(*kind)] += binding.rows * binding.cols;
  }
  std::vector<Sample> samples;
  for (size_t kind = 0; kind < by_kind.size(); ++kind) {
    const auto step = static_cast<size_t>((num_weights[kind] + max_weights - 1) / max_weights);
    for (size_t i = 0; i < by_kind[kind].size(); i += step) samples.push_back(by_kind[kind][i]);
  }
  return samples;
}

}  // namespace

std::string_view Name(MatrixKind kind) {
  constexpr std::string_view kNames[kNumMatrixKinds] = {"attention", "gate", "up", "down", "head"};
  return kNames[static_cast<int>(kind)];
}

std::optional<MatrixKind> KindOf(model::TensorRole role, bool tied_embeddings) {
  using enum model::TensorRole;
  switch (role) {
    case kQuery:
    case kKey:
    case kValue:
    case kQueryDown:
    case kQueryUp:
    case kKvDown:
    case kKvUp:
    case kAttentionOutput:
    case kCrossQuery:
    case kCrossKey:
    case kCrossValue:
    case kCrossOutput:
      return MatrixKind::kAttention;
    case kDenseGate:
    case kExpertGate:
    case kSharedGate:
      return MatrixKind::kGate;
    case kDenseUp:
    case kExpertUp:
    case kSharedUp:
      return MatrixKind::kUp;
    case kDenseDown:
    case kExpertDown:
    case kSharedDown:
      return MatrixKind::kDown;
    case kHead:
      return MatrixKind::kHead;
    case kEmbedding:
      return tied_embeddings ? std::optional(MatrixKind::kHead) : std::nullopt;
    default:
      return std::nullopt;
  }
}

void WeightError::Add(std::span<const float> stored_values, std::span<const float> rounded_values) {
  for (size_t i = 0; i < stored_values.size(); ++i) {
    const double a = stored_values[i];
    const double b = rounded_values[i];
    dot += a * b;
    stored += a * a;
    rounded += b * b;
    error += (a - b) * (a - b);
  }
}

void WeightError::Add(const WeightError& other) {
  dot += other.dot;
  stored += other.stored;
  rounded += other.rounded;
  error += other.error;
}

double WeightError::cosine() const {
  if (stored == 0 && rounded == 0) return 1;
  if (stored == 0 || rounded == 0) return 0;
  return dot / std::sqrt(stored * rounded);
}

double WeightError::relative() const { return stored == 0 ? 0 : std::sqrt(error / stored); }

WeightError SchemeErrors::total() const {
  WeightError sum;
  for (const WeightError& error : by_kind) sum.Add(error);
  return sum;
}

Result<std::vector<SchemeErrors>> MeasureWeightErrors(const std::string& model_directory,
                                                      std::span<const RoundingScheme> schemes,
                                                      std::optional<int> num_threads,
                                                      int64_t max_weights) {
  const Result<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::Open(model_directory);
  if (!checkpoint) return checkpoint.error();
  Result<std::vector<int>> cpus = hardware::CpusForThisRank(LocalRankFromLauncher(), num_threads);
  if (!cpus) return cpus.error();
  hardware::ThreadPool pool(*std::move(cpus));
  if (const Status started = pool.started(); !started) return started.error();

  const std::vector<Sample> samples = ChooseMatrices(checkpoint->spec(), max_weights);
  // (samples, schemes): summed in one order afterwards, whichever thread was first.
  std::vector<WeightError> errors(samples.size() * schemes.size());
  std::atomic<const model::TensorBinding*> not_finite = nullptr;
  pool.ParallelFor(std::ssize(samples), [&](int64_t sample, int) {
    const model::TensorBinding& binding = *samples[static_cast<size_t>(sample)].binding;
    const std::vector<float> stored =
        weights::ToFloats(weights::StoredMatrixOf(*checkpoint, binding));
    if (!tensor::AllFinite(stored)) not_finite = &binding;
    // Along the stored rows, as the engine rounds all but a copy: of kv_b_proj it also has each
    // head's part for keys transposed, rounded along that one's rows.
    for (size_t i = 0; i < schemes.size(); ++i) {
      std::vector<float> rounded = stored;
      Round(schemes[i], static_cast<int>(binding.cols), rounded);
      errors[static_cast<size_t>(sample) * schemes.size() + i].Add(stored, rounded);
    }
  });
  if (not_finite != nullptr) {
    return Error{fmt::format("tensor {} holds NaN or infinity; the file is damaged: get it again",
                             Quote(not_finite.load()->name))};
  }

  std::vector<SchemeErrors> table;
  for (size_t i = 0; i < schemes.size(); ++i) {
    SchemeErrors row{.scheme = schemes[i]};
    for (size_t sample = 0; sample < samples.size(); ++sample) {
      row.by_kind[static_cast<size_t>(samples[sample].kind)].Add(
          errors[sample * schemes.size() + i]);
    }
    table.push_back(row);
  }
  return table;
}

}  // namespace convene::evaluate
