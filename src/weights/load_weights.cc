#include "weights/load_weights.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include "checkpoint/mapped_file.h"
#include "weights/compared_bytes.h"
#include "weights/finite_weights.h"
#include "weights/layer_jobs.h"
#include "weights/pack_batch.h"
#include "weights/weight_layout.h"

namespace convene::weights {
namespace {

using kernels::PackedMatrix;

// Sources of so many bytes are packed together: enough work for all threads, and little enough that
// the next batch can be read from the disk meanwhile.
constexpr uint64_t kPackedBatchBytes = uint64_t{128} << 20;

// Jobs in the order of the files, cut into batches.
std::vector<std::span<PackJob>> Batches(std::vector<PackJob>& jobs) {
  std::sort(jobs.begin(), jobs.end(), [](const PackJob& a, const PackJob& b) {
    return std::less<>()(a.sources.front().bytes.data(), b.sources.front().bytes.data());
  });
  std::vector<std::span<PackJob>> batches;
  size_t begin = 0;
  uint64_t size_bytes = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    size_bytes += jobs[i].source_bytes();
    if (size_bytes < kPackedBatchBytes && i + 1 < jobs.size()) continue;
    batches.emplace_back(&jobs[begin], i + 1 - begin);
    begin = i + 1;
    size_bytes = 0;
  }
  return batches;
}

std::vector<const PackJob*> PointersTo(std::span<const PackJob> jobs) {
  std::vector<const PackJob*> pointers;
  for (const PackJob& job : jobs) pointers.push_back(&job);
  return pointers;
}

struct EditedCopies {
  memory::Reservation reservation;
  std::vector<std::vector<float>> copies;
};

// Lets a batch read edited copies of its matrices, if there is an edit, which it returns. Error: no
// memory for them.
Result<EditedCopies> EditBatch(std::span<const PackJob> batch, const MatrixEdit& edit,
                               hardware::ThreadPool& pool, memory::Ledger& ledger) {
  if (!edit) return EditedCopies{};
  std::vector<JobMatrix> matrices;
  uint64_t size_bytes = 0;
  for (const PackJob& job : batch) {
    for (const JobMatrix& matrix : job.matrices) {
      matrices.push_back(matrix);
      size_bytes += sizeof(float) * matrix.matrix->rows * matrix.matrix->cols;
    }
    size_bytes += job.source_bytes();  // until they are copied
  }
  Result<memory::Reservation> reservation = ledger.Reserve(memory::Use::kStaging, size_bytes);
  if (!reservation) return reservation.error();
  std::vector<std::vector<float>> copies(matrices.size());
  pool.ParallelFor(std::ssize(matrices), [&](int64_t index, int) {
    const auto& [matrix, binding] = matrices[index];
    copies[index] = ToFloats(*matrix);
    checkpoint::DontNeed(StoredBytes(*matrix, {0, matrix->rows}, {0, matrix->cols}));
    edit(binding->role, matrix->cols, copies[index]);
    *matrix = {.dtype = tensor::DType::kF32,
               .data = reinterpret_cast<const std::byte*>(copies[index].data()),
               .row_stride = matrix->cols,
               .col_stride = 1,
               .rows = matrix->rows,
               .cols = matrix->cols};
  });
  return EditedCopies{*std::move(reservation), std::move(copies)};
}

}  // namespace

uint64_t PackedSizeBytes(const model::ModelSpec& spec, const WeightFormats& formats,
                         const Share& share, const ExpertRooms& rooms) {
  ModelWeights unplaced;
  return LayOut(spec, formats, nullptr, &unplaced, share, rooms);
}

uint64_t DecodeBytes(const model::ModelSpec& spec, const WeightFormats& formats,
                     const Share& share) {
  ModelWeights unplaced;
  LayOut(spec, formats, nullptr, &unplaced, share);
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
    const model::MoeSpec& moe = *spec.layers[layer].moe;
    total += bytes_of(weights.moe->experts.front()) * moe.top_k * weights.moe->experts.size() /
             moe.num_experts;
    if (weights.moe->shared) total += bytes_of(*weights.moe->shared);
  }
  return total;
}

