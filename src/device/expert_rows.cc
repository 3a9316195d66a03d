#include "device/expert_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "strategy/expert_cuts.h"
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

// Of a pair in a block.
constexpr int64_t kNumberBytes = sizeof(uint16_t);
constexpr int64_t kWeightBytes = sizeof(float);

using Lists = std::vector<std::vector<int32_t>>;

// So many, all empty.
void ClearLists(size_t count, Lists& lists) {
  if (lists.size() < count) lists.resize(count);
  for (std::vector<int32_t>& list : lists) list.clear();
}

void AppendLists(const Lists& from, Lists& to) {
  for (size_t i = 0; i < to.size(); ++i) to[i].insert(to[i].end(), from[i].begin(), from[i].end());
}

}  // namespace

// What goes to the peer and comes from it in one layer, all chunks together.
void ExpertRows::TakeBuffers(const Options& options, int peer_rank, ExchangeMemory& memory,
                             Peer& peer) {
  constexpr int64_t kBlockPadding = 3 * strategy::kMostChunks;
  const int64_t blocks = options.most_padded_rows * options.dispatch_row_bytes + options.most_rows +
                         6 * options.most_pairs + kBlockPadding;
  const int64_t sums = options.most_padded_rows * options.return_row_bytes;
  if (Sends(options.roles, options.rank, peer_rank)) {
    peer.out = memory.Take(blocks);
    peer.sums_in = memory.Take(sums);
  }
  if (Sends(options.roles, peer_rank, options.rank)) {
    peer.in = memory.Take(blocks);
    peer.sums_out = memory.Take(sums);
  }
}

int64_t ExpertRows::MemoryBytes(const Options& options) {
  ExchangeMemory counted;
  Peer peer;
  for (int other = 0; other < options.roles.num_ranks(); ++other) {
    if (other != options.rank) TakeBuffers(options, other, counted, peer);
  }
  return counted.used_bytes();
}

ExpertRows::ExpertRows(const Options& options, comm::Group* group, ExchangeMemory& memory)
    : options_(options), group_(group), parts_(options.pool) {
  const int num_ranks = options.roles.num_ranks();
  CHECK(num_ranks == 1 || (group != nullptr && group->size() == num_ranks), "{} ranks", num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    peer_of_.push_back(rank == options.rank ? -1 : static_cast<int>(peers_.size()));
    if (rank == options.rank) continue;
    Peer& peer = peers_.emplace_back();
    peer.rank = rank;
    TakeBuffers(options, rank, memory, peer);
  }
  Use(options.roles, options.pipeline);
}

void ExpertRows::Use(const strategy::Roles& roles, const strategy::Pipeline& pipeline,
                     int own_chunks) {
  options_.roles = roles;
  // One rank's schedule has other chunks than the plan says.
  const strategy::Pipeline own{.chunks = own_chunks, .cut = strategy::ChunkCut::kExperts};
  options_.pipeline = peers_.empty() ? own : pipeline;
  is_cut_ = false;
}

// Which share has each expert, and which chunk.
void ExpertRows::CutLayer(int num_experts) {
  if (is_cut_ && num_experts == num_experts_) return;
  is_cut_ = true;
  num_experts_ = num_experts;
  const strategy::Roles& roles = options_.roles;
  share_of_.assign(static_cast<size_t>(num_experts), 0);
  for (int share = 0; share < roles.expert_split().num_shares(); ++share) {
    const strategy::Part part = roles.expert_split().experts(share, num_experts);
    std::fill_n(share_of_.begin() + part.first, part.size, share);
  }
  own_experts_ = roles.ExpertsOf(options_.rank, num_experts);
  CutExperts(own_experts_, chunk_of_);
  for (Peer& peer : peers_) {
    peer.experts = roles.ExpertsOf(peer.rank, num_experts);
    CutExperts(peer.experts, peer.chunk_of);
  }
}

void ExpertRows::CutExperts(const strategy::Part& experts, std::vector<int32_t>& chunk_of) const {
  chunk_of.clear();
  int32_t chunk = 0;
  if (!by_experts()) return;
  for (const int end : strategy::ExpertEnds(options_.pipeline, experts.size)) {
    chunk_of.resize(static_cast<size_t>(end), chunk++);
  }
}

