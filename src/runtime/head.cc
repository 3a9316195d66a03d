#include "runtime/head.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/cut_step.h"
#include "strategy/step.h"
#include "tensor/finite.h"

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

// What a rank says of a row of which only the largest logit is wanted.
struct Largest {
  float logit = 0;
  int32_t token = -1;  // the lowest one of equals; -1: some logits are NaN or infinite
};
static_assert(sizeof(Largest) == strategy::kLargestBytes);

Largest LargestOf(std::span<const float> logits, int first_token) {
  if (!tensor::AllFinite(logits)) return {};
  const auto largest = std::ranges::max_element(logits);
  return {*largest, first_token + static_cast<int32_t>(largest - logits.begin())};
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

void Head::CollectRows(std::span<const Row> rows, Frames frames) {
  head_rows_.clear();
  for (const Row& row : rows) {
    const device::Frame& frame = *frames[row.frame_idx];
    if (row.rank == rank_) {
      head_rows_.push_back({.memory = frame.memory.get(), .row = frame.own().first + row.row_idx});
    } else {
      head_rows_.push_back({.received = row_exchange_.GatheredRow(frame, TravellingRows::kNormed,
                                                                  row.rank, row.row_idx)});
    }
  }
}

Status Head::Run(Frames frames, int vocab_size, device::Stream& stream, device::Event& fetched,
                 const LogitsSink& sink) {
  for (size_t first = 0; first < rows_.size(); first += device::Stream::kHeadRows) {
    const auto rows = std::span(rows_).subspan(
        first, std::min<size_t>(device::Stream::kHeadRows, rows_.size() - first));
    CollectRows(rows, frames);
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

std::span<const Head::Row> Head::RowsOf(int chunk) const {
  const size_t first = std::min(rows_.size(), size_t{strategy::kHeadRows} * chunk);
  return std::span(rows_).subspan(first,
                                  std::min<size_t>(strategy::kHeadRows, rows_.size() - first));
}

Status Head::RunPart(int chunk, Frames frames, int vocab_size, bool largest_suffices,
                     device::Stream& stream, device::Event& fetched) {
  const std::span<const Row> rows = RowsOf(chunk);
  if (rows.empty()) return {};
  CollectRows(rows, frames);
  if (Status done = stream.Head(head_rows_, /*largest_suffices=*/false); !done) return done;
  stream.Record(fetched);
  fetched.Wait();
  if (rank_ == 0) return {};  // they stay where they are
  const device::FetchedLogits logits = stream.FetchLogits();
  const strategy::Part tokens = TokensOf(rank_, vocab_size);
  std::byte* to = frames.front()->row_buffers.logits_out.data();
  for (int64_t i = 0; i < std::ssize(rows); ++i) {
    const std::span<const float> row(logits.rows.row(i), static_cast<size_t>(tokens.size));
    if (largest_suffices) {
      const Largest largest = LargestOf(row, tokens.first);
      std::memcpy(to, &largest, sizeof(largest));
      to += sizeof(largest);
    } else {
      std::memcpy(to, row.data(), row.size_bytes());
      to += row.size_bytes();
    }
  }
  return {};
}

std::unique_ptr<comm::Exchange> Head::StartGather(int chunk, const device::Frame& frame,
                                                  int vocab_size, bool largest_suffices,
                                                  std::span<uint32_t> statuses) const {
  std::vector<size_t> sizes;
  for (int rank = 0; rank < roles_.num_ranks(); ++rank) {
    const size_t row_bytes =
        largest_suffices ? sizeof(Largest) : sizeof(float) * TokensOf(rank, vocab_size).size;
    sizes.push_back(RowsOf(chunk).size() * row_bytes);
  }
  return row_exchange_.StartGatherLogits(frame, sizes, statuses);
}

void Head::Join(int chunk, const device::Frame& frame, int vocab_size, bool largest_suffices,
                device::Stream& stream, const LogitsSink& sink) const {
  const device::FetchedLogits logits = stream.FetchLogits();
  const std::span<const Row> rows = RowsOf(chunk);
  const auto received = [&](int rank) { return frame.row_buffers.logits_in[rank].data(); };
  for (size_t i = 0; i < rows.size(); ++i) {
    float* const row = logits.rows.row(static_cast<int64_t>(i));
    const auto own = static_cast<size_t>(TokensOf(0, vocab_size).size);
    if (largest_suffices) {
      Largest largest = LargestOf({row, own}, 0);
      for (int rank = 1; rank < roles_.num_ranks() && largest.token >= 0; ++rank) {
        Largest other;
        std::memcpy(&other, received(rank) + i * sizeof(other), sizeof(other));
        if (other.token < 0 || other.logit > largest.logit) largest = other;
      }
      sink(rows[i].sequence_idx, rows[i].token_idx, Logits(largest.token));
      continue;
    }
    for (int rank = 1; rank < roles_.num_ranks(); ++rank) {
      const strategy::Part tokens = TokensOf(rank, vocab_size);
      const size_t row_bytes = sizeof(float) * tokens.size;
      std::memcpy(row + tokens.first, received(rank) + i * row_bytes, row_bytes);
    }
    sink(rows[i].sequence_idx, rows[i].token_idx, Logits({row, static_cast<size_t>(vocab_size)}));
  }
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
