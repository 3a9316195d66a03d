// The sending side of ExpertRows (expert_rows.h): divides a rank's own rows among the ranks and
// chunks of their experts, writes the blocks that go out, but for the rows themselves, and knows
// where the sums will be that return for them. Receiving is received_rows.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/dispatch_block.h"
#include "device/exchange_memory.h"
#include "device/expert_placement.h"
#include "device/expert_rows_options.h"
#include "device/expert_work.h"
#include "device/row_parts.h"

namespace convene::device {

// Of a layer's own rows.
struct RowRouting {
  int top_k = 1;
  std::span<const int32_t> experts = {};  // (rows, top_k), in increasing order per row
  std::span<const float> weights = {};    // as experts

  int num_rows() const { return static_cast<int>(std::ssize(experts) / top_k); }
};

class SentRows {
 public:
  // Keeps references to all but `memory`, of which it takes its buffers.
  SentRows(const ExpertRowsOptions& options, const ExpertPlacement& placement,
           const RowParts& parts, ExchangeMemory& memory);

  // The routing, whose memory stays until the next one, of the layer that the placement is in. What
  // is this rank's own goes to `work`, which has none yet.
  void Begin(const RowRouting& routing, ExpertWork& work);
  const RowRouting& routing() const { return routing_; }

  // Where each row that goes out must be written: `to`, of own row `row`.
  struct Outgoing {
    int32_t row = 0;
    std::byte* to = nullptr;
  };
  std::span<const Outgoing> outgoing() const { return outgoing_; }

  // By dispatch chunk, what a peer's blocks have; and these, which are complete once all of
  // outgoing() is written.
  std::span<const BlockCounts> counts(int peer) const { return peers_[peer].counts; }
  std::span<const std::byte> block(int peer, int chunk) const;
  // Where the sums of a combine come to.
  std::span<std::byte> sums(int peer, int chunk) const;

  // What peers returned of an own row.
  struct Partial {
    int32_t expert = 0;  // the first of the share whose sum it is
    const std::byte* data = nullptr;
  };
  // At most one per rank; returns how many.
  int Partials(int row, Partial* partials) const;

  // Rows of each expert from this rank, where they are padded.
  int Capacity() const;

 private:
  // A row that is sent: the routing's experts [first, first + count).
  struct SentRow {
    int32_t row;
    int32_t first;
    int32_t count;
    int32_t dispatch_chunk;
    int32_t return_chunk;
  };
  struct Peer {
    std::vector<SentRow> sent;        // in the order of rows
    std::vector<int32_t> order;       // places in `sent`, in the order in which they go out
    std::vector<BlockCounts> counts;  // by dispatch chunk
    std::vector<int32_t> first_sent;  // of each chunk in `order`, and the end
    std::vector<int64_t> begin;       // of each chunk's block, and the end
    std::vector<int32_t> num_sums;    // by combine chunk
    PeerBuffers buffers;
  };
  // What a part of the rows has, and then where it begins.
  struct Part {
    int32_t own_rows = 0;
    int32_t own_pairs = 0;
    std::vector<int32_t> sent;        // by peer
    std::vector<BlockCounts> blocks;  // by peer and dispatch chunk
    std::vector<int32_t> num_sums;    // by peer and combine chunk
    ChunkLists pairs;                 // own ones, as ExpertWork::pairs_of_chunk
  };

  int num_chunks() const { return placement_.num_chunks(); }
  template <typename F>
  void ForEachDestination(int32_t row, F&& f) const {
    placement_.ForEachDestination(routing_.experts.data(), row * routing_.top_k,
                                  (row + 1) * routing_.top_k, f);
  }
  void CountRows(int num_parts, ExpertWork& work);
  void DivideRows(int num_parts, ExpertWork& work);
  void AddOwn(int32_t row, int32_t first, int32_t end, Part& part, ChunkLists& pairs,
              ExpertWork& work) const;
  void AddSent(SentRow row, int32_t place, int peer_idx, Part& part);
  void CountBlocks(int num_parts, int peer_idx);
  void Pad(int peer_idx);
  void WriteBlocks(int num_parts);
  Outgoing WriteRow(const SentRow& row, const BlockCounts& before, const Peer& peer) const;
  void PlaceSums(int peer_idx);

  const ExpertRowsOptions& options_;
  const ExpertPlacement& placement_;
  const RowParts& row_parts_;
  std::vector<Peer> peers_;
  RowRouting routing_;
  std::vector<Outgoing> outgoing_;
  std::vector<int32_t> partial_at_;  // (own rows, peers): place among a peer's sums, or -1
  std::vector<Part> parts_;
};

}  // namespace convene::device