void ExpertRows::Begin(int layer, int num_experts, int top_k, std::span<const int32_t> experts,
                       std::span<const float> weights) {
  layer_ = layer;
  top_k_ = top_k;
  experts_ = experts;
  weights_ = weights;
  num_rows_ = static_cast<int>(std::ssize(experts) / top_k);
  num_slots_ = 0;
  selected_chunk_ = -1;
  in_buffers_ready_ = false;
  CutLayer(num_experts);
  const auto num_chunks = static_cast<size_t>(this->num_chunks());
  ClearLists(num_chunks, pairs_of_chunk_);
  for (Peer& peer : peers_) {
    ClearLists(num_chunks, peer.returning);
    peer.num_returned = 0;
  }
  const int num_parts = parts_.NumberFor(std::ssize(experts));
  if (std::ssize(begin_parts_) < num_parts) begin_parts_.resize(static_cast<size_t>(num_parts));
  CountRows(num_parts);
  DivideRows(num_parts);
  if (peers_.empty()) return;
  for (Peer& peer : peers_) CountBlocks(num_parts, peer);
  WriteBlocks(num_parts);
  parts_.Run(std::ssize(peers_), std::min(num_parts, static_cast<int>(peers_.size())),
             [&](int, int32_t first, int32_t end) {
               for (int32_t i = first; i < end; ++i) PlaceSums(peers_[i]);
             });
}

template <typename F>
void ExpertRows::ForEachDestination(int32_t row, F&& f) {
  const strategy::Roles& roles = options_.roles;
  const int32_t end = (row + 1) * top_k_;
  for (int32_t first = row * top_k_; first < end;) {
    const int share = share_of_[experts_[first]];
    int32_t last = first + 1;
    while (last < end && share_of_[experts_[last]] == share) ++last;
    for (int slice = 0; slice < roles.expert_slices(); ++slice) {
      const int peer = peer_of_[roles.RankOfSlice(share, slice)];
      f(peer < 0 ? nullptr : &peers_[peer], first, last);
    }
    first = last;
  }
}

// How much each part has of this rank's work and of what goes to each peer; then where it begins.
void ExpertRows::CountRows(int num_parts) {
  parts_.Run(num_rows_, num_parts, [&](int part_idx, int32_t begin, int32_t end) {
    BeginPart& part = begin_parts_[part_idx];
    part.own_rows = part.own_pairs = 0;
    part.sent.assign(peers_.size(), 0);
    for (int32_t row = begin; row < end; ++row) {
      ForEachDestination(row, [&](const Peer* peer, int32_t first, int32_t last) {
        if (peer != nullptr) {
          ++part.sent[PeerIndex(*peer)];
        } else {
          ++part.own_rows;
          part.own_pairs += last - first;
        }
      });
    }
  });
  int32_t num_pairs = 0;
  num_own_work_ = 0;
  for (int i = 0; i < num_parts; ++i) {
    num_own_work_ += std::exchange(begin_parts_[i].own_rows, num_own_work_);
    num_pairs += std::exchange(begin_parts_[i].own_pairs, num_pairs);
  }
  num_own_pairs_ = num_pairs;
  work_rows_.resize(static_cast<size_t>(num_own_work_));
  pairs_.resize(static_cast<size_t>(num_pairs));
  own_work_.resize(static_cast<size_t>(num_rows_));
  partial_at_.resize(static_cast<size_t>(num_rows_) * peers_.size());
  int64_t all_sent = 0;
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    int32_t num_sent = 0;
    for (int i = 0; i < num_parts; ++i) {
      num_sent += std::exchange(begin_parts_[i].sent[peer], num_sent);
    }
    peers_[peer].sent.resize(static_cast<size_t>(num_sent));
    peers_[peer].order.resize(static_cast<size_t>(num_sent));
    all_sent += num_sent;
  }
  outgoing_.resize(static_cast<size_t>(all_sent));
}

