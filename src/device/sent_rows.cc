#include "device/sent_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace convene::device {

SentRows::SentRows(const ExpertRowsOptions& options, const ExpertPlacement& placement,
                   const RowParts& parts, ExchangeMemory& memory)
    : options_(options),
      placement_(placement),
      row_parts_(parts),
      peers_(static_cast<size_t>(placement.num_peers())) {
  for (int i = 0; i < placement.num_peers(); ++i) {
    if (placement.SendsTo(i)) peers_[i].buffers = PeerBuffers::Take(options, memory);
  }
}

void SentRows::Begin(const RowRouting& routing, ExpertWork& work) {
  routing_ = routing;
  const int num_parts = row_parts_.NumberFor(std::ssize(routing.experts));
  if (std::ssize(parts_) < num_parts) parts_.resize(static_cast<size_t>(num_parts));
  CountRows(num_parts, work);
  DivideRows(num_parts, work);
  const int num_peers = placement_.num_peers();
  if (num_peers == 0) return;
  for (int i = 0; i < num_peers; ++i) CountBlocks(num_parts, i);
  WriteBlocks(num_parts);
  row_parts_.Run(num_peers, std::min(num_parts, num_peers), [&](int, int32_t first, int32_t end) {
    for (int32_t i = first; i < end; ++i) PlaceSums(i);
  });
}

// How much each part has of this rank's work and of what goes to each peer; then where it begins.
void SentRows::CountRows(int num_parts, ExpertWork& work) {
  const int num_rows = routing_.num_rows();
  row_parts_.Run(num_rows, num_parts, [&](int part_idx, int32_t begin, int32_t end) {
    Part& part = parts_[part_idx];
    part.own_rows = part.own_pairs = 0;
    part.sent.assign(peers_.size(), 0);
    for (int32_t row = begin; row < end; ++row) {
      ForEachDestination(row, [&](int peer, int32_t first, int32_t last) {
        if (peer >= 0) {
          ++part.sent[peer];
        } else {
          ++part.own_rows;
          part.own_pairs += last - first;
        }
      });
    }
  });
  work.num_own_rows = work.num_own_pairs = 0;
  for (int i = 0; i < num_parts; ++i) {
    work.num_own_rows += std::exchange(parts_[i].own_rows, work.num_own_rows);
    work.num_own_pairs += std::exchange(parts_[i].own_pairs, work.num_own_pairs);
  }
  work.rows.resize(static_cast<size_t>(work.num_own_rows));
  work.pairs.resize(static_cast<size_t>(work.num_own_pairs));
  work.of_own_row.resize(static_cast<size_t>(num_rows));
  partial_at_.resize(static_cast<size_t>(num_rows) * peers_.size());
  int64_t all_sent = 0;
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    int32_t num_sent = 0;
    for (int i = 0; i < num_parts; ++i) {
      num_sent += std::exchange(parts_[i].sent[peer], num_sent);
    }
    peers_[peer].sent.resize(static_cast<size_t>(num_sent));
    peers_[peer].order.resize(static_cast<size_t>(num_sent));
    all_sent += num_sent;
  }
  outgoing_.resize(static_cast<size_t>(all_sent));
}

// Work on own rows, and which chunk takes each row that is sent and which one returns it.
void SentRows::DivideRows(int num_parts, ExpertWork& work) {
  row_parts_.Run(routing_.num_rows(), num_parts, [&](int part_idx, int32_t begin, int32_t end) {
    Part& part = parts_[part_idx];
    const size_t num_blocks = peers_.size() * static_cast<size_t>(num_chunks());
    part.blocks.assign(num_blocks, {});
    part.num_sums.assign(num_blocks, 0);
    ChunkLists& pairs = num_parts == 1 ? work.pairs_of_chunk : part.pairs;
    if (num_parts > 1) ClearLists(work.pairs_of_chunk.size(), pairs);
    std::fill(work.of_own_row.begin() + begin, work.of_own_row.begin() + end, -1);
    std::fill(partial_at_.begin() + begin * std::ssize(peers_),
              partial_at_.begin() + end * std::ssize(peers_), -1);
    std::vector<int32_t> next = part.sent;
    for (int32_t row = begin; row < end; ++row) {
      ForEachDestination(row, [&](int peer, int32_t first, int32_t last) {
        if (peer < 0) return AddOwn(row, first, last, part, pairs, work);
        AddSent({row, first, last - first, 0, 0}, next[peer]++, peer, part);
      });
    }
  });
  for (int i = 0; num_parts > 1 && i < num_parts; ++i) {
    AppendLists(parts_[i].pairs, work.pairs_of_chunk);
  }
}

