#include "weights/load_weights.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "base/units.h"
#include "hardware/memory_status.h"
#include "kernels/pack.h"
#include "weights/weight_layout.h"

namespace convene::weights {
namespace {

using kernels::PackedMatrix;
using kernels::RowSource;
using kernels::StoredMatrix;
using model::TensorBinding;
using model::TensorRole;

// One packed matrix to fill and where its rows come from.
struct PackJob {
  const PackedMatrix* target = nullptr;
  std::function<RowSource(int packed_row)> source_of;
  std::vector<std::span<const std::byte>> sources;  // the stored bytes it reads
  // Those of `sources` that are E8M0 scales, and whose.
  std::vector<std::pair<std::span<const std::byte>, std::string>> exponents;
  // The matrices that source_of answers with, and what they are.
  std::vector<std::pair<StoredMatrix*, TensorRole>> matrices;

  uint64_t source_bytes() const {
    uint64_t total = 0;
    for (const auto& bytes : sources) total += bytes.size();
    return total;
  }
};

// Stored tensors by what they are, so that a matrix can be put together from several.
// Of one of the model's stacks.
class StoredTensors {
 public:
  StoredTensors(const checkpoint::Checkpoint& checkpoint, bool encoder) : checkpoint_(checkpoint) {
    const model::ModelSpec& spec = checkpoint.spec();
    per_layer_.resize(encoder ? spec.encoder_layers.size() : spec.layers.size());
    for (const TensorBinding& binding : spec.tensors) {
      if (binding.encoder != encoder) continue;
      if (binding.layer < 0) {
        global_.push_back(&binding);
      } else {
        per_layer_[binding.layer].push_back(&binding);
      }
    }
  }

  // Null where the model has no such tensor.
  const TensorBinding* Find(TensorRole role, int layer = -1, int expert = -1) const {
    for (const TensorBinding* binding : layer < 0 ? global_ : per_layer_[layer]) {
      if (binding->role == role && binding->expert == expert) return binding;
    }
    return nullptr;
  }

  const TensorBinding& Get(TensorRole role, int layer = -1, int expert = -1) const {
    const TensorBinding* binding = Find(role, layer, expert);
    CHECK(binding != nullptr, "no tensor of role {} in layer {}", static_cast<int>(role), layer);
    return *binding;
  }

  // As float; empty where there is no such tensor.
  std::vector<float> Vector(TensorRole role, int layer = -1, int expert = -1) const {
    const TensorBinding* binding = Find(role, layer, expert);
    if (binding == nullptr) return {};
    return ToFloats(Matrix(*binding));
  }

  checkpoint::TensorView View(const TensorBinding& binding) const {
    return checkpoint_.View(binding);
  }

  StoredMatrix Matrix(const TensorBinding& binding) const {
    return StoredMatrixOf(checkpoint_, binding);
  }

 private:
  const checkpoint::Checkpoint& checkpoint_;
  std::vector<const TensorBinding*> global_;
  std::vector<std::vector<const TensorBinding*>> per_layer_;
};

// Rows [first_row, first_row + count) of `matrix`, transposed.
StoredMatrix Transposed(const StoredMatrix& matrix, int first_row, int count) {
  StoredMatrix result = matrix;
  result.data += first_row * matrix.row_stride * SizeBits(matrix.dtype) / 8;
  result.row_stride = matrix.col_stride;
  result.col_stride = matrix.row_stride;
  result.rows = matrix.cols;
  result.cols = count;
  result.first_row += int64_t{first_row} * matrix.row_step;
  result.is_transposed = true;
  return result;
}

// Makes the jobs of a model; owns the descriptions of the stored matrices.
class PackJobs {
 public:
  explicit PackJobs(const StoredTensors& tensors) : tensors_(tensors) {}

  std::vector<PackJob>& jobs() { return jobs_; }

  // The rows of several stored matrices, one after the other.
  void Stack(const PackedMatrix& target, const std::vector<const TensorBinding*>& parts) {
    std::vector<RowsOf> all;
    for (const TensorBinding* part : parts) {
      all.push_back({part, static_cast<int>(part->rows), [](int row) { return row; }});
    }
    StackRows(target, std::move(all));
  }

