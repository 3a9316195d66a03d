// From rows to the work of the experts and back: router, grouping by expert, and the sum of what a
// row's experts gave, along the fixed tree of kernels/route.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/rows.h"
#include "kernels/cuda/stream.h"
#include "kernels/route.h"

namespace convene::kernels::cuda {

// logits (num_rows, num_outputs) = x W^T + bias in float32; an output is the same whatever the
// number of rows.
struct RouterRows {
  const float* weights = nullptr;  // (num_outputs, size)
  int64_t weight_stride = 0;
  const float* bias = nullptr;  // (num_outputs) or null
  int num_outputs = 0;
  int size = 0;
  const float* x = nullptr;  // (num_rows, size)
  int64_t x_stride = 0;
  int num_rows = 0;
  float* logits = nullptr;
  int64_t logits_stride = 0;
};
void RouterLogits(const RouterRows& rows, StreamHandle stream);

// As kernels::SelectExperts for each row; Router::correction is the device's. Experts of a row in
// increasing order. Up to 512 experts.
struct SelectRows {
  Router router = {};
  const float* logits = nullptr;  // (num_rows); not changed
  int64_t logits_stride = 0;
  int num_rows = 0;
  int32_t* experts = nullptr;  // (num_rows, top_k)
  float* weights = nullptr;    // (num_rows, top_k)
};
void SelectExpertsOfRows(const SelectRows& rows, StreamHandle stream);

// A counting sort of the pairs by expert, stable in rows: expert e has slots [first_slot[e],
// first_slot[e + 1]), slot_row[slot] is the row, pair_slot (num_rows, top_k) the slot of each pair.
struct GroupRows {
  const int32_t* experts = nullptr;  // (num_rows, top_k)
  int num_rows = 0;
  int top_k = 0;
  int num_experts = 0;               // at most 512
  int32_t* first_slot = nullptr;     // (num_experts + 1)
  int32_t* slot_row = nullptr;       // (num_rows * top_k)
  int32_t* pair_slot = nullptr;      // (num_rows, top_k)
  int32_t* scratch = nullptr;        // GroupScratch(num_rows, num_experts, top_k) integers
  int32_t* expert_counts = nullptr;  // (num_experts), added to; or null
  int32_t* count = nullptr;          // of SelectAndGroup's blocks that are done: 0 before and after
};
int64_t GroupScratch(int num_rows, int num_experts, int top_k = kMaxTopK);
void GroupByExpert(const GroupRows& rows, StreamHandle stream);

// Both, one after the other: of few rows in one launch. What is grouped are the experts of
// `select`.
void SelectAndGroup(const SelectRows& select, const GroupRows& group, StreamHandle stream);

// The whole way from the residual stream to the experts: norm, logits, choice, sorting, and the
// rows as experts read them. Of few rows in one launch.
struct RouteRows {
  NormRows norm;      // to bf16 and to floats
  RouterRows router;  // of what norm.out_float has; of few rows nothing is written there
  SelectRows select;  // by router.logits
  GroupRows group;    // of select.experts
  // Not null: row i becomes that of norm.out which slot i has, 16-byte aligned, where there are few
  // enough of them (GathersRows).
  Bf16* gathered = nullptr;
  int64_t gathered_stride = 0;  // elements
  // What the next layer reads first, 16-byte aligned, comes to the L2 cache meanwhile where there
  // are few rows: memory has little else to do.
  const void* prefetched = nullptr;
  int64_t prefetched_bytes = 0;  // a multiple of 16
};
void Route(const RouteRows& rows, StreamHandle stream);
// Whether Route fills `gathered`; otherwise Copy does.
bool GathersRows(const RouteRows& rows);

// hidden row += scale * (sum over the row's pairs of weight * slot_out row, along the tree over
// expert indices, + shared_weight * shared row), as KernelSet::combine. shared_weight is
// sigmoid(gate_logits[row * gate_stride]) where those are given. What says which slots a row has
// may be read before the kernel enqueued last is done: it was there before a grouped product that
// awaited its rows (Product::first_row).
struct CombineRows {
  const int32_t* experts = nullptr;  // (num_rows, top_k), in increasing order per row
  const float* weights = nullptr;
  const int32_t* pair_slot = nullptr;
  int num_rows = 0;
  int top_k = 0;
  int size = 0;
  const float* slot_out = nullptr;
  int64_t slot_stride = 0;
  const float* shared = nullptr;  // or null
  int64_t shared_stride = 0;
  const float* gate_logits = nullptr;  // or null
  int64_t gate_stride = 0;
  float scale = 1;
  float* hidden = nullptr;
  int64_t hidden_stride = 0;
};
void CombineExperts(const CombineRows& rows, StreamHandle stream);
// And then the norm of those rows (norm.x is rows.hidden), mostly in one launch.
void CombineAndNormalize(const CombineRows& rows, const NormRows& norm, StreamHandle stream);

}  // namespace convene::kernels::cuda
