#include "device/expert_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "strategy/expert_pipeline.h"

namespace convene::device {
namespace {

// Buffers are as large as any step needs them.
void CheckSize(std::span<const std::byte> buffer, int64_t size_bytes) {
  CHECK(size_bytes <= std::ssize(buffer), "{} bytes in a buffer of {}", size_bytes, buffer.size());
}

template <typename T>
void Write(std::byte*& to, T value) {
  std::memcpy(to, &value, sizeof(T));
  to += sizeof(T);
}

template <typename T>
T Read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace

// What goes to the peer and comes from it in one layer, all chunks together.
void ExpertRows::TakeBuffers(const Options& options, ExchangeMemory& memory, Peer& peer) {
  constexpr int64_t kBlockPadding = 3 * strategy::kMostChunks;
  const int64_t blocks = options.most_padded_rows * options.dispatch_row_bytes + options.most_rows +
                         6 * options.most_pairs + kBlockPadding;
  const int64_t sums = options.most_padded_rows * options.return_row_bytes;
  peer.out = memory.Take(blocks);
  peer.in = memory.Take(blocks);
  peer.sums_out = memory.Take(sums);
  peer.sums_in = memory.Take(sums);
}

int64_t ExpertRows::MemoryBytes(const Options& options) {
  ExchangeMemory counted;
  Peer peer;
  for (int other = 1; other < options.roles.num_ranks(); ++other) {
    TakeBuffers(options, counted, peer);
  }
  return counted.used_bytes();
}

ExpertRows::ExpertRows(const Options& options, comm::Group* group, ExchangeMemory& memory)
    : options_(options), group_(group) {
  const int num_ranks = options.roles.num_ranks();
  CHECK(num_ranks == 1 || (group != nullptr && group->size() == num_ranks), "{} ranks", num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    peer_of_.push_back(rank == options.rank ? -1 : static_cast<int>(peers_.size()));
    if (rank == options.rank) continue;
    Peer& peer = peers_.emplace_back();
    peer.rank = rank;
    TakeBuffers(options, memory, peer);
  }
  UsePipeline(options.pipeline);
}

void ExpertRows::Begin(int layer, int num_experts, int top_k, std::span<const int32_t> experts,
                       std::span<const float> weights) {
  layer_ = layer;
  top_k_ = top_k;
  experts_ = experts;
  weights_ = weights;
  const strategy::Roles& roles = options_.roles;
  if (num_experts != num_experts_) {
    num_experts_ = num_experts;
    share_of_.assign(static_cast<size_t>(num_experts), 0);
    for (int share = 0; share < roles.expert_split().num_shares(); ++share) {
      const strategy::Part part = roles.expert_split().experts(share, num_experts);
      std::fill_n(share_of_.begin() + part.first, part.size, share);
    }
    own_experts_ = roles.ExpertsOf(options_.rank, num_experts);
    for (Peer& peer : peers_) peer.experts = roles.ExpertsOf(peer.rank, num_experts);
  }
  work_rows_.clear();
  pairs_.clear();
  own_rows_.clear();
  outgoing_.clear();
  num_slots_ = 0;
  selected_chunk_ = -1;
  in_buffers_ready_ = false;
  for (Peer& peer : peers_) {
    peer.sent.clear();
    peer.arrived.clear();
    peer.num_returned = 0;
  }

  const auto num_rows = static_cast<int>(std::ssize(experts) / top_k);
  num_rows_ = num_rows;
  own_work_.assign(static_cast<size_t>(num_rows), -1);
  for (int32_t row = 0; row < num_rows; ++row) {
    const int32_t end = (row + 1) * top_k;
    for (int32_t first = row * top_k; first < end;) {
      const int share = share_of_[experts[first]];
      int32_t last = first + 1;
      while (last < end && share_of_[experts[last]] == share) ++last;
      bool is_own = false;
      for (int slice = 0; slice < roles.expert_slices(); ++slice) {
        const int rank = roles.RankOfSlice(share, slice);
        if (rank == options_.rank) {
          is_own = true;
        } else {
          peers_[peer_of_[rank]].sent.push_back({row, first, last - first, 0, 0});
        }
      }
      if (is_own) {
        own_work_[row] = static_cast<int32_t>(work_rows_.size());
        own_rows_.push_back(own_work_[row]);
        work_rows_.push_back({.row = row,
                              .first_pair = static_cast<int32_t>(pairs_.size()),
                              .num_pairs = last - first});
        for (int32_t i = first; i < last; ++i) {
          pairs_.push_back({static_cast<uint16_t>(experts[i]), weights[i]});
        }
      }
      first = last;
    }
  }
  if (peers_.empty()) return;
  partial_at_.assign(static_cast<size_t>(num_rows) * peers_.size(), -1);
  for (Peer& peer : peers_) {
    CutIntoChunks(peer);
    WriteBlocks(peer);
  }
}

// Which chunk takes each row and which one returns it; the rows then in the order of the first.
void ExpertRows::CutIntoChunks(Peer& peer) {
  const auto num_sent = static_cast<int64_t>(peer.sent.size());
  for (int64_t i = 0; i < num_sent; ++i) {
    SentRow& sent = peer.sent[i];
    if (by_experts()) {
      sent.dispatch_chunk = GroupOf(experts_[sent.first], peer.experts);
      sent.return_chunk = GroupOf(experts_[sent.first + sent.count - 1], peer.experts);
    } else {
      sent.dispatch_chunk = sent.return_chunk = static_cast<int32_t>(i * num_chunks() / num_sent);
    }
  }
  std::stable_sort(peer.sent.begin(), peer.sent.end(), [](const SentRow& a, const SentRow& b) {
    return a.dispatch_chunk < b.dispatch_chunk;
  });
  peer.out_counts.assign(static_cast<size_t>(num_chunks()), {});
  peer.sums_in_rows.assign(static_cast<size_t>(num_chunks()), 0);
  for (const SentRow& sent : peer.sent) {
    ++peer.out_counts[sent.dispatch_chunk].rows;
    peer.out_counts[sent.dispatch_chunk].pairs += sent.count;
    ++peer.sums_in_rows[sent.return_chunk];
  }
  Pad(peer);
  // Where each sum will be.
  std::vector<int32_t> next(static_cast<size_t>(num_chunks()), 0);
  for (int chunk = 1; chunk < num_chunks(); ++chunk) {
    next[chunk] = next[chunk - 1] + peer.sums_in_rows[chunk - 1];
  }
  const int64_t peer_idx = &peer - peers_.data();
  for (const SentRow& sent : peer.sent) {
    partial_at_[sent.row * std::ssize(peers_) + peer_idx] = next[sent.return_chunk]++;
  }
  const int64_t num_sums = std::max<int64_t>(num_sent, peer.sums_in_rows.back());
  CheckSize(peer.sums_in, num_sums * options_.return_row_bytes);
}

int ExpertRows::Capacity() const {
  return static_cast<int>(std::ceil(options_.capacity_factor * num_rows_ * top_k_ / num_experts_));
}

void ExpertRows::Pad(Peer& peer) const {
  for (Counts& counts : peer.out_counts) counts.padded_rows = counts.rows;
  if (options_.capacity_factor <= 0) return;
  Counts& counts = peer.out_counts.front();
  counts.padded_rows = std::max(counts.rows, Capacity() * peer.experts.size);
  peer.sums_in_rows.front() = counts.padded_rows;
}

// All of the blocks but the rows themselves.
void ExpertRows::WriteBlocks(Peer& peer) {
  peer.out_begin.assign(1, 0);
  for (const Counts& counts : peer.out_counts) {
    peer.out_begin.push_back(peer.out_begin.back() + BlockBytes(counts));
  }
  CheckSize(peer.out, peer.out_begin.back());
  auto sent = peer.sent.begin();
  for (int chunk = 0; chunk < num_chunks(); ++chunk) {
    const Counts& counts = peer.out_counts[chunk];
    std::byte* row = peer.out.data() + peer.out_begin[chunk];
    std::byte* sizes = row + counts.padded_rows * options_.dispatch_row_bytes;
    std::byte* numbers = sizes + counts.rows;
    std::byte* weights = numbers + int64_t{2} * counts.pairs;
    for (int32_t i = 0; i < counts.rows; ++i, ++sent) {
      outgoing_.push_back({sent->row, row});
      row += options_.dispatch_row_bytes;
      Write(sizes, static_cast<uint8_t>(sent->count));
      for (int32_t pair = sent->first; pair < sent->first + sent->count; ++pair) {
        Write(numbers, static_cast<uint16_t>(experts_[pair]));
        Write(weights, weights_[pair]);
      }
    }
  }
}

std::string ExpertRows::NameOf(const char* exchange, int chunk) const {
  if (num_chunks() == 1) return fmt::format("{} of layer {}", exchange, layer_);
  return fmt::format("{} {} of layer {}", exchange, chunk, layer_);
}

std::unique_ptr<comm::Exchange> ExpertRows::StartCounts() {
  const size_t num_ranks = peers_.size() + 1;
  std::vector<std::span<const std::byte>> send(num_ranks);
  std::vector<std::span<std::byte>> receive(num_ranks);
  for (Peer& peer : peers_) {
    peer.in_counts.assign(static_cast<size_t>(num_chunks()), {});
    send[peer.rank] = std::as_bytes(std::span(peer.out_counts));
    receive[peer.rank] = std::as_writable_bytes(std::span(peer.in_counts));
  }
  return group_->StartAllToAll(kDispatchQueue, send, receive, NameOf("counts", 0));
}

std::unique_ptr<comm::Exchange> ExpertRows::StartDispatch(int chunk) {
  if (!in_buffers_ready_) {
    for (Peer& peer : peers_) {
      peer.in_begin.assign(1, 0);
      int64_t num_rows = 0;
      for (const Counts& counts : peer.in_counts) {
        peer.in_begin.push_back(peer.in_begin.back() + BlockBytes(counts));
        num_rows += counts.padded_rows;
      }
      CheckSize(peer.in, peer.in_begin.back());
      CheckSize(peer.sums_out, num_rows * options_.return_row_bytes);
      peer.sums_out_rows.assign(static_cast<size_t>(num_chunks()), 0);
    }
    in_buffers_ready_ = true;
  }
  std::vector<std::span<const std::byte>> send(peers_.size() + 1);
  std::vector<std::span<std::byte>> receive(peers_.size() + 1);
  for (Peer& peer : peers_) {
    const auto size_of = [&](const std::vector<int64_t>& begin) {
      return static_cast<size_t>(begin[chunk + 1] - begin[chunk]);
    };
    send[peer.rank] = {peer.out.data() + peer.out_begin[chunk], size_of(peer.out_begin)};
    receive[peer.rank] = {peer.in.data() + peer.in_begin[chunk], size_of(peer.in_begin)};
  }
  return group_->StartAllToAll(kDispatchQueue, send, receive, NameOf("dispatch", chunk));
}

// Reads the blocks of a dispatch.
void ExpertRows::Arrive(int chunk) {
  for (Peer& peer : peers_) {
    const Counts& counts = peer.in_counts[chunk];
    const std::byte* row = peer.in.data() + peer.in_begin[chunk];
    const std::byte* sizes = row + counts.padded_rows * options_.dispatch_row_bytes;
    const std::byte* numbers = sizes + counts.rows;
    const std::byte* weights = numbers + int64_t{2} * counts.pairs;
    int32_t num_pairs = 0;
    for (int32_t i = 0; i < counts.rows; ++i) {
      const auto size = Read<uint8_t>(sizes + i);
      num_pairs += size;
      CHECK(num_pairs <= counts.pairs, "rank {} sent {} pairs as {}", peer.rank, num_pairs,
            counts.pairs);
      peer.arrived.push_back(static_cast<int32_t>(work_rows_.size()));
      WorkRow& work = work_rows_.emplace_back();
      work = {.data = row,
              .first_pair = static_cast<int32_t>(pairs_.size()),
              .num_pairs = size,
              .return_chunk = chunk};
      row += options_.dispatch_row_bytes;
      for (int pair = 0; pair < size; ++pair) {
        const auto expert = Read<uint16_t>(numbers);
        const int local = expert - own_experts_.first;
        CHECK(local >= 0 && local < own_experts_.size, "rank {} sent a row for expert {}",
              peer.rank, expert);
        pairs_.push_back({expert, Read<float>(weights)});
        numbers += sizeof(uint16_t);
        weights += sizeof(float);
      }
      if (by_experts()) {
        work.return_chunk = GroupOf(pairs_.back().expert, own_experts_);
      }
      ++peer.sums_out_rows[work.return_chunk];
    }
    if (options_.capacity_factor > 0) peer.sums_out_rows.front() = counts.padded_rows;
  }
}

const ChunkSlots& ExpertRows::Select(int chunk) {
  if (chunk == selected_chunk_) return slots_;
  selected_chunk_ = chunk;
  const auto num_before = static_cast<int32_t>(work_rows_.size());
  const bool comes_in = chunk < num_chunks() && !peers_.empty();
  if (comes_in) Arrive(chunk);
  selected_.clear();
  if (num_chunks() == 1 || by_experts()) {
    // Everything that is here; cut by experts, those pairs of it that are of this group.
    for (int32_t i = 0; i < std::ssize(work_rows_); ++i) selected_.push_back(i);
  } else if (comes_in) {
    for (int32_t i = num_before; i < std::ssize(work_rows_); ++i) selected_.push_back(i);
  } else {
    const int part = chunk - strategy::OwnChunk(options_.pipeline, 0);
    const strategy::Part rows = strategy::PartOf(static_cast<int>(own_rows_.size()), part, 2);
    selected_.assign(own_rows_.begin() + rows.first, own_rows_.begin() + rows.first + rows.size);
  }
  Assign(selected_, by_experts() ? chunk : -1);
  return slots_;
}

// Gives the pairs of these rows (of a group, or all of them) their slots, sorted by expert.
void ExpertRows::Assign(const std::vector<int32_t>& work_rows, int group) {
  const auto for_each_pair = [&](auto&& f) {
    for (const int32_t work_row : work_rows) {
      const WorkRow& work = work_rows_[work_row];
      for (int32_t i = work.first_pair; i < work.first_pair + work.num_pairs; ++i) {
        if (group >= 0 && GroupOf(pairs_[i].expert, own_experts_) != group) continue;
        f(work_row, pairs_[i]);
      }
    }
  };
  const int num_local = own_experts_.size;
  std::vector<int32_t>& first = slots_.first_slot;
  first.assign(static_cast<size_t>(num_local) + 1, 0);
  for_each_pair(
      [&](int32_t, const ExpertPair& pair) { ++first[pair.expert - own_experts_.first + 1]; });
  if (options_.capacity_factor > 0) {
    int capacity = Capacity();
    for (const Peer& peer : peers_) {
      if (num_local > 0) capacity += peer.in_counts.front().padded_rows / num_local;
    }
    for (int expert = 1; expert <= num_local; ++expert) {
      first[expert] = std::max(first[expert], capacity);
    }
  }
  first[0] = num_slots_;
  for (int expert = 0; expert < num_local; ++expert) first[expert + 1] += first[expert];
  slots_.work_row.assign(static_cast<size_t>(first.back() - num_slots_), -1);
  std::vector<int32_t>& next = next_slot_;
  next.assign(first.begin(), first.end() - 1);
  for_each_pair([&](int32_t work_row, ExpertPair& pair) {
    pair.slot = next[pair.expert - own_experts_.first]++;
    slots_.work_row[pair.slot - num_slots_] = work_row;
  });
  num_slots_ = first.back();
}

std::span<const ExpertRows::Returning> ExpertRows::Returns(int chunk) {
  returning_.clear();
  for (Peer& peer : peers_) {
    for (const int32_t work_row : peer.arrived) {
      if (work_rows_[work_row].return_chunk != chunk) continue;
      returning_.push_back(
          {work_row, peer.sums_out.data() + peer.num_returned++ * options_.return_row_bytes});
    }
  }
  return returning_;
}

std::unique_ptr<comm::Exchange> ExpertRows::StartCombine(int chunk) {
  std::vector<std::span<const std::byte>> send(peers_.size() + 1);
  std::vector<std::span<std::byte>> receive(peers_.size() + 1);
  for (Peer& peer : peers_) {
    const auto block = [&](std::span<std::byte> buffer, const std::vector<int32_t>& rows) {
      int64_t before = 0;
      for (int i = 0; i < chunk; ++i) before += rows[i];
      return buffer.subspan(static_cast<size_t>(before * options_.return_row_bytes),
                            static_cast<size_t>(rows[chunk] * options_.return_row_bytes));
    };
    send[peer.rank] = block(peer.sums_out, peer.sums_out_rows);
    receive[peer.rank] = block(peer.sums_in, peer.sums_in_rows);
  }
  return group_->StartAllToAll(kCombineQueue, send, receive, NameOf("combine", chunk));
}

int ExpertRows::Partials(int row, Partial* partials) const {
  int count = 0;
  for (size_t i = 0; i < peers_.size(); ++i) {
    const int32_t place = partial_at_[static_cast<size_t>(row) * peers_.size() + i];
    if (place < 0) continue;
    const Peer& peer = peers_[i];
    partials[count++] = {peer.experts.first,
                         peer.sums_in.data() + place * options_.return_row_bytes};
  }
  return count;
}

int64_t ExpertRows::sent_rows(int rank, int chunk) const {
  return peer_of_[rank] < 0 ? 0 : peers_[peer_of_[rank]].out_counts[chunk].rows;
}

int64_t ExpertRows::returned_rows(int rank, int chunk) const {
  return peer_of_[rank] < 0 ? 0 : peers_[peer_of_[rank]].sums_out_rows[chunk];
}

}  // namespace convene::device
