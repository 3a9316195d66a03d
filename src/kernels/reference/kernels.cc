#include "kernels/reference/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "tensor/dtype.h"

namespace convene::kernels::reference {

using tensor::Bf16;

namespace {

// The whole number that an integer weight is; its row's scale is not in it.
int IntegerElement(const PackedPanel& panel, int row, int col) {
  if (panel.format == WeightFormat::kInt8) {
    const int64_t at = (int64_t{col / 4} * panel.width + row) * 4 + col % 4;
    return static_cast<int>(panel.data[at]) - kInt8Zero;
  }
  const int group = col / panel.group * panel.group;
  const std::byte* scales = panel.data + panel.group_offset(group);
  const int in_block = col % kInt4Block;
  const int64_t block = int64_t{(col - group) / kInt4Block} * panel.width * kInt4Block / 2;
  const std::byte pair = scales[kPanelRows + block + row / kLanes * (kLanes * kInt4Block / 2) +
                                (in_block / 8 * kLanes + row % kLanes) * 4 + in_block % 4];
  const int stored = in_block % 8 < 4 ? static_cast<int>(pair) & 15 : static_cast<int>(pair) >> 4;
  const int scale = static_cast<int8_t>(scales[row]);
  const int q = scale < 0 ? 15 - stored : stored;
  return (q - kInt4Zero) * scale;
}

}  // namespace

float PanelElement(const PackedPanel& panel, int row, int col) {
  const int64_t at = int64_t{col} * panel.width + row;
  switch (panel.format) {
    case WeightFormat::kF32:
      return reinterpret_cast<const float*>(panel.data)[at];
    case WeightFormat::kBf16: {
      const int64_t pair = int64_t{col / 2} * panel.width + row;
      return tensor::FloatFromBf16(reinterpret_cast<const Bf16*>(panel.data)[2 * pair + col % 2]);
    }
    case WeightFormat::kInt8:
    case WeightFormat::kInt4:
      return static_cast<float>(IntegerElement(panel, row, col)) * panel.scales()[row];
  }
  return 0;
}

float LoadActivation(ActivationFormat format, const void* row, int64_t index) {
  if (format == ActivationFormat::kF32) return static_cast<const float*>(row)[index];
  CHECK(format == ActivationFormat::kBf16, "an int8 row's scale lies behind it");
  return tensor::FloatFromBf16(static_cast<const Bf16*>(row)[index]);
}

void StoreActivation(ActivationFormat format, void* row, int64_t index, float value) {
  if (format == ActivationFormat::kF32) {
    static_cast<float*>(row)[index] = value;
  } else {
    CHECK(format == ActivationFormat::kBf16, "int8 rows are quantized as a whole");
    static_cast<Bf16*>(row)[index] = tensor::Bf16FromFloat(value);
  }
}

namespace {

// Whole numbers first, then the scales in float: these roundings are the specification.
float IntegerDot(const PanelGemm& gemm, const std::byte* row, int column) {
  const auto* values = reinterpret_cast<const int8_t*>(row);
  int32_t sum = 0;
  for (int k = 0; k < gemm.weights.depth; ++k) {
    sum += values[k] * IntegerElement(gemm.weights, column, k);
  }
  return static_cast<float>(sum) * gemm.weights.scales()[column] *
         RowEnd(row, gemm.weights.padded())->scale;
}

double Dot(const PanelGemm& gemm, const std::byte* row, int column) {
  if (gemm.activations == ActivationFormat::kInt8) return IntegerDot(gemm, row, column);
  double sum = 0;
  for (int k = 0; k < gemm.weights.depth; ++k) {
    sum += double{LoadActivation(gemm.activations, row, k)} * PanelElement(gemm.weights, column, k);
  }
  return sum;
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double Gated(const PanelGemm& gemm, double gate, double up) {
  if (gemm.epilogue == Epilogue::kSiluMul) return gate * Sigmoid(gate) * up;
  const double limit = gemm.parameters.limit;
  gate = std::min(gate, limit);
  up = std::clamp(up, -limit, limit);
  return gate * Sigmoid(gemm.parameters.alpha * gate) * (up + 1);
}

void MultiplyPanel(const PanelGemm& gemm) {
  for (int i = 0; i < gemm.num_rows; ++i) {
    const std::byte* row = gemm.rows + i * gemm.row_stride;
    std::byte* out = gemm.out + i * gemm.out_stride;
    const auto sum = [&](int column) {
      return Dot(gemm, row, column) + (gemm.bias != nullptr ? gemm.bias[column] : 0.0f);
    };
    for (int column = 0; column < gemm.columns; ++column) {
      double value = sum(column);
      if (MakesActivations(gemm.epilogue)) {
        value = IsGated(gemm.epilogue) ? Gated(gemm, value, sum(column + gemm.weights.width / 2))
                                       : std::max(value, 0.0);
        StoreActivation(gemm.out_format, out, column, static_cast<float>(value));
        continue;
      }
      value *= gemm.parameters.scale;
      float& target = reinterpret_cast<float*>(out)[column];
      target = static_cast<float>(gemm.epilogue == Epilogue::kAdd ? target + value : value);
    }
  }
}

void Gemm(const PanelGemm& gemm) {
  for (int index = 0; index < gemm.num_panels; ++index) MultiplyPanel(PanelOf(gemm, index));
}

// It fetches nothing: only which thread takes which panels is left.
PanelStreaming ActingWay(const PanelStreaming& way, WeightFormat, ActivationFormat, int) {
  return {.ahead_bytes = 0, .fetches_next = false, .own_shares = way.own_shares};
}

// NaN if x holds one, otherwise infinity if it holds that: so a scale tells of either.
float LargestMagnitude(const float* x, int size) {
  float top = 0;
  for (int i = 0; i < size; ++i) {
    if (!std::isnan(top) && !(std::abs(x[i]) <= top)) top = std::abs(x[i]);
  }
  return top;
}

int8_t ToInt8(float x, float inverse) {
  const float whole = std::nearbyint(x * inverse);
  return std::isfinite(whole) ? static_cast<int8_t>(whole) : int8_t{0};
}

void Quantize(const float* x, int size, void* out) {
  const float top = LargestMagnitude(x, size);
  const float inverse = Int8Inverse(top);
  const int padded = PaddedDepth(size);
  auto* values = static_cast<int8_t*>(out);
  std::fill(values, values + padded, int8_t{0});
  int32_t* sums = BlockSums(out, padded);
  std::fill(sums, sums + padded / kInt4Block, 0);
  int32_t total = 0;
  for (int i = 0; i < size; ++i) {
    values[i] = ToInt8(x[i], inverse);
    sums[i / kInt4Block] += values[i];
    total += values[i];
  }
  *RowEnd(out, padded) = {.scale = top / 127.0f, .sum = total};
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
    if (out_activations != nullptr && norm.format != ActivationFormat::kInt8) {
      StoreActivation(norm.format, out_activations, i, value);
    }
    if (out_float != nullptr) out_float[i] = value;
  }
  if (out_activations == nullptr) return;
  if (norm.format == ActivationFormat::kInt8)
    return Quantize(out_float, norm.size, out_activations);
  for (int i = norm.size; i < PaddedDepth(norm.size); ++i) {
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
  if (shape.norm == QkNorm::kWholeProjection) RmsNormInPlace(x, size, weight, shape.epsilon);
  if (shape.norm != QkNorm::kPerHead) return;
  for (int head = 0; head < num_heads; ++head) {
    RmsNormInPlace(x + head * shape.head_dim, shape.head_dim, weight, shape.epsilon);
  }
}

// The cache's layout, element by element: `row` of a panel of `width` rows, at column `col`.
int64_t KvIndex(KvFormat format, int width, int row, int col) {
  const int pair = format == KvFormat::kF32 ? 1 : 2;
  return (int64_t{col / pair} * width + row) * pair + col % pair;
}

int64_t KeyIndex(KvFormat format, int slot, int i) {
  return KvIndex(format, kKvBlockTokens, slot, i);
}

int64_t ValueIndex(KvFormat format, int head_dim, int slot, int i) {
  const int first = i / kPanelRows * kPanelRows;
  const int width = std::min(kPanelRows, (head_dim - first + kLanes - 1) / kLanes * kLanes);
  return int64_t{first} * kKvBlockTokens + KvIndex(format, width, i - first, slot);
}

void StoreKvElement(KvFormat format, std::byte* block, int64_t index, float value, float inverse) {
  if (format == KvFormat::kInt8) {
    reinterpret_cast<int8_t*>(block)[index] = ToInt8(value, inverse);
  } else {
    StoreActivation(QueryFormat(format), block, index, value);
  }
}

// Without the scale of kInt8.
float LoadKv(KvFormat format, const std::byte* block, int64_t index) {
  if (format == KvFormat::kInt8) return reinterpret_cast<const int8_t*>(block)[index];
  return LoadActivation(QueryFormat(format), block, index);
}

void StoreKvRow(const KvRows& rows, const float* key, const float* value, int slot) {
  const float key_top = LargestMagnitude(key, rows.key_dim);
  for (int i = 0; i < rows.key_dim; ++i) {
    StoreKvElement(rows.format, rows.block, KeyIndex(rows.format, slot, i), key[i],
                   Int8Inverse(key_top));
  }
  const bool int8 = rows.format == KvFormat::kInt8;
  if (int8) KeyScales(rows.block, rows.key_dim)[slot] = key_top / 127.0f;
  if (rows.value_dim == 0) return;
  std::byte* values = rows.block + KeyBlockBytes(rows.format, rows.key_dim);
  const float value_top = LargestMagnitude(value, rows.value_dim);
  for (int i = 0; i < rows.value_dim; ++i) {
    StoreKvElement(rows.format, values, ValueIndex(rows.format, rows.value_dim, slot, i), value[i],
                   Int8Inverse(value_top));
  }
  if (int8) ValueScales(values, rows.value_dim)[slot] = value_top / 127.0f;
}

void StoreKv(const KvRows& rows) {
  if (rows.first_slot == 0) std::memset(rows.block, 0, static_cast<size_t>(KvBlockBytes(rows)));
  for (int row = 0; row < rows.num_rows; ++row) {
    const float* shared = rows.shared + row * rows.shared_stride;
    const float* own = rows.keys + row * rows.key_stride;
    float key[kMaxHeadDim];
    for (int i = 0; i < rows.key_dim; ++i) {
      key[i] = i < rows.shared_dim ? shared[i] : own[i - rows.shared_dim];
    }
    StoreKvRow(rows, key, rows.values + row * rows.value_stride, rows.first_slot + row);
  }
}

void LoadKeys(const KeyRows& rows) {
  for (int slot = 0; slot < rows.num_slots; ++slot) {
    const float scale =
        rows.format == KvFormat::kInt8 ? KeyScales(rows.block, rows.key_dim)[slot] : 1.0f;
    for (int i = 0; i < rows.key_dim; ++i) {
      rows.out[slot * rows.out_stride + i] =
          LoadKv(rows.format, rows.block, KeyIndex(rows.format, slot, i)) * scale;
    }
  }
}

void Convert(ActivationFormat format, const float* x, int size, int padded, void* out) {
  for (int i = 0; i < padded; ++i) StoreActivation(format, out, i, i < size ? x[i] : 0);
}

void PrepareQkv(const QkvShape& shape, const QkvToken& token) {
  const int query_dim = shape.num_heads * shape.head_dim;
  const int kv_dim = shape.num_kv_heads * shape.head_dim;
  float* queries = token.qkv;
  float* keys = queries + query_dim;
  const int qkv_dim = query_dim + kv_dim + shape.num_kv_heads * shape.value_dim;
  NormalizeHeads(shape, queries, shape.num_heads, shape.query_norm);
  NormalizeHeads(shape, keys, shape.num_kv_heads, shape.key_norm);
  if (shape.clip > 0) {
    for (int i = 0; i < qkv_dim; ++i) {
      token.qkv[i] = std::clamp(token.qkv[i], -shape.clip, shape.clip);
    }
  }
  const int64_t padded_dim = PaddedHead(shape.head_dim);
  for (int head = 0; head < shape.num_heads; ++head) {
    float* query = queries + head * shape.head_dim;
    Rotate(query, shape, token);
    for (int i = 0; i < padded_dim; ++i) {
      StoreActivation(QueryFormat(shape.format), token.queries, head * padded_dim + i,
                      i < shape.head_dim ? query[i] : 0);
    }
  }
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    Rotate(keys + head * shape.head_dim, shape, token);
  }
}

// Attention of one query row, with the keys' and values' positions in order. As in the fast
// kernels the probabilities are activations: rounded to bf16 beside a bf16 cache.
class AttentionRow {
 public:
  AttentionRow(const Attention& attention, int token, int head)
      : a_(attention), compute_(QueryFormat(attention.format)) {
    query_ = a_.queries + token * a_.query_token_stride + head * a_.query_head_stride;
    const int position = a_.first_position + token;
    first_key_ = a_.window > 0 ? std::max(0, position - a_.window + 1) : 0;
    end_key_ = a_.num_keys > 0 ? a_.num_keys : position + 1;
    position_ = position;
    if (a_.bias.table != nullptr) {
      bias_ = a_.bias.table + head * a_.bias.head_stride + kLanes + a_.bias.reach;
    }
  }