// Work on own rows, and which chunk takes each row that is sent and which one returns it.
void ExpertRows::DivideRows(int num_parts) {
  parts_.Run(num_rows_, num_parts, [&](int part_idx, int32_t begin, int32_t end) {
    BeginPart& part = begin_parts_[part_idx];
    const size_t num_blocks = peers_.size() * static_cast<size_t>(num_chunks());
    part.blocks.assign(num_blocks, {});
    part.return_rows.assign(num_blocks, 0);
    Lists& pairs = num_parts == 1 ? pairs_of_chunk_ : part.pairs;
    if (num_parts > 1) ClearLists(pairs_of_chunk_.size(), pairs);
    std::fill(own_work_.begin() + begin, own_work_.begin() + end, -1);
    std::fill(partial_at_.begin() + begin * std::ssize(peers_),
              partial_at_.begin() + end * std::ssize(peers_), -1);
    std::vector<int32_t> next = part.sent;
    for (int32_t row = begin; row < end; ++row) {
      ForEachDestination(row, [&](Peer* peer, int32_t first, int32_t last) {
        if (peer == nullptr) return AddOwn(row, first, last, part, pairs);
        AddSent({row, first, last - first, 0, 0}, next[PeerIndex(*peer)]++, *peer, part);
      });
    }
  });
  for (int i = 0; num_parts > 1 && i < num_parts; ++i) {
    AppendLists(begin_parts_[i].pairs, pairs_of_chunk_);
  }
}

void ExpertRows::AddOwn(int32_t row, int32_t first, int32_t end, BeginPart& part, Lists& pairs) {
  const int32_t work_row = part.own_rows++;
  own_work_[row] = work_row;
  work_rows_[work_row] = {.row = row, .first_pair = part.own_pairs, .num_pairs = end - first};
  for (int32_t i = first; i < end; ++i) {
    const int32_t pair = part.own_pairs++;
    pairs_[pair] = {static_cast<uint16_t>(experts_[i]), weights_[i], work_row};
    if (by_experts()) pairs[chunk_of_[experts_[i] - own_experts_.first]].push_back(pair);
  }
}

void ExpertRows::AddSent(SentRow row, int32_t place, Peer& peer, BeginPart& part) {
  if (by_experts()) {
    const auto chunk_of = [&](int32_t i) {
      return peer.chunk_of[experts_[i] - peer.experts.first];
    };
    row.dispatch_chunk = chunk_of(row.first);
    row.return_chunk = chunk_of(row.first + row.count - 1);
  } else {
    row.dispatch_chunk = row.return_chunk =
        static_cast<int32_t>(int64_t{place} * num_chunks() / std::ssize(peer.sent));
  }
  peer.sent[place] = row;
  const int64_t blocks = PeerIndex(peer) * num_chunks();
  Counts& counts = part.blocks[blocks + row.dispatch_chunk];
  ++counts.rows;
  counts.pairs += row.count;
  ++part.return_rows[blocks + row.return_chunk];
}

