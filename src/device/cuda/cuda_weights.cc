#include "device/cuda/cuda_weights.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/check.h"
#include "device/cuda/cuda_error.h"
#include "kernels/cuda/rows.h"
#include "kernels/pack.h"

namespace convene::device {
namespace {

using kernels::cuda::Bf16;
using kernels::cuda::WeightMatrices;
using weights::DeviceLoans;
using weights::LayerPart;

constexpr int64_t kAlignment = 256;
// Packed panels are copied to the device so many bytes at a time.
constexpr int64_t kStagedBytes = int64_t{64} << 20;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int PaddedRows(int rows) {
  return (rows + kernels::cuda::kWeightRows - 1) / kernels::cuda::kWeightRows *
         kernels::cuda::kWeightRows;
}

int UpRows(const model::ActivationSpec& activation, int intermediate) {
  return activation.gated() ? kernels::cuda::GatedRows(intermediate) : PaddedRows(intermediate);
}

WeightMatrices MatricesOf(int rows, int cols, int count) {
  WeightMatrices matrices{.rows = PaddedRows(rows), .cols = cols, .count = count};
  matrices.row_stride = kernels::PaddedDepth(cols);
  matrices.matrix_stride = matrices.rows * matrices.row_stride;
  return matrices;
}

int64_t SizeOf(const WeightMatrices& matrices) {
  return matrices.count * matrices.matrix_stride * int64_t{sizeof(Bf16)};
}

// Hands out parts of the device's memory; without memory it only counts.
class Placer {
 public:
  explicit Placer(std::byte* base) : base_(base) {}