  // Of each part `num_rows` rows: those that row_of says, zeros where it says less than 0.
  struct RowsOf {
    const TensorBinding* matrix;
    int num_rows;
    std::function<int(int row)> row_of;
  };
  void StackRows(const PackedMatrix& target, std::vector<RowsOf> parts) {
    PackJob job;
    job.target = &target;
    std::vector<const StoredMatrix*> matrices;
    for (const RowsOf& part : parts) matrices.push_back(Describe(*part.matrix, &job));
    job.source_of = [matrices, parts = std::move(parts)](int packed_row) -> RowSource {
      int row = packed_row;
      for (size_t i = 0; i < parts.size(); ++i) {
        if (row < parts[i].num_rows) {
          const int source = parts[i].row_of(row);
          return source < 0 ? RowSource{} : RowSource{matrices[i], source};
        }
        row -= parts[i].num_rows;
      }
      return {};
    };
    jobs_.push_back(std::move(job));
  }

  // Rows [first_row, first_row + target.cols) of a stored matrix, transposed.
  void TransposedRows(const PackedMatrix& target, const TensorBinding& binding, int first_row) {
    PackJob job;
    job.target = &target;
    StoredMatrix* matrix = Describe(binding, &job);
    *matrix = Transposed(*matrix, first_row, target.cols);
    job.source_of = [matrix](int row) -> RowSource {
      return row < matrix->rows ? RowSource{matrix, row} : RowSource{};
    };
    jobs_.push_back(std::move(job));
  }

  void GateAndUp(const PackedMatrix& target, const TensorBinding& gate, const TensorBinding& up) {
    PackJob job;
    job.target = &target;
    const StoredMatrix* gate_matrix = Describe(gate, &job);
    const StoredMatrix* up_matrix = Describe(up, &job);
    job.source_of = [gate_matrix, up_matrix](int packed_row) -> RowSource {
      const kernels::GateUpRow at = kernels::GateUpRowAt(gate_matrix->rows, packed_row);
      if (at.row >= gate_matrix->rows) return {};
      return {at.is_up ? up_matrix : gate_matrix, at.row};
    };
    jobs_.push_back(std::move(job));
  }

  // `roles.gate` may have no tensor.
  struct FfnRoles {
    TensorRole gate, up, down;
  };
  void Ffn(const FfnWeights& target, int layer, int expert, FfnRoles roles) {
    const TensorBinding* gate = tensors_.Find(roles.gate, layer, expert);
    const TensorBinding& up = tensors_.Get(roles.up, layer, expert);
    if (gate != nullptr) {
      GateAndUp(target.up, *gate, up);
    } else {
      Stack(target.up, {&up});
    }
    Stack(target.down, {&tensors_.Get(roles.down, layer, expert)});
  }

 private:
  StoredMatrix* Describe(const TensorBinding& binding, PackJob* job) {
    matrices_.push_back(tensors_.Matrix(binding));
    const checkpoint::TensorView view = tensors_.View(binding);
    // Gate and up may take turns in the same rows.
    const bool is_known = std::any_of(job->sources.begin(), job->sources.end(), [&](auto bytes) {
      return bytes.data() == view.bytes.data();
    });
    if (!is_known) job->sources.push_back(view.bytes);
    job->matrices.emplace_back(&matrices_.back(), binding.role);
    if (view.scales.is_e8m0 && !is_known) {
      const int64_t per_row = view.scales.blocks_per_row;
      job->sources.push_back(
          view.scales.data.subspan(binding.first_row * per_row, view.rows * per_row));
      job->exponents.emplace_back(job->sources.back(), binding.name);
    }
    return &matrices_.back();
  }