// What the parts have of each block becomes where they begin in it.
void ExpertRows::CountBlocks(int num_parts, Peer& peer) {
  peer.out_counts.assign(static_cast<size_t>(num_chunks()), {});
  peer.sums_in_rows.assign(static_cast<size_t>(num_chunks()), 0);
  for (int i = 0; i < num_parts; ++i) {
    for (int chunk = 0; chunk < num_chunks(); ++chunk) {
      const int64_t block = PeerIndex(peer) * num_chunks() + chunk;
      Counts& all = peer.out_counts[chunk];
      Counts& of_part = begin_parts_[i].blocks[block];
      all.rows += std::exchange(of_part.rows, all.rows);
      all.pairs += std::exchange(of_part.pairs, all.pairs);
      peer.sums_in_rows[chunk] += begin_parts_[i].return_rows[block];
    }
  }
  Pad(peer);
  const int64_t num_sums = std::max<int64_t>(std::ssize(peer.sent), peer.sums_in_rows.back());
  CheckSize(peer.sums_in, num_sums * options_.return_row_bytes);
  peer.out_begin.assign(1, 0);
  peer.first_sent.assign(1, 0);
  for (const Counts& counts : peer.out_counts) {
    peer.out_begin.push_back(peer.out_begin.back() + BlockBytes(counts));
    peer.first_sent.push_back(peer.first_sent.back() + counts.rows);
  }
  CheckSize(peer.out, peer.out_begin.back());
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
void ExpertRows::WriteBlocks(int num_parts) {
  parts_.Run(num_parts, num_parts, [&](int part, int32_t, int32_t) {
    int64_t first_outgoing = 0;
    for (Peer& peer : peers_) {
      const int64_t peer_idx = PeerIndex(peer);
      const auto num_sent = static_cast<int32_t>(peer.sent.size());
      const int32_t end = part + 1 < num_parts ? begin_parts_[part + 1].sent[peer_idx] : num_sent;
      Counts* blocks = begin_parts_[part].blocks.data() + peer_idx * num_chunks();
      for (int32_t i = begin_parts_[part].sent[peer_idx]; i < end; ++i) {
        Counts& before = blocks[peer.sent[i].dispatch_chunk];
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
ExpertRows::Outgoing ExpertRows::WriteRow(const SentRow& row, const Counts& before, Peer& peer) {
  const Counts& counts = peer.out_counts[row.dispatch_chunk];
  std::byte* rows = peer.out.data() + peer.out_begin[row.dispatch_chunk];
  std::byte* sizes = rows + counts.padded_rows * options_.dispatch_row_bytes;
  std::byte* pairs = sizes + counts.rows;
  std::byte* size = sizes + before.rows;
  std::byte* number = pairs + before.pairs * kNumberBytes;
  std::byte* weight = pairs + counts.pairs * kNumberBytes + before.pairs * kWeightBytes;
  Write(size, static_cast<uint8_t>(row.count));
  for (int32_t pair = row.first; pair < row.first + row.count; ++pair) {
    Write(number, static_cast<uint16_t>(experts_[pair]));
    Write(weight, weights_[pair]);
  }
  return {row.row, rows + before.rows * options_.dispatch_row_bytes};
}

// Where each sum will be: those of a combine in the order in which their rows were sent.
void ExpertRows::PlaceSums(Peer& peer) {
  std::vector<int32_t> next(static_cast<size_t>(num_chunks()), 0);
  for (int chunk = 1; chunk < num_chunks(); ++chunk) {
    next[chunk] = next[chunk - 1] + peer.sums_in_rows[chunk - 1];
  }
  const int64_t peer_idx = PeerIndex(peer);
  for (const int32_t place : peer.order) {
    const SentRow& sent = peer.sent[place];
    partial_at_[sent.row * std::ssize(peers_) + peer_idx] = next[sent.return_chunk]++;
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
    if (Sends(options_.roles, options_.rank, peer.rank)) {
      send[peer.rank] = std::as_bytes(std::span(peer.out_counts));
    }
    if (Sends(options_.roles, peer.rank, options_.rank)) {
      receive[peer.rank] = std::as_writable_bytes(std::span(peer.in_counts));
    }
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
    if (Sends(options_.roles, peer.rank, options_.rank)) ArriveFrom(peer, chunk);
  }
}

void ExpertRows::ArriveFrom(Peer& peer, int chunk) {
  const Counts& counts = peer.in_counts[chunk];
  const std::byte* rows = peer.in.data() + peer.in_begin[chunk];
  const std::byte* sizes = rows + counts.padded_rows * options_.dispatch_row_bytes;
  const std::byte* numbers = sizes + counts.rows;
  const int num_parts = parts_.NumberFor(counts.pairs);
  if (std::ssize(arrived_parts_) < num_parts) {
    arrived_parts_.resize(static_cast<size_t>(num_parts));
  }
  // Each part's pairs begin behind those of the rows before it.
  int32_t num_pairs = 0;
  parts_.ForEach(counts.rows, num_parts, [&](int part, int32_t first, int32_t end) {
    arrived_parts_[part].first_pair = num_pairs;
    for (int32_t i = first; i < end; ++i) num_pairs += Read<uint8_t>(sizes + i);
  });
  CHECK(num_pairs == counts.pairs, "rank {} sent {} pairs as {}", peer.rank, num_pairs,
        counts.pairs);
  const ArrivedBlock block{.rows = rows,
                           .sizes = sizes,
                           .numbers = numbers,
                           .weights = numbers + num_pairs * kNumberBytes,
                           .first_work_row = static_cast<int32_t>(work_rows_.size()),
                           .first_pair = static_cast<int32_t>(pairs_.size()),
                           .chunk = chunk};
  work_rows_.resize(work_rows_.size() + static_cast<size_t>(counts.rows));
  pairs_.resize(pairs_.size() + static_cast<size_t>(counts.pairs));
  parts_.Run(counts.rows, num_parts, [&](int part_idx, int32_t first, int32_t end) {
    ArrivedPart& part = arrived_parts_[part_idx];
    if (num_parts == 1) {
      return ReadRows(block, first, end, part.first_pair, peer, pairs_of_chunk_, peer.returning);
    }
    ClearLists(pairs_of_chunk_.size(), part.pairs);
    ClearLists(pairs_of_chunk_.size(), part.returning);
    ReadRows(block, first, end, part.first_pair, peer, part.pairs, part.returning);
  });
  for (int i = 0; num_parts > 1 && i < num_parts; ++i) {
    AppendLists(arrived_parts_[i].pairs, pairs_of_chunk_);
    AppendLists(arrived_parts_[i].returning, peer.returning);
  }
  // What arrives now returns with this chunk or a later one. The combines of earlier ones may be
  // started meanwhile, by another thread.
  for (int i = chunk; i < num_chunks(); ++i) {
    peer.sums_out_rows[i] = static_cast<int32_t>(peer.returning[i].size());
  }
  if (options_.capacity_factor > 0) peer.sums_out_rows.front() = counts.padded_rows;
}

// Rows [first, end) of a block, whose pairs begin with `pair`.
void ExpertRows::ReadRows(const ArrivedBlock& block, int32_t first, int32_t end, int32_t pair,
                          const Peer& peer, Lists& pairs, Lists& returning) {
  for (int32_t i = first; i < end; ++i) {
    const int32_t work_row = block.first_work_row + i;
    WorkRow& work = work_rows_[work_row];
    work = {.data = block.rows + i * options_.dispatch_row_bytes,
            .first_pair = block.first_pair + pair,
            .num_pairs = Read<uint8_t>(block.sizes + i)};
    int32_t return_chunk = block.chunk;
    for (const int32_t last = pair + work.num_pairs; pair < last; ++pair) {
      const auto expert = Read<uint16_t>(block.numbers + pair * kNumberBytes);
      const int local = expert - own_experts_.first;
      CHECK(local >= 0 && local < own_experts_.size, "rank {} sent a row for expert {}", peer.rank,
            expert);
      const int32_t place = block.first_pair + pair;
      pairs_[place] = {expert, Read<float>(block.weights + pair * kWeightBytes), work_row};
      if (!by_experts()) continue;
      return_chunk = chunk_of_[local];
      pairs[return_chunk].push_back(place);
    }
    returning[return_chunk].push_back(work_row);
  }
}

std::vector<int> ExpertRows::WantedExperts(int chunk) const {
  CHECK(chunk < num_chunks(), "chunk {} of {} brings no rows", chunk, num_chunks());
  std::vector<bool> is_wanted(static_cast<size_t>(own_experts_.size));
  const auto want = [&](int expert) {
    const int local = expert - own_experts_.first;
    if (local >= 0 && local < own_experts_.size) is_wanted[local] = true;
  };
  for (const int32_t expert : experts_) want(expert);
  for (const Peer& peer : peers_) {
    for (int arrived = 0; arrived <= chunk; ++arrived) {
      const Counts& counts = peer.in_counts[arrived];
      const std::byte* numbers = peer.in.data() + peer.in_begin[arrived] +
                                 counts.padded_rows * options_.dispatch_row_bytes + counts.rows;
      for (int32_t pair = 0; pair < counts.pairs; ++pair) {
        want(Read<uint16_t>(numbers + pair * kNumberBytes));
      }
    }
  }
  std::vector<int> experts;
  for (int local = 0; local < own_experts_.size; ++local) {
    if (is_wanted[local]) experts.push_back(own_experts_.first + local);
  }
  return experts;
}

const ChunkSlots& ExpertRows::Select(int chunk) {
  if (chunk == selected_chunk_) return slots_;
  selected_chunk_ = chunk;
  auto first = static_cast<int32_t>(pairs_.size());
  const bool comes_in = chunk < num_chunks() && !peers_.empty();
  if (comes_in) Arrive(chunk);
  auto end = static_cast<int32_t>(pairs_.size());
  if (by_experts()) {
    // What is here for this group.
    const std::vector<int32_t>& pairs = pairs_of_chunk_[chunk];
    Assign(std::ssize(pairs), [&](int64_t i) { return pairs[i]; });
    return slots_;
  }
  if (num_chunks() == 1) {
    first = 0;
  } else if (!comes_in) {
    const int part = chunk - strategy::OwnChunk(options_.pipeline, 0);
    const strategy::Part rows = strategy::PartOf(num_own_work_, part, 2);
    const auto pair_of = [&](int row) {
      return row < num_own_work_ ? work_rows_[row].first_pair : num_own_pairs_;
    };
    first = pair_of(rows.first);
    end = pair_of(rows.first + rows.size);
  }
  Assign(end - first, [first](int64_t i) { return first + i; });
  return slots_;
}

template <typename F>
void ExpertRows::Assign(int64_t num_pairs, F&& pair_at) {
  const auto num_local = static_cast<size_t>(own_experts_.size);
  const int num_parts = parts_.NumberFor(num_pairs);
  if (std::ssize(next_slot_) < num_parts) next_slot_.resize(static_cast<size_t>(num_parts));
  const auto expert_of = [&](const ExpertPair& pair) { return pair.expert - own_experts_.first; };
  parts_.Run(num_pairs, num_parts, [&](int part, int32_t first, int32_t end) {
    next_slot_[part].assign(num_local, 0);
    for (int32_t i = first; i < end; ++i) ++next_slot_[part][expert_of(pairs_[pair_at(i)])];
  });
  const int first_slot = num_slots_;
  slots_.first_slot.assign(1, first_slot);
  for (size_t expert = 0; expert < num_local; ++expert) {
    for (int part = 0; part < num_parts; ++part) {
      num_slots_ += std::exchange(next_slot_[part][expert], num_slots_);
    }
    num_slots_ = std::max(num_slots_, slots_.first_slot.back() + PaddedRows());
    slots_.first_slot.push_back(num_slots_);
  }
  slots_.work_row.resize(static_cast<size_t>(num_slots_ - first_slot));
  if (PaddedRows() > 0) std::ranges::fill(slots_.work_row, -1);
  parts_.Run(num_pairs, num_parts, [&](int part, int32_t first, int32_t end) {
    for (int32_t i = first; i < end; ++i) {
      ExpertPair& pair = pairs_[pair_at(i)];
      pair.slot = next_slot_[part][expert_of(pair)]++;
      slots_.work_row[pair.slot - first_slot] = pair.work_row;
    }
  });
}

// Slots that each own expert has at least.
int ExpertRows::PaddedRows() const {
  if (options_.capacity_factor <= 0 || own_experts_.size == 0) return 0;
  int capacity = Capacity();
  for (const Peer& peer : peers_) {
    capacity += peer.in_counts.front().padded_rows / own_experts_.size;
  }
  return capacity;
}

std::span<const ExpertRows::Returning> ExpertRows::Returns(int chunk) {
  returning_.clear();
  for (Peer& peer : peers_) {
    for (const int32_t work_row : peer.returning[chunk]) {
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
    // A rank without experts may get sums before all of its rows are on their way.
    if (Sends(options_.roles, peer.rank, options_.rank)) {
      send[peer.rank] = block(peer.sums_out, peer.sums_out_rows);
    }
    if (Sends(options_.roles, options_.rank, peer.rank)) {
      receive[peer.rank] = block(peer.sums_in, peer.sums_in_rows);
    }
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
