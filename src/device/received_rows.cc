#include "device/received_rows.h"

#include "base/check.h"

namespace convene::device {

ReceivedRows::ReceivedRows(const ExpertRowsOptions& options, const ExpertPlacement& placement,
                           const RowParts& parts, ExchangeMemory& memory)
    : options_(options),
      placement_(placement),
      row_parts_(parts),
      peers_(static_cast<size_t>(placement.num_peers())) {
  for (int i = 0; i < placement.num_peers(); ++i) {
    if (placement.ReceivesFrom(i)) peers_[i].buffers = PeerBuffers::Take(options, memory);
  }
}

void ReceivedRows::Begin() {
  are_placed_ = false;
  for (Peer& peer : peers_) {
    ClearLists(static_cast<size_t>(placement_.num_chunks()), peer.returning);
    peer.num_returned = 0;
  }
}

std::span<BlockCounts> ReceivedRows::BeginCounts(int peer) {
  peers_[peer].counts.assign(static_cast<size_t>(placement_.num_chunks()), {});
  return peers_[peer].counts;
}

void ReceivedRows::PlaceBlocks() {
  if (are_placed_) return;
  are_placed_ = true;
  for (Peer& peer : peers_) {
    peer.begin.assign(1, 0);
    int64_t num_rows = 0;
    for (const BlockCounts& counts : peer.counts) {
      peer.begin.push_back(peer.begin.back() +
                           DispatchBlock::SizeBytes(counts, options_.dispatch_row_bytes));
      num_rows += counts.padded_rows;
    }
    peer.buffers.CheckRoom(peer.begin.back(), num_rows * options_.return_row_bytes);
    peer.num_sums.assign(static_cast<size_t>(placement_.num_chunks()), 0);
  }
}

std::span<std::byte> ReceivedRows::block(int peer_idx, int chunk) const {
  const Peer& peer = peers_[peer_idx];
  return {peer.buffers.blocks.data() + peer.begin[chunk],
          static_cast<size_t>(peer.begin[chunk + 1] - peer.begin[chunk])};
}

void ReceivedRows::Read(int chunk, ExpertWork& work) {
  for (int i = 0; i < placement_.num_peers(); ++i) {
    if (placement_.ReceivesFrom(i)) ReadFrom(i, chunk, work);
  }
}

void ReceivedRows::ReadFrom(int peer_idx, int chunk, ExpertWork& work) {
  Peer& peer = peers_[peer_idx];
  const BlockCounts& counts = peer.counts[chunk];
  const DispatchBlock block = BlockOf(peer, chunk);
  const int num_parts = row_parts_.NumberFor(counts.pairs);
  if (std::ssize(parts_) < num_parts) parts_.resize(static_cast<size_t>(num_parts));
  // Each part's pairs begin behind those of the rows before it.
  int32_t num_pairs = 0;
  row_parts_.ForEach(counts.rows, num_parts, [&](int part, int32_t first, int32_t end) {
    parts_[part].first_pair = num_pairs;
    for (int32_t i = first; i < end; ++i) num_pairs += block.size(i);
  });
  const Arrived arrived{.first_work_row = static_cast<int32_t>(work.rows.size()),
                        .first_pair = static_cast<int32_t>(work.pairs.size()),
                        .chunk = chunk,
                        .rank = placement_.RankOf(peer_idx)};
  CHECK(num_pairs == counts.pairs, "rank {} sent {} pairs as {}", arrived.rank, num_pairs,
        counts.pairs);
  work.rows.resize(work.rows.size() + static_cast<size_t>(counts.rows));
  work.pairs.resize(work.pairs.size() + static_cast<size_t>(counts.pairs));
  row_parts_.Run(counts.rows, num_parts, [&](int part_idx, int32_t first, int32_t end) {
    Part& part = parts_[part_idx];
    if (num_parts == 1) {
      return ReadRows(block, arrived, first, end, part.first_pair, work, work.pairs_of_chunk,
                      peer.returning);
    }
    ClearLists(work.pairs_of_chunk.size(), part.pairs);
    ClearLists(work.pairs_of_chunk.size(), part.returning);
    ReadRows(block, arrived, first, end, part.first_pair, work, part.pairs, part.returning);
  });
  for (int i = 0; num_parts > 1 && i < num_parts; ++i) {
    AppendLists(parts_[i].pairs, work.pairs_of_chunk);
    AppendLists(parts_[i].returning, peer.returning);
  }
  // What arrives now returns with this chunk or a later one. The combines of earlier ones may be
  // started meanwhile, by another thread.
  for (int i = chunk; i < placement_.num_chunks(); ++i) {
    peer.num_sums[i] = static_cast<int32_t>(peer.returning[i].size());
  }
  if (options_.capacity_factor > 0) peer.num_sums.front() = counts.padded_rows;
}

// Rows [first, end) of a block, whose pairs begin with `pair`.
void ReceivedRows::ReadRows(const DispatchBlock& block, const Arrived& arrived, int32_t first,
                            int32_t end, int32_t pair, ExpertWork& work, ChunkLists& pairs,
                            ChunkLists& returning) const {
  const strategy::Part own = placement_.own();
  const bool by_experts = placement_.by_experts();
  const int32_t* const chunk_of = placement_.chunk_of().data();
  for (int32_t i = first; i < end; ++i) {
    const int32_t work_row = arrived.first_work_row + i;
    WorkRow& row = work.rows[work_row];
    row = {
        .data = block.row(i), .first_pair = arrived.first_pair + pair, .num_pairs = block.size(i)};
    int32_t return_chunk = arrived.chunk;
    for (const int32_t last = pair + row.num_pairs; pair < last; ++pair) {
      const int32_t expert = block.expert(pair);
      const int local = expert - own.first;
      CHECK(local >= 0 && local < own.size, "rank {} sent a row for expert {}", arrived.rank,
            expert);
      const int32_t place = arrived.first_pair + pair;
      work.pairs[place] = {static_cast<uint16_t>(expert), block.weight(pair), work_row};
      if (!by_experts) continue;
      return_chunk = chunk_of[expert];
      pairs[return_chunk].push_back(place);
    }
    returning[return_chunk].push_back(work_row);
  }
}

int ReceivedRows::PaddedRows() const {
  int padded_rows = 0;
  for (const Peer& peer : peers_) {
    padded_rows += peer.counts.front().padded_rows / placement_.own().size;
  }
  return padded_rows;
}

std::span<const ReceivedRows::Returning> ReceivedRows::Returns(int chunk) {
  returning_.clear();
  for (Peer& peer : peers_) {
    for (const int32_t work_row : peer.returning[chunk]) {
      returning_.push_back(
          {work_row, peer.buffers.sums.data() + peer.num_returned++ * options_.return_row_bytes});
    }
  }
  return returning_;
}

std::span<const std::byte> ReceivedRows::sums(int peer_idx, int chunk) const {
  const Peer& peer = peers_[peer_idx];
  return peer.buffers.SumsOf(peer.num_sums, chunk, options_.return_row_bytes);
}

}  // namespace convene::device