  const StoredTensors& tensors_;
  std::deque<StoredMatrix> matrices_;
  std::vector<PackJob> jobs_;
};

// Where row `row` of a head's rotated part, in halves, is among `rope_dim` stored rows.
int RotatedRow(const model::LatentSpec& latent, int row) {
  if (!latent.interleaved_rope) return row;
  const int half = latent.rope_dim / 2;
  return row < half ? 2 * row : 2 * (row - half) + 1;
}

void LatentJobs(const StoredTensors& tensors, const model::AttentionSpec& attention, int layer,
                LayerWeights* weights, PackJobs* jobs) {
  using enum TensorRole;
  const model::LatentSpec latent = *attention.latent;
  LatentWeights& target = *weights->latent;
  // Stored: without position first; here the rotated part is first, as the kernels want it.
  const auto query_row = [latent, head_dim = attention.head_dim](int row) {
    const int head = row / head_dim;
    const int i = row % head_dim;
    const int stored =
        i < latent.rope_dim ? latent.nope_dim + RotatedRow(latent, i) : i - latent.rope_dim;
    return head * head_dim + stored;
  };
  const auto key_row = [latent](int row) {
    return row < latent.rope_dim ? latent.kv_rank + RotatedRow(latent, row) : row - latent.rope_dim;
  };
  const auto as_stored = [](int row) { return row; };
  const TensorBinding& kv_down = tensors.Get(kKvDown, layer);
  if (latent.query_rank > 0) {
    jobs->StackRows(weights->qkv, {{&tensors.Get(kQueryDown, layer), latent.query_rank, as_stored},
                                   {&kv_down, latent.key_dim(), key_row}});
    jobs->StackRows(target.query_up,
                    {{&tensors.Get(kQueryUp, layer), attention.query_dim(), query_row}});
  } else {
    jobs->StackRows(weights->qkv, {{&tensors.Get(kQuery, layer), attention.query_dim(), query_row},
                                   {&kv_down, latent.key_dim(), key_row}});
  }
  weights->query_norm = tensors.Vector(kQueryDownNorm, layer);
  weights->key_norm = tensors.Vector(kKvDownNorm, layer);
  const std::vector<float> query_bias = tensors.Vector(kQueryDownBias, layer);
  const std::vector<float> key_bias = tensors.Vector(kKvDownBias, layer);
  if (!key_bias.empty()) {
    weights->qkv_bias = query_bias;
    weights->qkv_bias.resize(weights->qkv.rows - latent.key_dim());
    for (int row = 0; row < latent.key_dim(); ++row) {
      weights->qkv_bias.push_back(key_bias[key_row(row)]);
    }
  }

  // A head's rows of the stored matrix: those that make its key, then those that make its value.
  const TensorBinding& kv_up = tensors.Get(kKvUp, layer);
  const int stored_rows = latent.nope_dim + attention.value_dim;
  const auto part_of_heads = [&](const PackedMatrix& matrix, int first, int count) {
    const int head_rows = LatentWeights::HeadRows(count);
    jobs->StackRows(matrix, {{&kv_up, matrix.rows, [=](int row) {
                                const int i = row % head_rows;
                                return i < count ? row / head_rows * stored_rows + first + i : -1;
                              }}});
  };
  part_of_heads(target.key_up, 0, latent.nope_dim);
  part_of_heads(target.value_up, latent.nope_dim, attention.value_dim);
  for (int head = 0; head < attention.num_heads; ++head) {
    jobs->TransposedRows(target.query_in[head], kv_up, head * stored_rows);
  }
}

void QkvJobs(const StoredTensors& tensors, int layer, LayerWeights* weights, PackJobs* jobs) {
  using enum TensorRole;
  weights->query_norm = tensors.Vector(kQueryNorm, layer);
  weights->key_norm = tensors.Vector(kKeyNorm, layer);
  for (const TensorRole role : {kQueryBias, kKeyBias, kValueBias}) {
    const std::vector<float> bias = tensors.Vector(role, layer);
    weights->qkv_bias.insert(weights->qkv_bias.end(), bias.begin(), bias.end());
  }
  jobs->Stack(weights->qkv, {&tensors.Get(kQuery, layer), &tensors.Get(kKey, layer),
                             &tensors.Get(kValue, layer)});
}

// Biases in the order of the packed rows; of one matrix where there is no gate.
std::vector<float> GateAndUpBias(const std::vector<float>& gate, std::vector<float> up) {
  if (gate.empty()) return up;
  const auto intermediate = static_cast<int>(gate.size());
  std::vector<float> bias(kernels::GateUpRows(intermediate));
  for (int row = 0; row < std::ssize(bias); ++row) {
    const kernels::GateUpRow at = kernels::GateUpRowAt(intermediate, row);
    if (at.row < intermediate) bias[row] = at.is_up ? up[at.row] : gate[at.row];
  }
  return bias;
}

void CrossJobs(const StoredTensors& tensors, int layer, CrossWeights* weights, PackJobs* jobs) {
  using enum TensorRole;
  weights->norm = tensors.Vector(kCrossNorm, layer);
  jobs->Stack(weights->query, {&tensors.Get(kCrossQuery, layer)});
  jobs->Stack(weights->kv, {&tensors.Get(kCrossKey, layer), &tensors.Get(kCrossValue, layer)});
  jobs->Stack(weights->output, {&tensors.Get(kCrossOutput, layer)});
}

void LayerJobs(const StoredTensors& tensors, const model::LayerSpec& spec, int layer,
               LayerWeights* weights, PackJobs* jobs) {
  using enum TensorRole;
  weights->attention_norm = tensors.Vector(kAttentionNorm, layer);
  weights->ffn_norm = tensors.Vector(kFfnNorm, layer);
  weights->output_bias = tensors.Vector(kAttentionOutputBias, layer);
  weights->sinks = tensors.Vector(kSinks, layer);
  if (spec.attention.latent) {
    LatentJobs(tensors, spec.attention, layer, weights, jobs);
  } else {
    QkvJobs(tensors, layer, weights, jobs);
  }
  jobs->Stack(weights->output, {&tensors.Get(kAttentionOutput, layer)});
  if (weights->cross) CrossJobs(tensors, layer, &*weights->cross, jobs);
  if (weights->dense) {
    jobs->Ffn(*weights->dense, layer, -1, {kDenseGate, kDenseUp, kDenseDown});
    return;
  }
  MoeWeights& moe = *weights->moe;
  std::vector<const TensorBinding*> router = {&tensors.Get(kRouter, layer)};
  const TensorBinding* shared_gate = tensors.Find(kSharedExpertGate, layer);
  if (shared_gate != nullptr) router.push_back(shared_gate);
  jobs->Stack(moe.router, router);
  moe.router_bias = tensors.Vector(kRouterBias, layer);
  if (!moe.router_bias.empty()) moe.router_bias.resize(moe.router.rows);
  moe.correction_bias = tensors.Vector(kCorrectionBias, layer);
  for (int expert = 0; expert < std::ssize(moe.experts); ++expert) {
    FfnWeights& ffn = moe.experts[expert];
    jobs->Ffn(ffn, layer, expert, {kExpertGate, kExpertUp, kExpertDown});
    ffn.up_bias = GateAndUpBias(tensors.Vector(kExpertGateBias, layer, expert),
                                tensors.Vector(kExpertUpBias, layer, expert));
    ffn.down_bias = tensors.Vector(kExpertDownBias, layer, expert);
  }
  if (moe.shared) jobs->Ffn(*moe.shared, layer, -1, {kSharedGate, kSharedUp, kSharedDown});
}

void EncoderJobs(const StoredTensors& tensors, const model::ModelSpec& spec,
                 EncoderWeights* weights, PackJobs* jobs) {
  weights->final_norm = tensors.Vector(TensorRole::kFinalNorm);
  weights->relative_bias = tensors.Vector(TensorRole::kRelativeBias);
  if (!spec.tied_embeddings) {
    jobs->Stack(weights->embedding, {&tensors.Get(TensorRole::kEmbedding)});
  }
  for (int layer = 0; layer < std::ssize(weights->layers); ++layer) {
    LayerJobs(tensors, spec.encoder_layers[layer], layer, &weights->layers[layer], jobs);
  }
}

// Sources of so many bytes are packed together: enough work for all threads, and little enough that
// the next batch can be read from disk meanwhile and the last one dropped.
constexpr uint64_t kBatchBytes = uint64_t{128} << 20;

// Jobs in the order of the files, cut into batches.
std::vector<std::span<PackJob>> Batches(std::vector<PackJob>& jobs) {
  std::sort(jobs.begin(), jobs.end(), [](const PackJob& a, const PackJob& b) {
    return std::less<>()(a.sources.front().data(), b.sources.front().data());
  });
  std::vector<std::span<PackJob>> batches;
  size_t begin = 0;
  uint64_t size_bytes = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    size_bytes += jobs[i].source_bytes();
    if (size_bytes < kBatchBytes && i + 1 < jobs.size()) continue;
    batches.emplace_back(&jobs[begin], i + 1 - begin);
    begin = i + 1;
    size_bytes = 0;
  }
  return batches;
}

// Lets a batch read edited copies of its matrices, which it returns.
std::vector<std::vector<float>> EditBatch(std::span<const PackJob> batch, const MatrixEdit& edit,
                                          hardware::ThreadPool& pool) {
  std::vector<std::pair<StoredMatrix*, TensorRole>> matrices;
  for (const PackJob& job : batch) {
    matrices.insert(matrices.end(), job.matrices.begin(), job.matrices.end());
  }
  std::vector<std::vector<float>> copies(matrices.size());
  pool.ParallelFor(std::ssize(matrices), [&](int64_t index, int) {
    const auto& [matrix, role] = matrices[index];
    copies[index] = ToFloats(*matrix);
    edit(role, matrix->cols, copies[index]);
    *matrix = {.dtype = tensor::DType::kF32,
               .data = reinterpret_cast<const std::byte*>(copies[index].data()),
               .row_stride = matrix->cols,
               .col_stride = 1,
               .rows = matrix->rows,
               .cols = matrix->cols};
  });
  return copies;
}

Status CheckExponents(std::span<const PackJob> batch) {
  for (const PackJob& job : batch) {
    for (const auto& [scales, name] : job.exponents) {
      if (std::memchr(scales.data(), tensor::kE8m0Nan, scales.size()) == nullptr) continue;
      return Error{
          fmt::format("the scales of tensor {} hold a {}, which is not a number; the file "
                      "is damaged or not MXFP4",
                      Quote(name), tensor::kE8m0Nan)};
    }
  }
  return {};
}

void PackBatch(std::span<const PackJob> batch, hardware::ThreadPool& pool) {
  struct Group {
    const PackJob* job;
    int group;
  };
  std::vector<Group> groups;
  for (const PackJob& job : batch) {
    const int count = (job.target->rows + kernels::kLanes - 1) / kernels::kLanes;
    for (int group = 0; group < count; ++group) groups.push_back({&job, group});
  }
  pool.ParallelFor(
      std::ssize(groups),
      [&](int64_t index, int) {
        const auto& [job, group] = groups[index];
        RowSource sources[kernels::kLanes];
        for (int lane = 0; lane < kernels::kLanes; ++lane) {
          sources[lane] = job->source_of(group * kernels::kLanes + lane);
        }
        kernels::PackGroup(sources, *job->target, group, const_cast<std::byte*>(job->target->data));
      },
      4);
}

}  // namespace