void SentRows::AddOwn(int32_t row, int32_t first, int32_t end, Part& part, ChunkLists& pairs,
                      ExpertWork& work) const {
  const bool by_experts = placement_.by_experts();
  const int32_t* const chunk_of = placement_.chunk_of().data();
  const int32_t work_row = part.own_rows++;
  work.of_own_row[row] = work_row;
  work.rows[work_row] = {.row = row, .first_pair = part.own_pairs, .num_pairs = end - first};
  for (int32_t i = first; i < end; ++i) {
    const int32_t expert = routing_.experts[i];
    const int32_t pair = part.own_pairs++;
    work.pairs[pair] = {static_cast<uint16_t>(expert), routing_.weights[i], work_row};
    if (by_experts) pairs[chunk_of[expert]].push_back(pair);
  }
}

void SentRows::AddSent(SentRow row, int32_t place, int peer_idx, Part& part) {
  Peer& peer = peers_[peer_idx];
  if (placement_.by_experts()) {
    const auto chunk_of = [&](int32_t i) { return placement_.chunk_of()[routing_.experts[i]]; };
    row.dispatch_chunk = chunk_of(row.first);
    row.return_chunk = chunk_of(row.first + row.count - 1);
  } else {
    row.dispatch_chunk = row.return_chunk =
        static_cast<int32_t>(int64_t{place} * num_chunks() / std::ssize(peer.sent));
  }
  peer.sent[place] = row;
  const int blocks = peer_idx * num_chunks();
  BlockCounts& counts = part.blocks[blocks + row.dispatch_chunk];
  ++counts.rows;
  counts.pairs += row.count;
  ++part.num_sums[blocks + row.return_chunk];
}

// What the parts have of each block becomes where they begin in it.
void SentRows::CountBlocks(int num_parts, int peer_idx) {
  Peer& peer = peers_[peer_idx];
  peer.counts.assign(static_cast<size_t>(num_chunks()), {});
  peer.num_sums.assign(static_cast<size_t>(num_chunks()), 0);
  for (int i = 0; i < num_parts; ++i) {
    for (int chunk = 0; chunk < num_chunks(); ++chunk) {
      const int block = peer_idx * num_chunks() + chunk;
      BlockCounts& all = peer.counts[chunk];
      BlockCounts& of_part = parts_[i].blocks[block];
      all.rows += std::exchange(of_part.rows, all.rows);
      all.pairs += std::exchange(of_part.pairs, all.pairs);
      peer.num_sums[chunk] += parts_[i].num_sums[block];
    }
  }
  Pad(peer_idx);
  peer.begin.assign(1, 0);
  peer.first_sent.assign(1, 0);
  for (const BlockCounts& counts : peer.counts) {
    peer.begin.push_back(peer.begin.back() +
                         DispatchBlock::SizeBytes(counts, options_.dispatch_row_bytes));
    peer.first_sent.push_back(peer.first_sent.back() + counts.rows);
  }
  const int64_t num_sums = std::max<int64_t>(std::ssize(peer.sent), peer.num_sums.back());
  peer.buffers.CheckRoom(peer.begin.back(), num_sums * options_.return_row_bytes);
}

int SentRows::Capacity() const {
  return static_cast<int>(std::ceil(options_.capacity_factor * routing_.num_rows() *
                                    routing_.top_k / placement_.num_experts()));
}