  // Over the row's keys in [begin, end): their maximum score, sum of probabilities and `outputs`
  // (value_dim). False where it sees none.
  bool Over(int begin, int end, double* maximum, double* total, double* outputs) const {
    begin = std::max(begin, first_key_);
    end = std::min(end, end_key_);
    if (begin >= end) return false;
    *maximum = -std::numeric_limits<double>::infinity();
    for (int key = begin; key < end; ++key) *maximum = std::max(*maximum, Score(key));
    *total = 0;
    std::fill(outputs, outputs + a_.value_dim, 0.0);
    for (int key = begin; key < end; ++key) {
      const double exact = std::exp(Score(key) - *maximum);
      *total += exact;
      double weight = exact;
      if (a_.format == KvFormat::kInt8) weight *= ValueScale(key);
      float probability;
      StoreActivation(compute_, &probability, 0, static_cast<float>(weight));
      probability = LoadActivation(compute_, &probability, 0);
      for (int i = 0; i < a_.value_dim; ++i) outputs[i] += double{probability} * Value(key, i);
    }
    return true;
  }

 private:
  std::byte* Block(int key) const {
    return a_.kv_blocks[a_.blocks[key / kKvBlockTokens]] + a_.kv_offset;
  }
  std::byte* Values(int key) const { return Block(key) + KeyBlockBytes(a_.format, a_.key_dim); }
  float Value(int key, int i) const {
    const int slot = key % kKvBlockTokens;
    if (a_.value_in_key >= 0) {
      return LoadKv(a_.format, Block(key), KeyIndex(a_.format, slot, a_.value_in_key + i));
    }
    return LoadKv(a_.format, Values(key), ValueIndex(a_.format, a_.value_dim, slot, i));
  }
  float ValueScale(int key) const {
    const int slot = key % kKvBlockTokens;
    if (a_.value_in_key >= 0) return KeyScales(Block(key), a_.key_dim)[slot];
    return ValueScales(Values(key), a_.value_dim)[slot];
  }
  double Score(int key) const {
    double sum = 0;
    for (int i = 0; i < a_.key_dim; ++i) {
      sum += double{LoadActivation(compute_, query_, i)} *
             LoadKv(a_.format, Block(key), KeyIndex(a_.format, key % kKvBlockTokens, i));
    }
    if (a_.format == KvFormat::kInt8) {
      sum *= KeyScales(Block(key), a_.key_dim)[key % kKvBlockTokens];
    }
    if (bias_ != nullptr) {
      sum += bias_[std::clamp(key - position_, -a_.bias.reach, a_.bias.reach)];
    }
    return sum * a_.scale;
  }

