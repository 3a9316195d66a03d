// The receiving side of ExpertRows (expert_rows.h): reads the blocks that other ranks dispatch to
// this one's experts, and knows which sums return for them, and in which order. Sending is
// sent_rows.h.
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

class ReceivedRows {
 public:
  // Keeps references to all but `memory`, of which it takes its buffers.
  ReceivedRows(const ExpertRowsOptions& options, const ExpertPlacement& placement,
               const RowParts& parts, ExchangeMemory& memory);

  // Of the layer that the placement is in nothing has come yet.
  void Begin();

  // What a peer's blocks have, by dispatch chunk, to be received.
  std::span<BlockCounts> BeginCounts(int peer);
  // Once those of all peers are there, whether or not they were: where blocks come to.
  void PlaceBlocks();
  std::span<std::byte> block(int peer, int chunk) const;

  // Once the dispatch of the chunk is done: what it brought goes to `work`. In order.
  void Read(int chunk, ExpertWork& work);

  // The sums that combine `chunk` returns, and where to write them. Once per chunk, in order.
  struct Returning {
    int32_t work_row = 0;
    std::byte* to = nullptr;
  };
  std::span<const Returning> Returns(int chunk);
  std::span<const std::byte> sums(int peer, int chunk) const;
  // How many they are, with padding.
  int32_t num_sums(int peer, int chunk) const { return peers_[peer].num_sums[chunk]; }

  // Calls f(expert) for each pair that has come with chunks up to `chunk`; beside Read.
  template <typename F>
  void ForEachWanted(int chunk, F&& f) const {
    for (const Peer& peer : peers_) {
      for (int arrived = 0; arrived <= chunk; ++arrived) {
        const DispatchBlock block = BlockOf(peer, arrived);
        for (int32_t pair = 0; pair < peer.counts[arrived].pairs; ++pair) f(block.expert(pair));
      }
    }
  }
  // Rows of each own expert from all peers, where they are padded.
  int PaddedRows() const;

 private:
  struct Peer {
    std::vector<BlockCounts> counts;  // by dispatch chunk
    std::vector<int64_t> begin;       // of each chunk's block, and the end
    std::vector<int32_t> num_sums;    // by combine chunk
    ChunkLists returning;             // by combine chunk the work rows, in the order of arrival
    int32_t num_returned = 0;         // sums given out by Returns
    PeerBuffers buffers;
  };
  // A part of the rows of a block that has come, and where they and their pairs go.
  struct Arrived {
    int32_t first_work_row = 0;
    int32_t first_pair = 0;
    int chunk = 0;
    int rank = 0;
  };
  struct Part {
    int32_t first_pair = 0;
    ChunkLists pairs;
    ChunkLists returning;  // as Peer::returning
  };

  DispatchBlock BlockOf(const Peer& peer, int chunk) const {
    return {peer.buffers.blocks.data() + peer.begin[chunk], peer.counts[chunk],
            options_.dispatch_row_bytes};
  }
  void ReadFrom(int peer_idx, int chunk, ExpertWork& work);
  void ReadRows(const DispatchBlock& block, const Arrived& arrived, int32_t first, int32_t end,
                int32_t pair, ExpertWork& work, ChunkLists& pairs, ChunkLists& returning) const;

  const ExpertRowsOptions& options_;
  const ExpertPlacement& placement_;
  const RowParts& row_parts_;
  std::vector<Peer> peers_;
  std::vector<Returning> returning_;
  bool are_placed_ = false;  // the layer's blocks
  std::vector<Part> parts_;
};

}  // namespace convene::device