  std::byte* Take(int64_t bytes) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += Aligned(bytes);
    return at;
  }
  const float* Floats(int64_t count) {
    return count == 0 ? nullptr : reinterpret_cast<const float*>(Take(count * 4));
  }
  WeightMatrices Matrices(int rows, int cols, int count = 1) {
    WeightMatrices matrices = MatricesOf(rows, cols, count);
    matrices.data = reinterpret_cast<const Bf16*>(Take(SizeOf(matrices)));
    return matrices;
  }
  CudaFfn Ffn(const model::ActivationSpec& activation, int hidden, int intermediate, int count) {
    CudaFfn ffn;
    ffn.intermediate = intermediate;
    ffn.up = Matrices(UpRows(activation, intermediate), hidden, count);
    ffn.down = Matrices(hidden, intermediate, count);
    return ffn;
  }
  void Biases(CudaFfn& ffn) {
    ffn.up_bias = Floats(int64_t{ffn.up.count} * ffn.up.rows);
    ffn.down_bias = Floats(int64_t{ffn.down.count} * ffn.down.rows);
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

// Feed-forward matrices that layers take in turn; unset where each has its own.
struct TurnTaking {
  std::optional<CudaFfn> experts = {};
  std::optional<CudaFfn> dense = {};
};

void PlaceMoe(const model::ModelSpec& spec, const model::MoeSpec& moe, const TurnTaking& turns,
              Placer& place, CudaMoe& at) {
  at.num_outputs = moe.num_experts + (moe.shared_expert_gate ? 1 : 0);
  at.router = place.Floats(int64_t{at.num_outputs} * spec.hidden_size);
  if (moe.router_bias) at.router_bias = place.Floats(at.num_outputs);
  if (moe.correction_bias) at.correction = place.Floats(moe.num_experts);
  at.experts = turns.experts ? *turns.experts
                             : place.Ffn(moe.activation, spec.hidden_size, moe.intermediate_size,
                                         moe.num_experts);
  if (moe.expert_bias) place.Biases(at.experts);
  if (moe.shared_intermediate_size > 0) {
    at.shared = place.Ffn(moe.activation, spec.hidden_size, moe.shared_intermediate_size, 1);
  }
}

// The length of what a norm of queries or keys has.
int NormSize(model::QkNorm kind, int heads, int head_dim) {
  if (kind == model::QkNorm::kNone) return 0;
  return kind == model::QkNorm::kWholeProjection ? heads * head_dim : head_dim;
}

void PlaceLayer(const model::ModelSpec& spec, const model::LayerSpec& layer,
                const TurnTaking& turns, Placer& place, CudaLayer& at) {
  const model::AttentionSpec& attention = layer.attention;
  const int hidden = spec.hidden_size;
  at.attention_norm = place.Floats(hidden);
  at.ffn_norm = place.Floats(hidden);
  const int qkv_rows = attention.query_dim() + attention.kv_dim() + attention.value_width();
  at.qkv = place.Matrices(qkv_rows, hidden);
  if (attention.qkv_bias) at.qkv_bias = place.Floats(at.qkv.rows);
  at.query_norm =
      place.Floats(NormSize(attention.qk_norm, attention.num_heads, attention.head_dim));
  at.key_norm =
      place.Floats(NormSize(attention.qk_norm, attention.num_kv_heads, attention.head_dim));
  if (attention.sinks) at.sinks = place.Floats(attention.num_heads);
  at.output = place.Matrices(hidden, attention.output_dim());
  if (attention.output_bias) at.output_bias = place.Floats(at.output.rows);
  if (layer.moe) {
    PlaceMoe(spec, *layer.moe, turns, place, at.moe.emplace());
  } else if (turns.dense) {
    at.dense = turns.dense;
  } else {
    at.dense = place.Ffn(layer.dense_activation, hidden, layer.dense_intermediate_size, 1);
  }
}

// Of the first layer of each sort, which the others are like (CanTakeTurns).
TurnTaking PlaceTurns(const model::ModelSpec& spec, DeviceLoans loans, Placer& place) {
  TurnTaking turns;
  for (const model::LayerSpec& layer : spec.layers) {
    if (layer.moe && !turns.experts && loans != DeviceLoans::kNone) {
      const model::MoeSpec& moe = *layer.moe;
      turns.experts =
          place.Ffn(moe.activation, spec.hidden_size, moe.intermediate_size, moe.num_experts);
    }
    if (!layer.moe && !turns.dense && loans == DeviceLoans::kFeedForward) {
      turns.dense =
          place.Ffn(layer.dense_activation, spec.hidden_size, layer.dense_intermediate_size, 1);
    }
  }
  return turns;
}

int64_t Place(const model::ModelSpec& spec, DeviceLoans loans, std::byte* base, CudaWeights& at) {
  Placer place(base);
  const TurnTaking turns = PlaceTurns(spec, loans, place);
  at.layers.assign(spec.layers.size(), {});
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    PlaceLayer(spec, spec.layers[i], turns, place, at.layers[i]);
  }
  at.final_norm = place.Floats(spec.hidden_size);
  at.embedding = place.Matrices(spec.vocab_size, spec.hidden_size);
  at.head = spec.tied_embeddings ? at.embedding : place.Matrices(spec.vocab_size, spec.hidden_size);
  return place.used();
}

// Copies to the device what a lease gives, and there unpacks it.
class Uploader {
 public:
  explicit Uploader(std::byte* staging) : staging_(staging) {}

  void Floats(std::span<const float> from, const float* to) {
    if (from.empty() || to == nullptr) return;
    Copy(const_cast<float*>(to), from.data(), std::ssize(from) * 4);
  }

  void Matrix(const kernels::PackedMatrix& from, bool is_gated, const WeightMatrices& to,
              int index = 0) {
    CHECK(from.format == kernels::WeightFormat::kBf16, "a matrix of another format");
    auto* rows = const_cast<Bf16*>(to.data) + index * to.matrix_stride;
    const auto panel_bytes = static_cast<int64_t>(from.panel(0).size_bytes());
    const auto at_once =
        static_cast<int>(std::max<int64_t>(1, kStagedBytes / std::max<int64_t>(1, panel_bytes)));
    CHECK(panel_bytes <= kStagedBytes, "a panel of {} bytes", panel_bytes);
    for (int first = 0; first < from.num_panels(); first += at_once) {
      const int end = std::min(from.num_panels(), first + at_once);
      const int first_row = first * kernels::kPanelRows;
      const int num_rows = std::min(from.rows - first_row, (end - first) * kernels::kPanelRows);
      kernels::PackedMatrix part = from;
      part.rows = num_rows;
      Copy(staging_, from.panel(first).data, static_cast<int64_t>(part.size_bytes()));
      kernels::cuda::Unpack({.packed = staging_,
                             .rows = num_rows,
                             .cols = from.cols,
                             .is_gated = is_gated,
                             .to = rows + first_row * to.row_stride,
                             .row_stride = to.row_stride},
                            nullptr);
      Note(cudaGetLastError());
    }
  }