void SentRows::Pad(int peer_idx) {
  Peer& peer = peers_[peer_idx];
  for (BlockCounts& counts : peer.counts) counts.padded_rows = counts.rows;
  if (options_.capacity_factor <= 0) return;
  BlockCounts& counts = peer.counts.front();
  const int num_experts = placement_.experts_of(placement_.RankOf(peer_idx)).size;
  counts.padded_rows = std::max(counts.rows, Capacity() * num_experts);
  peer.num_sums.front() = counts.padded_rows;
}

// All of the blocks but the rows themselves.
void SentRows::WriteBlocks(int num_parts) {
  row_parts_.Run(num_parts, num_parts, [&](int part, int32_t, int32_t) {
    int64_t first_outgoing = 0;
    for (size_t peer_idx = 0; peer_idx < peers_.size(); ++peer_idx) {
      Peer& peer = peers_[peer_idx];
      const auto num_sent = static_cast<int32_t>(peer.sent.size());
      const int32_t end = part + 1 < num_parts ? parts_[part + 1].sent[peer_idx] : num_sent;
      BlockCounts* blocks =
          parts_[part].blocks.data() + static_cast<int64_t>(peer_idx) * num_chunks();
      for (int32_t i = parts_[part].sent[peer_idx]; i < end; ++i) {
        BlockCounts& before = blocks[peer.sent[i].dispatch_chunk];
        const int32_t place = peer.first_sent[peer.sent[i].dispatch_chunk] + before.rows;
        peer.order[place] = i;
        outgoing_[first_outgoing + place] = WriteRow(peer.sent[i], before, peer);
        ++before.rows;
        before.pairs += peer.sent[i].count;
      }
      first_outgoing += num_sent;
    }
  });
}

// Behind `before` in the row's block; returns where the row itself must go.
SentRows::Outgoing SentRows::WriteRow(const SentRow& row, const BlockCounts& before,
                                      const Peer& peer) const {
  DispatchBlock block(peer.buffers.blocks.data() + peer.begin[row.dispatch_chunk],
                      peer.counts[row.dispatch_chunk], options_.dispatch_row_bytes);
  block.SetSize(before.rows, row.count);
  for (int32_t i = 0; i < row.count; ++i) {
    block.SetPair(before.pairs + i, routing_.experts[row.first + i],
                  routing_.weights[row.first + i]);
  }
  return {row.row, block.row(before.rows)};
}

// Where each sum will be: those of a combine in the order in which their rows were sent.
void SentRows::PlaceSums(int peer_idx) {
  const Peer& peer = peers_[peer_idx];
  std::vector<int32_t> next(static_cast<size_t>(num_chunks()), 0);
  for (int chunk = 1; chunk < num_chunks(); ++chunk) {
    next[chunk] = next[chunk - 1] + peer.num_sums[chunk - 1];
  }
  for (const int32_t place : peer.order) {
    const SentRow& sent = peer.sent[place];
    partial_at_[sent.row * std::ssize(peers_) + peer_idx] = next[sent.return_chunk]++;
  }
}

std::span<const std::byte> SentRows::block(int peer_idx, int chunk) const {
  const Peer& peer = peers_[peer_idx];
  return {peer.buffers.blocks.data() + peer.begin[chunk],
          static_cast<size_t>(peer.begin[chunk + 1] - peer.begin[chunk])};
}

std::span<std::byte> SentRows::sums(int peer_idx, int chunk) const {
  const Peer& peer = peers_[peer_idx];
  return peer.buffers.SumsOf(peer.num_sums, chunk, options_.return_row_bytes);
}

int SentRows::Partials(int row, Partial* partials) const {
  int count = 0;
  for (size_t i = 0; i < peers_.size(); ++i) {
    const int32_t place = partial_at_[static_cast<size_t>(row) * peers_.size() + i];
    if (place < 0) continue;
    const int rank = placement_.RankOf(static_cast<int>(i));
    partials[count++] = {placement_.experts_of(rank).first,
                         peers_[i].buffers.sums.data() + place * options_.return_row_bytes};
  }
  return count;
}

}  // namespace convene::device
