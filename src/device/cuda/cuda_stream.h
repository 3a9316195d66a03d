// The operators of a GPU: each enqueues its kernels (kernels/cuda/) on one stream of the device, in
// the order in which the host asks for them. Of models that are decoders without latent attention,
// in bf16, on one rank: CudaDevice refuses others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/cuda/cuda_event.h"
#include "device/cuda/cuda_frame.h"
#include "device/cuda/cuda_graphs.h"
#include "device/cuda/cuda_kv_cache.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_weights.h"
#include "device/stream.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/rows.h"

namespace convene::device {

class CudaStream final : public Stream {
 public:
  // Errors: as Ledger::Allocate, what a lease says, and of CUDA.
  static Result<std::unique_ptr<CudaStream>> Create(weights::WeightStore& store, CudaKvCache& cache,
                                                    const StreamOptions& options,
                                                    int num_multiprocessors,
                                                    memory::Ledger& ledger);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  // What a stream takes besides frames.
  static uint64_t WorkingBytes(const model::ModelSpec& spec, const StepShape& shape);

  void Record(Event& event) override;
  void WatchExchanges(std::function<bool()>) override {}  // it shares no cores with them
  StepStatistics& statistics() override { return statistics_; }
  Status status() const override { return failed_; }

  void Begin(Frame& frame) override;
  Status Embed(bool encoder, Frame& frame) override;
  void Normalize(const Layer& layer, bool cross, Frame& frame) override;
  void NormalizeDense(const Layer& layer, Frame& frame) override;
  void NormalizeFinal(bool encoder, Frame& frame) override;
  void KeepWanted(Frame& frame) override;
  Status Project(const Layer& layer, Frame& frame) override;
  Status Attend(const Layer& layer, const AttentionTask& task, Frame& frame) override;
  Status BeginAttention(const Layer& layer, Frame& frame) override;
  Status AttendSequences(const Layer& layer, SequenceRange sequences, bool only_wanted,
                         Frame& frame) override;
  Status EndAttention(const Layer& layer, bool only_wanted, Frame& frame) override;
  int64_t AttentionRowBytes(AttentionRows kind, const Layer& layer) const override;
  void PackAttention(AttentionRows kind, const Layer& layer, const Frame& frame,
                     std::byte* to) override;
  void UnpackAttention(AttentionRows kind, const Layer& layer, const std::byte* from,
                       Frame& frame) override;
  void AddPartials(Frame& frame) override;
  Status StoreCross(const Layer& layer, Frame& frame) override;

  Status Dense(const Layer& layer, Frame& frame) override;
  Status Route(const Layer& layer, Frame& frame) override;
  bool KeepsRouting() const override { return true; }
  Status RouteHere(const Layer& layer, Frame& frame) override;
  void FetchRouting(Frame& frame) override;
  Status Predict(const Layer& next, Frame& frame) override;
  void PackDispatch(Frame&) override {}  // one rank has all experts
  Status Shared(const Layer& layer, Frame& frame) override;
  Status Experts(const Layer& layer, Frame& frame) override;
  void Reduce(std::span<const ExpertRows::Returning> sums, Frame& frame) override;
  void Finish(const Layer& layer, Frame& frame) override;

  Status Head(std::span<const HeadRow> rows, bool largest_suffices) override;
  FetchedLogits FetchLogits() override;
  bool FetchAllFinite(const Frame& frame) override;

 private:
  CudaStream(weights::WeightStore& store, CudaKvCache& cache, const StreamOptions& options,
             int num_multiprocessors, memory::Ledger& ledger);
  Status MakeMemory(const StreamOptions& options, memory::Ledger& ledger);
  Status MakeAngles();
  // A step that is seen at its end alone and has one row of each sequence: from Begin to Head it is
  // captured, or run again.
  Status BeginAsOne(Frame& frame);

  const model::ModelSpec& spec() const { return store_.spec(); }
  const CudaLayer& WeightsOf(const Layer& layer) const {
    return weights_.layers[static_cast<size_t>(layer.index)];
  }
  // What every operator ends with: it is on the stream now. Error: of this one's launches, or of
  // something before that was not told yet.
  Status Enqueued(const char* name);
  void Fail(const Status& status);

  // Of the frame's own rows, to bf16.
  kernels::cuda::NormRows NormOf(const float* weight, const Frame& frame) const;
  void NormalizeRows(const float* weight, Frame& frame);
  // The product of rows of activations with one matrix to float rows, stored or added to them.
  void Multiply(const kernels::cuda::WeightMatrices& weights, const float* bias,
                const CudaRows<kernels::cuda::Bf16>& x, int num_rows, kernels::Epilogue epilogue,
                float scale, const CudaRows<float>& out, int columns);
  // `num_read`: blocks whose weights are read, for the statistics.
  void RunFfn(const CudaFfn& ffn, const model::ActivationSpec& activation,
              const CudaRows<kernels::cuda::Bf16>& x, int num_rows, const int32_t* first_row,
              kernels::Epilogue epilogue, float scale, const CudaRows<float>& out,
              double num_read = 1);
  Status MoveWanted(Frame& frame);
  // Queries, and keys and values to the cache or, where a later operator stores these, left in the
  // frame's rows.
  Status ProjectRows(const Layer& layer, bool stores, Frame& frame);
  void CopyRows(std::byte* to, int64_t to_stride, const void* from, int64_t from_stride,
                int64_t bytes, int num_rows);
  Status RunScores(const Layer& layer, SequenceRange sequences, bool only_wanted, Frame& frame);
  Status OutputOf(const Layer& layer, bool only_wanted, Frame& frame);
  void PrepareQkv(const Layer& layer, bool stores, Frame& frame);
  Status ChooseExperts(const Layer& layer, Frame& frame);
  static std::vector<int> WantedExperts(const Layer& layer, const Frame& frame);
  Status BringSlots(const Layer& layer, Frame& frame);
  Status BringPairs(const Layer& layer, Frame& frame);
  void CountAttention(const Layer& layer, const Frame& frame);
  int RowsOf(const Frame& frame, bool only_wanted) const;
  Status FetchLargest(int num_rows);

  weights::WeightStore& store_;
  CudaKvCache& cache_;
  int num_multiprocessors_;
  int context_;
  CudaWeights weights_;
  CudaWorkspace workspace_;
  memory::Reservation memory_;
  memory::Reservation angles_memory_;
  const float* angles_ = nullptr;  // by position: cosine, then sine
  CudaUploads head_uploads_;
  kernels::cuda::StreamHandle stream_ = nullptr;
  std::shared_ptr<CudaProgress> progress_;
  float* host_logits_ = nullptr;             // pinned
  unsigned long long* host_keys_ = nullptr;  // pinned; of FindLargest
  bool largest_is_fetched_ = false;          // of the latest Head, which had
  int num_fetched_ = 0;                      // so many rows
  std::vector<int32_t> largest_;
  Status failed_;
  CudaGraphs graphs_;
  StepStatistics statistics_;
};

}  // namespace convene::device