  const Attention& a_;
  ActivationFormat compute_;
  const std::byte* query_;
  int first_key_;
  int end_key_;
  int position_;
  const float* bias_ = nullptr;
};

// `total` is relative to the maximum score.
void StoreAttention(const Attention& a, int token, int head, const double* outputs, double maximum,
                    double total) {
  if (a.sinks != nullptr) total += std::exp(a.sinks[head] - maximum);
  std::byte* out = a.out + token * a.out_token_stride + head * a.out_head_stride;
  for (int i = 0; i < a.value_dim; ++i) {
    StoreActivation(a.out_format, out, i, static_cast<float>(outputs[i] / total));
  }
}

void Attend(const Attention& a) {
  auto* outputs = reinterpret_cast<double*>(a.scratch);
  for (int token = 0; token < a.num_tokens; ++token) {
    for (int head = 0; head < a.num_heads; ++head) {
      double maximum = 0;
      double total = 0;
      AttentionRow(a, token, head).Over(0, EndKey(a), &maximum, &total, outputs);
      StoreAttention(a, token, head, outputs, maximum, total);
    }
  }
}

void AttendSpan(const Attention& a, int span, float* partial) {
  auto* outputs = reinterpret_cast<double*>(a.scratch);
  for (int token = 0; token < a.num_tokens; ++token) {
    for (int head = 0; head < a.num_heads; ++head, partial += SpanRowFloats(a.value_dim)) {
      double maximum = 0;
      double total = 0;
      const bool sees =
          AttentionRow(a, token, head)
              .Over(span * kSpanTokens, (span + 1) * kSpanTokens, &maximum, &total, outputs);
      partial[0] = sees ? static_cast<float>(maximum) : -std::numeric_limits<float>::infinity();
      partial[1] = static_cast<float>(total);
      for (int i = 0; i < a.value_dim; ++i) {
        partial[kLanes + i] = sees ? static_cast<float>(outputs[i]) : 0.0f;
      }
    }
  }
}

void MergeSpans(const Attention& a, const float* partials) {
  const int num_spans = EndSpan(a) - FirstSpan(a);
  const int num_rows = a.num_tokens * a.num_heads;
  const int row_floats = SpanRowFloats(a.value_dim);
  auto* outputs = reinterpret_cast<double*>(a.scratch);
  for (int row = 0; row < num_rows; ++row) {
    const auto partial = [&](int span) {
      return partials + (int64_t{span} * num_rows + row) * row_floats;
    };
    double maximum = -std::numeric_limits<double>::infinity();
    for (int span = 0; span < num_spans; ++span) {
      maximum = std::max(maximum, double{partial(span)[0]});
    }
    double total = 0;
    std::fill(outputs, outputs + a.value_dim, 0.0);
    for (int span = 0; span < num_spans; ++span) {
      const double keep = std::exp(partial(span)[0] - maximum);
      total += keep * partial(span)[1];
      for (int i = 0; i < a.value_dim; ++i) outputs[i] += keep * partial(span)[kLanes + i];
    }
    StoreAttention(a, row / a.num_heads, row % a.num_heads, outputs, maximum, total);
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
    combine.out[i] += total * combine.scale;
  }
}

}  // namespace

const KernelSet& Kernels() {
  static constexpr KernelSet kKernels{.name = "reference",
                                      .gemm = Gemm,
                                      .acting = ActingWay,
                                      .quantize = Quantize,
                                      .normalize = Normalize,
                                      .convert = Convert,
                                      .prepare_qkv = PrepareQkv,
                                      .store_kv = StoreKv,
                                      .load_keys = LoadKeys,
                                      .attend = Attend,
                                      .attend_span = AttendSpan,
                                      .merge_spans = MergeSpans,
                                      .combine = CombineRows};
  return kKernels;
}

}  // namespace convene::kernels::reference