  // Biases of a gated matrix lie in the order of its packed rows.
  void UpBias(std::span<const float> from, bool is_gated, int intermediate, int rows,
              const float* to) {
    if (from.empty() || to == nullptr) return;
    ordered_.assign(static_cast<size_t>(rows), 0);
    for (int packed = 0; packed < std::ssize(from); ++packed) {
      if (!is_gated) {
        ordered_[packed] = from[packed];
        continue;
      }
      const kernels::GateUpRow row = kernels::GateUpRowAt(intermediate, packed);
      if (row.row >= intermediate) continue;
      ordered_[row.row / 8 * 16 + row.row % 8 + (row.is_up ? 8 : 0)] = from[packed];
    }
    Floats(ordered_, to);
  }

  // (rows, cols) float32, of which the CPU's form is panels, too.
  void FloatMatrix(const kernels::PackedMatrix& from, const float* to) {
    rows_.resize(static_cast<size_t>(from.rows) * static_cast<size_t>(from.cols));
    for (int row = 0; row < from.rows; ++row) {
      kernels::UnpackRow(from, row, rows_.data() + int64_t{row} * from.cols);
    }
    Floats(rows_, to);
  }

  cudaError_t result() const { return result_; }

 private:
  void Copy(void* to, const void* from, int64_t bytes) {
    Note(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, nullptr));
  }
  void Note(cudaError_t result) {
    if (result_ == cudaSuccess) result_ = result;
  }

  std::byte* staging_;
  cudaError_t result_ = cudaSuccess;
  std::vector<float> ordered_;
  std::vector<float> rows_;
};

// Of a feed-forward block whose matrices are brought layer by layer, what stays.
void UploadBiases(const weights::FfnWeights& from, const model::ActivationSpec& activation,
                  const CudaFfn& to, int index, Uploader& uploader) {
  if (to.up_bias != nullptr) {
    uploader.UpBias(from.up_bias, activation.gated(), to.intermediate, to.up.rows,
                    to.up_bias + int64_t{index} * to.up.rows);
  }
  if (to.down_bias != nullptr) {
    uploader.Floats(from.down_bias, to.down_bias + int64_t{index} * to.down.rows);
  }
}

void UploadFfn(const weights::FfnWeights& from, const model::ActivationSpec& activation,
               const CudaFfn& to, int index, Uploader& uploader) {
  uploader.Matrix(from.up, activation.gated(), to.up, index);
  uploader.Matrix(from.down, /*is_gated=*/false, to.down, index);
  UploadBiases(from, activation, to, index, uploader);
}

Status UploadMoe(weights::WeightStore& store, weights::LayerId id, const model::MoeSpec& moe,
                 const weights::MoeWeights& from, const CudaMoe& to, Uploader& uploader) {
  CHECK(from.router.rows == to.num_outputs, "{} outputs of {}", from.router.rows, to.num_outputs);
  uploader.FloatMatrix(from.router, to.router);
  uploader.Floats(from.router_bias, to.router_bias);
  uploader.Floats(from.correction_bias, to.correction);
  if (to.shared) UploadFfn(*from.shared, moe.activation, *to.shared, 0, uploader);
  // Biases are in the host's memory, whatever is lent.
  const bool are_lent = store.lends_on_device() != DeviceLoans::kNone;
  for (int expert = 0; expert < moe.num_experts; ++expert) {
    const auto leased = store.LeaseExperts(
        id, are_lent ? std::span<const int>() : std::span<const int>(&expert, 1));
    if (!leased) return leased.error();
    const weights::FfnWeights& ffn = (**leased)[expert];
    if (are_lent) {
      UploadBiases(ffn, moe.activation, to.experts, expert, uploader);
    } else {
      UploadFfn(ffn, moe.activation, to.experts, expert, uploader);
    }
  }
  return {};
}

Status UploadLayer(weights::WeightStore& store, weights::LayerId id, const CudaLayer& to,
                   Uploader& uploader) {
  const model::LayerSpec& spec = store.spec().layers[static_cast<size_t>(id.layer)];
  uploader.Floats(store.AttentionNorm(id, /*cross=*/false), to.attention_norm);
  uploader.Floats(store.FfnNorm(id), to.ffn_norm);
  {
    const auto projection = store.LeaseLayer(id, LayerPart::kProjection);
    if (!projection) return projection.error();
    uploader.Matrix((*projection)->qkv, /*is_gated=*/false, to.qkv);
  }
  {
    const auto leased = store.LeaseLayer(id, LayerPart::kAttention);
    if (!leased) return leased.error();
    const weights::LayerWeights& from = **leased;
    uploader.Floats(from.qkv_bias, to.qkv_bias);
    uploader.Floats(from.query_norm, to.query_norm);
    uploader.Floats(from.key_norm, to.key_norm);
    uploader.Floats(from.sinks, to.sinks);
    uploader.Matrix(from.output, /*is_gated=*/false, to.output);
    uploader.Floats(from.output_bias, to.output_bias);
  }
  const auto leased = store.LeaseLayer(id, spec.moe ? LayerPart::kRouter : LayerPart::kDense);
  if (!leased) return leased.error();
  if (!spec.moe) {
    if (store.lends_on_device() != DeviceLoans::kFeedForward) {
      UploadFfn(*(*leased)->dense, spec.dense_activation, *to.dense, 0, uploader);
    }
    return {};
  }
  return UploadMoe(store, id, *spec.moe, *(*leased)->moe, *to.moe, uploader);
}

}  // namespace

