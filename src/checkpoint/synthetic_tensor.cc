#include "checkpoint/synthetic_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/stored_parts.h"
#include "model/model_size.h"
#include "tensor/small_floats.h"

namespace convene::checkpoint {
namespace {

using model::TensorRole;

// What queries must be multiplied with for scores of size one: 1 but where the model does not
// multiply scores with head_dim^-1/2 (T5).
float QueryFactor(const model::ModelSpec& spec, const model::TensorBinding& binding) {
  const auto& layers = binding.encoder ? spec.encoder_layers : spec.layers;
  const model::LayerSpec& layer = layers[binding.layer];
  const model::AttentionSpec& attention =
      binding.role == TensorRole::kCrossQuery ? *layer.cross_attention : layer.attention;
  const double factor = spec.rope.score_factor / (attention.scale * std::sqrt(attention.head_dim));
  return std::abs(factor - 1) < 1e-4 ? 1.0f : static_cast<float>(factor);
}

// The first element of embeddings in parts of their deviation: large enough that a router's weight
// for it stays of the size of weights, small enough that norms hardly notice it.
constexpr float kCommonElement = 4;

// The number that one of so many normal ones exceeds.
double NormalQuantile(double upper_share) {
  double low = -8;
  double high = 8;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(middle / std::sqrt(2.0)) / 2 > upper_share ? low : high) = middle;
  }
  return (low + high) / 2;
}

// A token chooses the experts whose logits pass what the last of them has, about the same for all
// tokens; logits are normal of size one. So an expert's logits are shifted by how far that bound is
// from the one that its share of the tokens would pass.
std::vector<float> RouterColumn(const std::vector<double>& shares) {
  std::vector<float> column;
  double sum = 0;
  for (const double share : shares) {
    const double shift = -NormalQuantile(std::clamp(share, 1e-4, 1 - 1e-4));
    column.push_back(static_cast<float>(shift / kCommonElement));
    sum += column.back();
  }
  const auto mean = static_cast<float>(sum / static_cast<double>(column.size()));
  for (float& each : column) each -= mean;
  return column;
}

void Prefer(const RouterPreference& preference, const model::TensorBinding& binding,
            float embedding_std, Fill& fill) {
  if (binding.role == TensorRole::kEmbedding) {
    fill.first_of_rows = {kCommonElement * embedding_std};
  } else if (binding.role == TensorRole::kRouter && !binding.encoder) {
    fill.first_of_rows = RouterColumn(preference.shares[static_cast<size_t>(binding.layer)]);
  }
  fill.cols = binding.cols;
}

Fill FillOf(const model::ModelSpec& spec, const model::TensorBinding& binding,
            float embedding_std) {
  // Inputs of size one give outputs of size one.
  const float unit = 1.0f / std::sqrt(static_cast<float>(binding.cols));
  if (model::KindOf(binding.role) == model::TensorKind::kNorms) return {.constant = 1};
  switch (binding.role) {
    case TensorRole::kQueryBias:
    case TensorRole::kKeyBias:
    case TensorRole::kValueBias:
    case TensorRole::kAttentionOutputBias:
    case TensorRole::kQueryDownBias:
    case TensorRole::kKvDownBias:
    case TensorRole::kSinks:
    case TensorRole::kRouterBias:
    case TensorRole::kCorrectionBias:
    case TensorRole::kExpertGateBias:
    case TensorRole::kExpertUpBias:
    case TensorRole::kExpertDownBias:
      return {};
    case TensorRole::kEmbedding:
      return {.std = embedding_std};
    case TensorRole::kQuery:
    case TensorRole::kCrossQuery:
      return {.std = unit * QueryFactor(spec, binding)};
    default:
      return {.std = unit};
  }
}

// The codes of all bf16 numbers: looking up is many times faster than rounding.
class Codes {
 public:
  explicit Codes(uint8_t (*round)(float)) : codes_(1 << 16) {
    for (size_t bits = 0; bits < codes_.size(); ++bits) {
      codes_[bits] = round(tensor::FloatFromBf16(static_cast<tensor::Bf16>(bits)));
    }
  }
  uint8_t operator[](tensor::Bf16 bits) const { return codes_[bits]; }

