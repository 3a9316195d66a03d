#include "runtime/head.h"

#include <algorithm>
#include <cstring>

#include "runtime/cut_step.h"

namespace convene::runtime {
namespace {

// The part of `parts` of `count` things that has this one.
int PartWith(int index, int count, int parts) {
  int part = 0;
  const auto end_of = [&](int i) {
    const strategy::Part here = strategy::PartOf(count, i, parts);
    return here.first + here.size;
  };
  while (index >= end_of(part)) ++part;
  return part;
}

}  // namespace

void Head::Begin(std::span<const SequenceStep> step, Frames frames) {
  const auto num_frames = static_cast<int>(frames.size());
  rows_.clear();
  for (const auto& frame : frames) {
    frame->wanted_counts.assign(static_cast<size_t>(roles_.num_ranks()), 0);
  }
  std::vector<int> num_rows;
  for (int group = 0; group < roles_.num_groups(); ++group) {
    num_rows.push_back(CountRows(step, group));
  }
  std::vector<int> next_row(num_rows.size(), 0);
  for (int i = 0; i < std::ssize(step); ++i) {
    const int group = step[i].group;
    const auto num_tokens = static_cast<int>(step[i].tokens.size());
    for (int token = step[i].first_logits_token; token < num_tokens; ++token) {
      const int row = next_row[group] + token;
      const int frame_idx = PartWith(row, num_rows[group], num_frames);
      const strategy::Part of_frame = strategy::PartOf(num_rows[group], frame_idx, num_frames);
      const int part = PartWith(row - of_frame.first, of_frame.size, roles_.attention_parts());
      const int rank = roles_.RankOfPart(group, part);
      const int row_idx = frames[frame_idx]->wanted_counts[rank]++;
      rows_.push_back({i, token, frame_idx, rank, row_idx});
    }
    next_row[group] += num_tokens;
  }
}

const std::byte* Head::Gathered(Frames frames, const Row& row,
                                RowBuffer Activations::*buffer) const {
  const Frame& frame = *frames[row.frame_idx];
  return row_exchange_.GatheredRow(frame, frame.activations.*buffer, row.rank, row.row_idx);
}

Status Head::Run(Frames frames, const LogitsSink& sink) {
  const auto head = context_.weights.LeaseHead();
  if (!head) return head.error();
  const Workspace& workspace = context_.workspace;
  const auto vocab_size = static_cast<size_t>(context_.spec().vocab_size);
  const auto num_rows = static_cast<int>(rows_.size());
  for (int first = 0; first < num_rows; first += Workspace::kHeadRows) {
    const int count = std::min(Workspace::kHeadRows, num_rows - first);
    for (int i = 0; i < count; ++i) {
      std::memcpy(workspace.wanted.row(i), Gathered(frames, rows_[first + i], &Activations::normed),
                  workspace.wanted.stride_bytes);
    }
    context_.Multiply(**head, workspace.wanted, count, kernels::Epilogue::kStore, workspace.logits,
                      {}, {.scale = context_.spec().logits_scale});
    for (int i = 0; i < count; ++i) {
      const Row& row = rows_[first + i];
      sink(row.sequence_idx, row.token_idx, {workspace.logits.floats(i), vocab_size});
    }
  }
  return {};
}

void Head::PassStates(Frames frames, const StatesSink& sink) {
  const auto hidden_size = static_cast<size_t>(context_.spec().hidden_size);
  for (const Row& row : rows_) {
    const std::byte* states = Gathered(frames, row, &Activations::normed_float);
    sink(row.sequence_idx, row.token_idx, {reinterpret_cast<const float*>(states), hidden_size});
  }
}

}  // namespace convene::runtime