uint64_t CudaWeights::SizeBytes(const model::ModelSpec& spec, DeviceLoans loans) {
  CudaWeights unplaced;
  return static_cast<uint64_t>(Place(spec, loans, nullptr, unplaced));
}

Status CudaWeights::CanTakeTurns(const model::ModelSpec& spec, DeviceLoans loans) {
  const model::LayerSpec* with_experts = nullptr;
  const model::LayerSpec* dense = nullptr;
  for (const model::LayerSpec& layer : spec.layers) {
    const model::LayerSpec*& first = layer.moe ? with_experts : dense;
    if (first == nullptr) first = &layer;
    const bool is_alike = layer.moe
                              ? layer.moe->num_experts == first->moe->num_experts &&
                                    layer.moe->intermediate_size == first->moe->intermediate_size
                              : layer.dense_intermediate_size == first->dense_intermediate_size;
    if (is_alike || (!layer.moe && loans != DeviceLoans::kFeedForward)) continue;
    return Error{
        "layers whose experts differ in number or size cannot take turns in a GPU's memory: give "
        "it room for all of them"};
  }
  return {};
}

Result<CudaWeights> CudaWeights::Upload(weights::WeightStore& store, memory::Ledger& ledger) {
  const model::ModelSpec& spec = store.spec();
  const DeviceLoans loans = store.lends_on_device();
  if (loans != DeviceLoans::kNone) {
    if (Status can = CanTakeTurns(spec, loans); !can) return can.error();
  }
  auto memory = ledger.Allocate(memory::Use::kWeights, SizeBytes(spec, loans));
  if (!memory) return memory.error();
  auto staging = ledger.Allocate(memory::Use::kStaging, static_cast<uint64_t>(kStagedBytes));
  if (!staging) return staging.error();
  CudaWeights weights;
  weights.memory_ = *std::move(memory);
  Place(spec, loans, weights.memory_.data(), weights);
  // Padding is zero.
  if (Status cleared = CudaStatus(
          cudaMemset(weights.memory_.data(), 0, static_cast<size_t>(weights.memory_.size_bytes())),
          "clearing memory for weights");
      !cleared) {
    return cleared.error();
  }
  Uploader uploader(staging->data());
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    const CudaLayer& to = weights.layers[static_cast<size_t>(layer)];
    if (Status done = UploadLayer(store, {layer, false}, to, uploader); !done) {
      return done.error();
    }
  }
  uploader.Floats(store.FinalNorm(/*encoder=*/false), weights.final_norm);
  {
    const auto embedding = store.LeaseEmbedding(/*encoder=*/false);
    if (!embedding) return embedding.error();
    uploader.Matrix(**embedding, /*is_gated=*/false, weights.embedding);
  }
  if (!spec.tied_embeddings) {
    const auto head = store.LeaseHead();
    if (!head) return head.error();
    uploader.Matrix(**head, /*is_gated=*/false, weights.head);
  }
  if (Status done = CudaStatus(uploader.result(), "copying weights"); !done) return done.error();
  if (Status done = CudaStatus(cudaDeviceSynchronize(), "copying weights"); !done) {
    return done.error();
  }
  return weights;
}

