#include "device/cuda/cuda_frame.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/check.h"
#include "device/cuda/cuda_error.h"

namespace convene::device {

using kernels::cuda::QueryRows;

Result<std::unique_ptr<CudaFrame>> CudaFrame::Create(const model::ModelSpec& spec,
                                                     const FrameShape& shape,
                                                     memory::Ledger& ledger) {
  CHECK(shape.exchange_bytes == 0, "{} bytes to exchange", shape.exchange_bytes);
  auto memory = ledger.Allocate(memory::Use::kWorking, CudaActivations::SizeBytes(spec, shape));
  if (!memory) return memory.error();
  // What is computed of rows that nobody has written yet must be finite.
  if (Status cleared = CudaStatus(cudaMemset(memory->data(), 0, memory->size_bytes()),
                                  "clearing memory for activations");
      !cleared) {
    return cleared.error();
  }
  std::unique_ptr<CudaFrame> frame(new CudaFrame(ledger));
  frame->memory_ = *std::move(memory);
  frame->activations = CudaActivations::At(spec, shape, frame->memory_.data());
  int top_k = 1;
  for (const model::LayerSpec& layer : spec.layers) {
    if (layer.moe) top_k = std::max(top_k, layer.moe->top_k);
  }
  const size_t pairs = static_cast<size_t>(shape.tokens) * static_cast<size_t>(top_k);
  if (Status pinned = CudaStatus(cudaMallocHost(&frame->pinned_, std::max<size_t>(1, 8 * pairs)),
                                 "pinning host memory");
      !pinned) {
    return pinned.error();
  }
  frame->host_experts = {static_cast<int32_t*>(frame->pinned_), pairs};
  frame->host_weights = {static_cast<float*>(frame->pinned_) + pairs, pairs};
  return frame;
}

CudaFrame::~CudaFrame() { cudaFreeHost(pinned_); }

std::span<std::byte> CudaFrame::HostRows(TravellingRows, OwnRows) const {
  CHECK(false, "rows do not travel from a GPU yet");
  return {};
}

Status CudaFrame::Begin(const Frame& frame, std::span<const float> angles_of_rows) {
  uploads.Clear();
  plans_.clear();
  const StepRows& rows = frame.rows;
  std::vector<int32_t> row_tokens;
  std::vector<int32_t> row_positions;
  std::vector<int32_t> blocks_of_rows;
  std::vector<int32_t> places_of_angles;
  for (int row = 0; row < rows.num_rows(); ++row) {
    row_tokens.push_back(rows.token(row));
    row_positions.push_back(rows.position(row));
    blocks_of_rows.push_back(rows.block(row));
    places_of_angles.push_back(angles_of_rows.empty() ? rows.position(row) : row);
  }
  std::vector<int32_t> all_blocks;
  first_block_.clear();
  for (const SequenceStep& sequence : rows.step()) {
    first_block_.push_back(static_cast<int32_t>(all_blocks.size()));
    const int end = sequence.first_position + static_cast<int>(sequence.tokens.size());
    const auto used = static_cast<size_t>((end + kKvBlockTokens - 1) / kKvBlockTokens);
    all_blocks.insert(all_blocks.end(), sequence.blocks.begin(),
                      sequence.blocks.begin() + static_cast<std::ptrdiff_t>(used));
  }
  const auto bring = [&](const auto& values, auto& at) -> Status {
    auto added = uploads.Add(std::span(values));
    if (!added) return added.error();
    at = *added;
    return {};
  };
  if (Status done = bring(std::as_const(row_tokens), tokens); !done) return done;
  if (Status done = bring(std::as_const(row_positions), positions); !done) return done;
  if (Status done = bring(std::as_const(blocks_of_rows), row_blocks); !done) return done;
  if (Status done = bring(std::as_const(places_of_angles), angle_rows); !done) return done;
  if (Status done = bring(std::as_const(all_blocks), blocks); !done) return done;
  if (Status done = bring(rows.wanted(), wanted); !done) return done;
  angles = nullptr;
  return angles_of_rows.empty() ? Status() : bring(angles_of_rows, angles);
}

std::vector<int64_t> CudaFrame::Places() const {
  std::vector<int64_t> places;
  const auto add = [&](const void* at) { places.push_back(reinterpret_cast<int64_t>(at)); };
  for (const void* at : {static_cast<const void*>(tokens), static_cast<const void*>(positions),
                         static_cast<const void*>(row_blocks), static_cast<const void*>(angle_rows),
                         static_cast<const void*>(angles), static_cast<const void*>(wanted),
                         static_cast<const void*>(blocks)}) {
    add(at);
  }
  for (const auto& plan : plans_) {
    add(plan->rows);
    add(plan->work);
    add(plan->folds);
    places.push_back(plan->num_work);
    places.push_back(plan->num_folds);
  }
  return places;
}

Result<const CudaAttentionPlan*> CudaFrame::PlanOf(const kernels::cuda::AttentionShape& shape,
                                                   Stream::SequenceRange sequences,
                                                   bool only_wanted, int num_multiprocessors,
                                                   const Frame& frame) {
  const auto is_it = [&](const auto& plan) {
    return plan->shape == shape && plan->only_wanted == only_wanted &&
           plan->sequences.begin == sequences.begin && plan->sequences.end == sequences.end;
  };
  const auto found = std::ranges::find_if(plans_, is_it);
  if (found != plans_.end()) return found->get();

  std::vector<QueryRows> query_rows;
  int out_row = 0;
  for (int i = 0; i < std::ssize(frame.rows.step()); ++i) {
    const SequenceStep& sequence = frame.rows.step()[static_cast<size_t>(i)];
    const auto num_tokens = static_cast<int>(sequence.tokens.size());
    const int begin = only_wanted ? std::min(sequence.first_logits_token, num_tokens) : 0;
    if (i >= sequences.begin && i < sequences.end) {
      query_rows.push_back({.first_row = frame.rows.first_row(i) + begin,
                            .num_rows = num_tokens - begin,
                            .first_position = sequence.first_position + begin,
                            .num_keys = 0,
                            .first_out_row = out_row,
                            .first_block = first_block_[static_cast<size_t>(i)]});
    }
    out_row += num_tokens - begin;
  }
  const kernels::cuda::AttentionPlan planned =
      kernels::cuda::PlanAttention(shape, query_rows, num_multiprocessors);
  auto plan = std::make_unique<CudaAttentionPlan>();
  plan->shape = shape;
  plan->sequences = sequences;
  plan->only_wanted = only_wanted;
  const auto rows_at = uploads.Add(std::span<const QueryRows>(query_rows));
  if (!rows_at) return rows_at.error();
  const auto work_at = uploads.Add(std::span(planned.work));
  if (!work_at) return work_at.error();
  const auto folds_at = uploads.Add(std::span(planned.folds));
  if (!folds_at) return folds_at.error();
  plan->rows = *rows_at;
  plan->work = *work_at;
  plan->num_work = static_cast<int>(planned.work.size());
  plan->folds = *folds_at;
  plan->num_folds = static_cast<int>(planned.folds.size());
  plans_.push_back(std::move(plan));
  return plans_.back().get();
}

}  // namespace convene::device
