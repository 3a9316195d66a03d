// A micro-batch on a GPU: its activations, and what its rows are in this step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/cuda/cuda_memory.h"
#include "device/frame.h"
#include "kernels/cuda/attention.h"

namespace convene::device {

// Attention of some rows of a step, divided among the blocks of a grid: of all layers of one shape.
struct CudaAttentionPlan {
  kernels::cuda::AttentionShape shape;
  Stream::SequenceRange sequences;
  bool only_wanted = false;
  const kernels::cuda::QueryRows* rows = nullptr;  // by sequence
  const kernels::cuda::AttentionWork* work = nullptr;
  int num_work = 0;
  const kernels::cuda::AttentionWork* folds = nullptr;
  int num_folds = 0;
};

class CudaFrame final : public FrameMemory {
 public:
  // Errors: as Ledger::Allocate, and of CUDA.
  static Result<std::unique_ptr<CudaFrame>> Create(const model::ModelSpec& spec,
                                                   const FrameShape& shape, memory::Ledger& ledger);
  ~CudaFrame() override;

  // One rank exchanges nothing.
  std::span<std::byte> exchange() const override { return {}; }
  std::span<std::byte> HostRows(TravellingRows kind, OwnRows rows) const override;

  // What a step's rows are, to be brought to the device by the next Flush of `uploads`.
  // `angles_of_rows`: cosine and sine of each row, where they are not those of its position alone;
  // otherwise empty.
  Status Begin(const Frame& frame, std::span<const float> angles_of_rows);
  // For these sequences' rows, or the wanted ones of them; to be brought likewise where it is new.
  Result<const CudaAttentionPlan*> PlanOf(const kernels::cuda::AttentionShape& shape,
                                          Stream::SequenceRange sequences, bool only_wanted,
                                          int num_multiprocessors, const Frame& frame);

  // What the addresses and counts of this step's rows and plans are.
  std::vector<int64_t> Places() const;

  CudaActivations activations;
  CudaUploads uploads;
  // Of the step in work, by row, in the device's memory.
  const int32_t* tokens = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* row_blocks = nullptr;
  const int32_t* angle_rows = nullptr;
  const float* angles = nullptr;  // null: by position
  const int32_t* wanted = nullptr;
  const int32_t* blocks = nullptr;  // of all sequences, one behind the other
  // Pinned host memory, where the routing is once it was fetched.
  std::span<int32_t> host_experts;
  std::span<float> host_weights;
  bool routing_is_kept = false;    // of the layer in work
  bool rows_are_gathered = false;  // likewise, in the workspace, as its experts read them
  // The norm whose outputs `activations.normed` has, by its weight; null: they are of before, or of
  // other rows.
  const float* normed_by = nullptr;

 private:
  CudaFrame(memory::Ledger& ledger) : uploads(ledger) {}

  memory::Reservation memory_;
  void* pinned_ = nullptr;
  std::vector<int32_t> first_block_;  // of each sequence in `blocks`
  std::vector<std::unique_ptr<CudaAttentionPlan>> plans_;
};

inline CudaFrame& CudaFrameOf(const Frame& frame) { return static_cast<CudaFrame&>(*frame.memory); }

}  // namespace convene::device