 private:
  std::vector<uint8_t> codes_;
};

}  // namespace

int BitsOf(Encoding encoding) {
  constexpr int kBits[] = {16, 32, 8, 4, 8};
  return kBits[static_cast<size_t>(encoding)];
}

std::vector<SyntheticTensor> SyntheticTensors(const model::ModelSpec& spec,
                                              const model::TensorBinding& binding,
                                              float embedding_std,
                                              const RouterPreference& preference) {
  Fill fill = FillOf(spec, binding, embedding_std);
  if (preference.is_set()) Prefer(preference, binding, embedding_std, fill);
  const std::vector<StoredPart> parts = PartsOf(binding);
  const auto planned = [&](const StoredPart& part, Encoding encoding, Fill part_fill) {
    const char* plain = encoding == Encoding::kF32 ? "F32" : "BF16";
    SyntheticTensor tensor = {.stored = {.name = part.name,
                                         .dtype = part.dtype == nullptr ? plain : part.dtype,
                                         .shape = part.shape},
                              .encoding = encoding,
                              .fill = part_fill,
                              .num_elements = 1};
    for (const int64_t dimension : part.shape) tensor.num_elements *= dimension;
    if (encoding == Encoding::kE2m1) tensor.num_elements *= 2;  // a byte holds two
    tensor.stored.size_bytes = static_cast<uint64_t>(tensor.num_elements) * BitsOf(encoding) / 8;
    return tensor;
  };
  const float largest = 3.5f * fill.std;
  switch (binding.storage) {
    case model::Storage::kPlain:
      break;
    case model::Storage::kFp8Block: {
      const float scale = largest / 448;
      return {planned(parts[0], Encoding::kE4m3, {.std = fill.std / scale}),
              planned(parts[1], Encoding::kF32, {.constant = scale})};
    }
    case model::Storage::kMxfp4: {
      const float scale = std::exp2(std::ceil(std::log2(largest / 6)));
      return {planned(parts[0], Encoding::kE2m1, {.std = fill.std / scale}),
              planned(parts[1], Encoding::kE8m0, {.constant = scale})};
    }
  }
  return {planned(parts[0], Encoding::kBf16, fill)};
}

void FillFirstOfRows(const Fill& fill, int64_t first, std::span<tensor::Bf16> numbers) {
  if (fill.first_of_rows.empty()) return;
  const auto count = static_cast<int64_t>(numbers.size());
  for (int64_t row = (first + fill.cols - 1) / fill.cols; row * fill.cols < first + count; ++row) {
    const auto number = static_cast<size_t>(row) % fill.first_of_rows.size();
    numbers[static_cast<size_t>(row * fill.cols - first)] =
        tensor::Bf16FromFloat(fill.first_of_rows[number]);
  }
}

std::span<const std::byte> Encode(const SyntheticTensor& tensor,
                                  std::span<const tensor::Bf16> numbers,
                                  std::vector<std::byte>& bytes) {
  if (tensor.encoding == Encoding::kBf16) return std::as_bytes(numbers);
  const size_t count = numbers.size();
  bytes.resize(count * BitsOf(tensor.encoding) / 8);
  switch (tensor.encoding) {
    case Encoding::kBf16:
      break;
    case Encoding::kE4m3: {
      static const Codes codes(tensor::E4m3FromFloat);
      for (size_t i = 0; i < count; ++i) bytes[i] = std::byte{codes[numbers[i]]};
      break;
    }
    case Encoding::kE2m1: {
      static const Codes codes(tensor::E2m1FromFloat);
      for (size_t i = 0; i < count; i += 2) {
        bytes[i / 2] = static_cast<std::byte>(codes[numbers[i]] | codes[numbers[i + 1]] << 4);
      }
      break;
    }
    case Encoding::kF32:
      for (size_t i = 0; i < count; ++i) {
        std::memcpy(&bytes[i * sizeof(float)], &tensor.fill.constant, sizeof(float));
      }
      break;
    case Encoding::kE8m0:
      std::fill(bytes.begin(), bytes.end(),
                static_cast<std::byte>(std::ilogb(tensor.fill.constant) + 127));
      break;
  }
  return bytes;
}

}  // namespace convene::checkpoint
