#include "kernels/reference/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "tensor/dtype.h"

namespace convene::kernels::reference {

using tensor::Bf16;

float PanelElement(WeightFormat format, const std::byte* panel, int width, int row, int col) {
  if (format == WeightFormat::kF32) {
    return reinterpret_cast<const float*>(panel)[int64_t{col} * width + row];
  }
  const int64_t pair = int64_t{col / 2} * width + row;
  return tensor::FloatFromBf16(reinterpret_cast<const Bf16*>(panel)[2 * pair + col % 2]);
}

float LoadActivation(WeightFormat format, const void* row, int64_t index) {
  if (format == WeightFormat::kF32) return static_cast<const float*>(row)[index];
  return tensor::FloatFromBf16(static_cast<const Bf16*>(row)[index]);
}

void StoreActivation(WeightFormat format, void* row, int64_t index, float value) {
  if (format == WeightFormat::kF32) {
    static_cast<float*>(row)[index] = value;
  } else {
    static_cast<Bf16*>(row)[index] = tensor::Bf16FromFloat(value);
  }
}

namespace {

double Dot(const PanelGemm& gemm, const void* row, int column) {
  double sum = 0;
  for (int k = 0; k < gemm.depth; ++k) {
    sum += double{LoadActivation(gemm.format, row, k)} *
           PanelElement(gemm.format, gemm.panel, gemm.width, column, k);
  }
  return sum;
}

void Gemm(const PanelGemm& gemm) {
  for (int i = 0; i < gemm.num_rows; ++i) {
    std::byte* out = gemm.out + i * gemm.out_stride;
    for (int column = 0; column < gemm.columns; ++column) {
      const double product = Dot(gemm, gemm.rows[i], column);
      if (gemm.epilogue == Epilogue::kSiluMul) {
        const double up = Dot(gemm, gemm.rows[i], column + gemm.width / 2);
        const double value = product / (1 + std::exp(-product)) * up;
        StoreActivation(gemm.format, out, column, static_cast<float>(value));
        continue;
      }
      const double value = product + (gemm.bias != nullptr ? gemm.bias[column] : 0.0f);
      float& target = reinterpret_cast<float*>(out)[column];
      target = static_cast<float>(gemm.epilogue == Epilogue::kAdd ? target + value : value);
    }
  }
}

void RmsNormInPlace(float* x, int size, const float* weight, float epsilon) {
  double squares = 0;
  for (int i = 0; i < size; ++i) squares += double{x[i]} * x[i];
  const double scale = 1 / std::sqrt(squares / size + epsilon);
  for (int i = 0; i < size; ++i) x[i] = static_cast<float>(x[i] * scale * weight[i]);
}

void Normalize(const Norm& norm, const float* x, void* out_activations, float* out_float) {
  double mean = 0;
  if (norm.kind == NormKind::kLayer) {
    for (int i = 0; i < norm.size; ++i) mean += x[i];
    mean /= norm.size;
  }
  double squares = 0;
  for (int i = 0; i < norm.size; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const double scale = 1 / std::sqrt(squares / norm.size + norm.epsilon);
  for (int i = 0; i < norm.size; ++i) {
    const auto value = static_cast<float>((x[i] - mean) * scale * norm.weight[i]);
    if (out_activations != nullptr) StoreActivation(norm.format, out_activations, i, value);
    if (out_float != nullptr) out_float[i] = value;
  }
  if (out_activations == nullptr) return;
  for (int i = norm.size; i < PaddedActivations(norm.size); ++i) {
    StoreActivation(norm.format, out_activations, i, 0);
  }
}

void Rotate(float* head, const QkvShape& shape, const QkvToken& token) {
  const int half = shape.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double first = head[i];
    const double second = head[i + half];
    head[i] = static_cast<float>(first * token.cosine[i] - second * token.sine[i]);
    head[i + half] = static_cast<float>(second * token.cosine[i] + first * token.sine[i]);
  }
}

void NormalizeHeads(const QkvShape& shape, float* x, int num_heads, const float* weight) {
  const int size = num_heads * shape.head_dim;
  if (shape.norm == QkNormKind::kWholeProjection) RmsNormInPlace(x, size, weight, shape.epsilon);
  if (shape.norm != QkNormKind::kPerHead) return;
  for (int head = 0; head < num_heads; ++head) {
    RmsNormInPlace(x + head * shape.head_dim, shape.head_dim, weight, shape.epsilon);
  }
}

void StorePanelElement(WeightFormat format, std::byte* panel, int width, int row, int col,
                       float value) {
  if (format == WeightFormat::kF32) {
    reinterpret_cast<float*>(panel)[int64_t{col} * width + row] = value;
    return;
  }
  const int64_t pair = int64_t{col / 2} * width + row;
  reinterpret_cast<Bf16*>(panel)[2 * pair + col % 2] = tensor::Bf16FromFloat(value);
}

void PrepareQkv(const QkvShape& shape, const QkvToken& token) {
  const int query_dim = shape.num_heads * shape.head_dim;
  const int kv_dim = shape.num_kv_heads * shape.head_dim;
  float* queries = token.qkv;
  float* keys = queries + query_dim;
  float* values = keys + kv_dim;
  NormalizeHeads(shape, queries, shape.num_heads, shape.query_norm);
  NormalizeHeads(shape, keys, shape.num_kv_heads, shape.key_norm);
  if (shape.clip > 0) {
    for (int i = 0; i < query_dim + 2 * kv_dim; ++i) {
      token.qkv[i] = std::clamp(token.qkv[i], -shape.clip, shape.clip);
    }
  }
  const int64_t padded_dim = PaddedActivations(shape.head_dim);
  for (int head = 0; head < shape.num_heads; ++head) {
    float* query = queries + head * shape.head_dim;
    Rotate(query, shape, token);
    for (int i = 0; i < padded_dim; ++i) {
      StoreActivation(shape.format, token.queries, head * padded_dim + i,
                      i < shape.head_dim ? query[i] : 0);
    }
  }
  const PackedMatrix value_shape{
      .format = shape.format, .rows = shape.head_dim, .cols = kKvBlockTokens};
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    float* key = keys + head * shape.head_dim;
    const float* value = values + head * shape.head_dim;
    Rotate(key, shape, token);
    std::byte* key_panel = token.kv_block + head * token.kv_head_stride;
    std::byte* value_panels = key_panel + KeyBlockBytes(shape.format, shape.head_dim);
    for (int i = 0; i < shape.head_dim; ++i) {
      StorePanelElement(shape.format, key_panel, kKvBlockTokens, token.slot, i, key[i]);
      const int panel = i / kPanelRows;
      StorePanelElement(shape.format, value_panels + value_shape.row_bytes() * kPanelRows * panel,
                        value_shape.panel_width(panel), i % kPanelRows, token.slot, value[i]);
    }
  }
}

// Attention of one query row, with the keys' and values' positions in order. As in the fast
// kernels the probabilities are activations: rounded to bf16 beside a bf16 cache.
void AttendRow(const Attention& attention, int token, int head) {
  const int position = attention.first_position + token;
  const int first_key = attention.window > 0 ? std::max(0, position - attention.window + 1) : 0;
  const std::byte* query =
      attention.queries + token * attention.query_token_stride + head * attention.query_head_stride;
  const size_t key_bytes = KeyBlockBytes(attention.format, attention.head_dim);
  const auto block_of = [&](int key) {
    return attention.kv + attention.blocks[key / kKvBlockTokens] * attention.kv_block_stride;
  };
  const auto score = [&](int key) {
    double sum = 0;
    for (int i = 0; i < attention.head_dim; ++i) {
      sum += double{LoadActivation(attention.format, query, i)} *
             PanelElement(attention.format, block_of(key), kKvBlockTokens, key % kKvBlockTokens, i);
    }
    return sum * attention.scale;
  };
  double maximum = -std::numeric_limits<double>::infinity();
  for (int key = first_key; key <= position; ++key) maximum = std::max(maximum, score(key));

  double total = 0;
  auto* sums = reinterpret_cast<double*>(attention.scratch);
  std::fill(sums, sums + attention.head_dim, 0.0);
  const PackedMatrix values{
      .format = attention.format, .rows = attention.head_dim, .cols = kKvBlockTokens};
  for (int key = first_key; key <= position; ++key) {
    const double exact = std::exp(score(key) - maximum);
    total += exact;
    float probability;
    StoreActivation(attention.format, &probability, 0, static_cast<float>(exact));
    probability = LoadActivation(attention.format, &probability, 0);
    for (int i = 0; i < attention.head_dim; ++i) {
      const int panel = i / kPanelRows;
      const std::byte* panel_data =
          block_of(key) + key_bytes + values.row_bytes() * kPanelRows * panel;
      sums[i] += double{probability} * PanelElement(attention.format, panel_data,
                                                    values.panel_width(panel), i % kPanelRows,
                                                    key % kKvBlockTokens);
    }
  }
  std::byte* out =
      attention.out + token * attention.out_token_stride + head * attention.out_head_stride;
  for (int i = 0; i < attention.head_dim; ++i) {
    StoreActivation(attention.format, out, i, static_cast<float>(sums[i] / total));
  }
}

void Attend(const Attention& attention) {
  for (int token = 0; token < attention.num_tokens; ++token) {
    for (int head = 0; head < attention.num_heads; ++head) AttendRow(attention, token, head);
  }
}

// Sums in float, since the tree of sums is what fixes the rounding across ranks.
void CombineRows(const Combine& combine) {
  std::array<float, kMaxTopK> sums;
  for (int i = 0; i < combine.size; ++i) {
    for (int row = 0; row < combine.count; ++row) {
      sums[row] = combine.weights[row] * combine.rows[row][i];
    }
    for (int merge = 0; merge + 1 < combine.count; ++merge) {
      sums[combine.merges[merge].into] += sums[combine.merges[merge].from];
    }
    float total = combine.count > 0 ? sums[0] : 0.0f;
    if (combine.shared != nullptr) total += combine.shared_weight * combine.shared[i];
    combine.out[i] += total;
  }
}

}  // namespace

const KernelSet& Kernels() {
  static constexpr KernelSet kKernels{.name = "reference",
                                      .gemm = Gemm,
                                      .normalize = Normalize,
                                      .prepare_qkv = PrepareQkv,
                                      .attend = Attend,
                                      .combine = CombineRows};
  return kKernels;
}

}  // namespace convene::kernels::reference
