#include "runtime/head.h"

#include <algorithm>

#include "runtime/cut_step.h"

namespace convene::runtime {

using device::SequenceStep;
using device::TravellingRows;

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
      rows_.push_back({i, token, frame_idx, rank, row_idx, step[i].largest_suffices});
    }
    next_row[group] += num_tokens;
  }
}

Status Head::Run(Frames frames, int vocab_size, device::Stream& stream, device::Event& fetched,
                 const LogitsSink& sink) {
  for (size_t first = 0; first < rows_.size(); first += device::Stream::kHeadRows) {
    const auto rows = std::span(rows_).subspan(
        first, std::min<size_t>(device::Stream::kHeadRows, rows_.size() - first));
    head_rows_.clear();
    for (const Row& row : rows) {
      const device::Frame& frame = *frames[row.frame_idx];
      if (row.rank == 0) {
        head_rows_.push_back(
            {.memory = frame.memory.get(), .row = frame.own().first + row.row_idx});
      } else {
        head_rows_.push_back({.received = row_exchange_.GatheredRow(frame, TravellingRows::kNormed,
                                                                    row.rank, row.row_idx)});
      }
    }
    const bool largest_suffices = std::ranges::all_of(rows, &Row::largest_suffices);
    if (Status done = stream.Head(head_rows_, largest_suffices); !done) return done;
    stream.Record(fetched);
    fetched.Wait();
    const device::FetchedLogits logits = stream.FetchLogits();
    for (size_t i = 0; i < rows.size(); ++i) {
      if (logits.largest != nullptr) {
        sink(rows[i].sequence_idx, rows[i].token_idx, Logits(logits.largest[i]));
      } else {
        sink(rows[i].sequence_idx, rows[i].token_idx,
             Logits({logits.rows.row(static_cast<int64_t>(i)), static_cast<size_t>(vocab_size)}));
      }
    }
  }
  return {};
}

void Head::PassStates(Frames frames, int hidden_size, const StatesSink& sink) {
  for (const Row& row : rows_) {
    const device::Frame& frame = *frames[row.frame_idx];
    const std::byte* states =
        row.rank == 0
            ? frame.memory->HostRows(TravellingRows::kStates, {frame.own().first + row.row_idx, 1})
                  .data()
            : row_exchange_.GatheredRow(frame, TravellingRows::kStates, row.rank, row.row_idx);
    sink(row.sequence_idx, row.token_idx,
         {reinterpret_cast<const float*>(states), static_cast<size_t>(hidden_size)});
  }
}

}  // namespace convene::runtime