Result<ModelWeights> LoadWeights(const checkpoint::Checkpoint& checkpoint,
                                 const WeightFormats& formats, const Share& share,
                                 hardware::NumaPolicy numa, hardware::ThreadPool& pool,
                                 memory::Ledger& ledger, const LoadProgress& progress,
                                 const MatrixEdit& edit, std::vector<NamedDigest>* compared) {
  const Result<model::ModelSpec> spec = LocalSpec(checkpoint.spec(), share, formats);
  if (!spec) return spec.error();
  const Result<model::ModelSpec> widest = WidestSpec(checkpoint.spec(), share, formats);
  if (!widest) return widest.error();
  ModelWeights weights;
  const ExpertRooms rooms = RoomsOf(checkpoint.spec(), formats, share);
  const uint64_t size_bytes = PackedSizeBytes(*spec, formats, share, rooms);
  Result<memory::Reservation> storage = ledger.Allocate(memory::Use::kWeights, size_bytes);
  if (!storage) return storage.error();
  weights.storage = std::move(*storage);
  weights.bytes = weights.storage.bytes();
  const Result<int> placed = hardware::PlaceMemory(weights.storage.bytes(), pool.cpus(), numa);
  if (!placed) return placed.error();
  LayOut(*spec, formats, weights.storage.data(), &weights, share, rooms);
  if (share.decode) {
    LayOutDecode(checkpoint.spec(), share, &weights);
    weights.has_both_divisions = share.decode->beside;
  }
  weights.spec = *widest;

  if (const Status finite = CheckVectors(checkpoint); !finite) return finite.error();
  const StoredTensors tensors(checkpoint, /*encoder=*/false);
  PackJobs jobs(tensors);
  DecoderJobs(tensors, checkpoint.spec(), share, &weights, &jobs);
  const StoredTensors encoder_tensors(checkpoint, /*encoder=*/true);
  PackJobs encoder_jobs(encoder_tensors);
  if (weights.encoder) {
    EncoderJobs(encoder_tensors, checkpoint.spec(), share, &weights, &encoder_jobs);
  }
  std::move(encoder_jobs.jobs().begin(), encoder_jobs.jobs().end(),
            std::back_inserter(jobs.jobs()));

  uint64_t total_bytes = 0;
  for (const PackJob& job : jobs.jobs()) total_bytes += job.source_bytes();
  uint64_t done_bytes = 0;
  const std::vector<std::span<PackJob>> batches = Batches(jobs.jobs());
  Result<BatchPacker> packer = BatchPacker::Create(PointersTo(jobs.jobs()), pool, ledger);
  if (!packer) return packer.error();
  std::optional<ComparedBytes> comparison;
  if (compared != nullptr) comparison.emplace(checkpoint, share, jobs.jobs());
  for (size_t i = 0; i < batches.size(); ++i) {
    if (i + 1 < batches.size()) {
      for (const PackJob& job : batches[i + 1]) {
        for (const PackSource& source : job.sources) checkpoint::WillNeed(source.bytes);
      }
    }
    const Result<EditedCopies> edited = EditBatch(batches[i], edit, pool, ledger);
    if (!edited) return edited.error();
    if (const Status packed = packer->Pack(PointersTo(batches[i])); !packed) return packed.error();
    if (comparison) comparison->Add(batches[i], pool);
    for (const PackJob& job : batches[i]) done_bytes += job.source_bytes();
    if (progress) progress(done_bytes, total_bytes);
  }
  if (comparison) *compared = comparison->Finish(pool);
  if (const Status unchanged = checkpoint.CheckUnchanged(); !unchanged) return unchanged.error();
  return weights;
}

}  // namespace convene::weights