uint64_t PackedSizeBytes(const model::ModelSpec& spec, const WeightFormats& formats) {
  ModelWeights unplaced;
  return LayOut(spec, formats, nullptr, &unplaced);
}

uint64_t DecodeBytes(const model::ModelSpec& spec, const WeightFormats& formats) {
  ModelWeights unplaced;
  LayOut(spec, formats, nullptr, &unplaced);
  const auto bytes_of = [](const FfnWeights& ffn) {
    return ffn.up.size_bytes() + ffn.down.size_bytes();
  };
  uint64_t total = unplaced.head.size_bytes();
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    const LayerWeights& weights = unplaced.layers[layer];
    total += weights.qkv.size_bytes() + weights.output.size_bytes();
    if (weights.cross) {
      total += weights.cross->query.size_bytes() + weights.cross->output.size_bytes();
    }
    if (weights.latent) {
      // The absorbed form, which generated tokens have.
      total += weights.latent->query_up.size_bytes() + weights.latent->value_up.size_bytes();
      for (const PackedMatrix& matrix : weights.latent->query_in) total += matrix.size_bytes();
    }
    if (weights.dense) total += bytes_of(*weights.dense);
    if (!weights.moe) continue;
    total += weights.moe->router.size_bytes();
    total += bytes_of(weights.moe->experts.front()) * spec.layers[layer].moe->top_k;
    if (weights.moe->shared) total += bytes_of(*weights.moe->shared);
  }
  return total;
}