namespace {

void UnpackTo(const WeightMatrices& to, int index, const kernels::PackedMatrix& from, bool is_gated,
              kernels::cuda::StreamHandle stream) {
  CHECK(from.format == kernels::WeightFormat::kBf16, "a matrix of another format");
  kernels::cuda::Unpack({.packed = from.data,
                         .rows = from.rows,
                         .cols = from.cols,
                         .is_gated = is_gated,
                         .to = const_cast<Bf16*>(to.data) + index * to.matrix_stride,
                         .row_stride = to.row_stride},
                        stream);
}

void UnpackFfn(const CudaFfn& to, int index, const weights::FfnWeights& from, bool is_gated,
               kernels::cuda::StreamHandle stream) {
  UnpackTo(to.up, index, from.up, is_gated, stream);
  UnpackTo(to.down, index, from.down, /*is_gated=*/false, stream);
}

Status Unpacked(kernels::cuda::StreamHandle stream) {
  if (Status done = CudaStatus(cudaGetLastError(), "unpacking weights"); !done) return done;
  return CudaStatus(cudaStreamSynchronize(stream), "unpacking weights");
}

}  // namespace

Status CudaWeights::BringExperts(weights::LayerId id, std::span<const int> experts,
                                 weights::WeightStore& store, kernels::cuda::StreamHandle stream) {
  if (store.lends_on_device() == DeviceLoans::kNone) return {};
  const model::MoeSpec& moe = *store.spec().layers[static_cast<size_t>(id.layer)].moe;
  if (brought_layer_ != id.layer) {
    brought_layer_ = id.layer;
    brought_experts_.assign(static_cast<size_t>(moe.num_experts), false);
  }
  std::vector<int> missing;
  for (const int expert : experts) {
    if (!brought_experts_[static_cast<size_t>(expert)]) missing.push_back(expert);
  }
  if (missing.empty()) return {};
  const auto leased = store.LeaseExperts(id, missing);
  if (!leased) return leased.error();
  const CudaFfn& to = layers[static_cast<size_t>(id.layer)].moe->experts;
  for (const int expert : missing) {
    UnpackFfn(to, expert, (**leased)[expert], moe.activation.gated(), stream);
  }
  if (Status done = Unpacked(stream); !done) return done;
  for (const int expert : missing) brought_experts_[static_cast<size_t>(expert)] = true;
  return {};
}

Status CudaWeights::BringDense(weights::LayerId id, weights::WeightStore& store,
                               kernels::cuda::StreamHandle stream) {
  if (store.lends_on_device() != DeviceLoans::kFeedForward || brought_layer_ == id.layer) return {};
  const auto leased = store.LeaseLayer(id, LayerPart::kDense);
  if (!leased) return leased.error();
  const model::LayerSpec& spec = store.spec().layers[static_cast<size_t>(id.layer)];
  UnpackFfn(*layers[static_cast<size_t>(id.layer)].dense, 0, *(*leased)->dense,
            spec.dense_activation.gated(), stream);
  if (Status done = Unpacked(stream); !done) return done;
  brought_layer_ = id.layer;
  return {};
}

}  // namespace convene::device