Result<ModelWeights> LoadWeights(const checkpoint::Checkpoint& checkpoint,
                                 const WeightFormats& formats, hardware::NumaPolicy numa,
                                 hardware::ThreadPool& pool, const LoadProgress& progress,
                                 const MatrixEdit& edit) {
  ModelWeights weights;
  const uint64_t size_bytes = PackedSizeBytes(checkpoint.spec(), formats);
  Result<hardware::HugeBuffer> storage = hardware::HugeBuffer::Allocate(size_bytes, "the weights");
  if (!storage) return storage.error();
  weights.storage = std::move(*storage);
  weights.bytes = weights.storage.bytes();
  const Result<int> placed = hardware::PlaceMemory(weights.storage.bytes(), pool.cpus(), numa);
  if (!placed) return placed.error();
  LayOut(checkpoint.spec(), formats, weights.storage.data(), &weights);

  const StoredTensors tensors(checkpoint, /*encoder=*/false);
  PackJobs jobs(tensors);
  weights.final_norm = tensors.Vector(TensorRole::kFinalNorm);
  weights.relative_bias = tensors.Vector(TensorRole::kRelativeBias);
  const TensorBinding& embedding = tensors.Get(TensorRole::kEmbedding);
  const bool tied = weights.spec.tied_embeddings;
  jobs.Stack(weights.head, {tied ? &embedding : &tensors.Get(TensorRole::kHead)});
  if (!weights.embedding_is_head()) jobs.Stack(weights.embedding, {&embedding});
  for (int layer = 0; layer < weights.spec.num_layers(); ++layer) {
    LayerJobs(tensors, weights.spec.layers[layer], layer, &weights.layers[layer], &jobs);
  }
  const StoredTensors encoder_tensors(checkpoint, /*encoder=*/true);
  PackJobs encoder_jobs(encoder_tensors);
  if (weights.encoder) EncoderJobs(encoder_tensors, weights.spec, &*weights.encoder, &encoder_jobs);
  std::move(encoder_jobs.jobs().begin(), encoder_jobs.jobs().end(),
            std::back_inserter(jobs.jobs()));

  uint64_t total_bytes = 0;
  for (const PackJob& job : jobs.jobs()) total_bytes += job.source_bytes();
  uint64_t done_bytes = 0;
  const std::vector<std::span<PackJob>> batches = Batches(jobs.jobs());
  for (size_t i = 0; i < batches.size(); ++i) {
    if (i + 1 < batches.size()) {
      for (const PackJob& job : batches[i + 1]) {
        for (const auto& bytes : job.sources) checkpoint::WillNeed(bytes);
      }
    }
    if (Status checked = CheckExponents(batches[i]); !checked) return checked.error();
    std::vector<std::vector<float>> edited;
    if (edit) edited = EditBatch(batches[i], edit, pool);
    PackBatch(batches[i], pool);
    for (const PackJob& job : batches[i]) {
      for (const auto& bytes : job.sources) checkpoint::DontNeed(bytes);
      done_bytes += job.source_bytes();
    }
    if (progress) progress(done_bytes, total_bytes);
  }
  return weights;
}

}  // namespace convene::weights
