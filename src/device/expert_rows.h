// Which rows a rank's experts compute, chunk by chunk, and where they come from and return to: its
// own rows, and those that other ranks dispatch. Bookkeeping and exchange; the arithmetic is
// feed_forward.h.
//
// What goes to a peer in one dispatch is a block: the rows as the wire has them, then a byte per
// row, how many of the receiver's experts it wants, then their numbers (uint16) and weights
// (float). What returns is a sum per row, in the order in which the rows of that combine were sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"
#include "device/exchange_memory.h"
#include "strategy/role.h"
#include "strategy/step.h"

namespace convene::device {

// Of the group: each lane that exchanges has a queue of its own.
inline constexpr int kDispatchQueue = 0;
inline constexpr int kCombineQueue = 1;

// A token with experts on this rank, pairs [first_pair, first_pair + num_pairs).
struct WorkRow {
  const std::byte* data = nullptr;  // null: own row `row`; otherwise as dispatched
  int32_t row = 0;
  int32_t first_pair = 0;
  int32_t num_pairs = 0;
  int32_t return_chunk = 0;
};

struct ExpertPair {
  uint16_t expert = 0;  // its number in the whole layer
  float weight = 0;
  int32_t slot = -1;  // where its output is, once its chunk is selected
};

// The work of one experts task, sorted by expert: slots [first_slot[e], first_slot[e + 1]) are
// those of the rank's e-th expert.
struct ChunkSlots {
  std::vector<int32_t> first_slot;
  std::vector<int32_t> work_row;  // of each slot, from first_slot[0] on; -1: padding
};

class ExpertRows {
 public:
  struct Options {
    strategy::Roles roles = {};
    strategy::Pipeline pipeline = {};
    int rank = 0;
    int64_t dispatch_row_bytes = 0;
    int64_t return_row_bytes = 0;
    // Above 0: as the padded baseline of papers has it (one chunk only). Each expert takes capacity
    // = factor * own tokens * top_k / experts rows from each rank, which are sent, computed and
    // returned whether or not there are so many; more than that are taken, too.
    double capacity_factor = 0;
    // Most own rows of any rank, the same with padding, and (row, expert) pairs of theirs that one
    // rank gets; of any layer, for the sizes of buffers.
    int64_t most_rows = 0;
    int64_t most_padded_rows = 0;
    int64_t most_pairs = 0;
  };
  // `group` may be null where there is one rank. Takes MemoryBytes of `memory`.
  ExpertRows(const Options& options, comm::Group* group, ExchangeMemory& memory);

  // What rows to and from all other ranks take at most.
  static int64_t MemoryBytes(const Options& options);

  // How the layers from here on are cut; the same on all ranks.
  void UsePipeline(const strategy::Pipeline& pipeline) {
    // One rank's schedule has one chunk, whatever the plan says.
    options_.pipeline = peers_.empty() ? strategy::Pipeline{} : pipeline;
  }

  // The routing of a layer's own rows: (num_rows, top_k), experts in increasing order per row.
  void Begin(int layer, int num_experts, int top_k, std::span<const int32_t> experts,
             std::span<const float> weights);

  // Where each row that goes out must be written: `to`, of own row `row`. Once after Begin.
  struct Outgoing {
    int32_t row = 0;
    std::byte* to = nullptr;
  };
  std::span<const Outgoing> outgoing() const { return outgoing_; }

  std::unique_ptr<comm::Exchange> StartCounts();
  std::unique_ptr<comm::Exchange> StartDispatch(int chunk);
  std::unique_ptr<comm::Exchange> StartCombine(int chunk);

  // The slots of experts task `chunk`, behind those of the chunks selected before; again, the same.
  const ChunkSlots& Select(int chunk);
  const ChunkSlots& selected() const { return slots_; }  // by the last Select
  const std::vector<WorkRow>& work_rows() const { return work_rows_; }
  const std::vector<ExpertPair>& pairs() const { return pairs_; }

  // The sums that combine `chunk` returns, and where to write them. Once per chunk, in order.
  struct Returning {
    int32_t work_row = 0;
    std::byte* to = nullptr;
  };
  std::span<const Returning> Returns(int chunk);

  // Own row `row`'s pairs on this rank; null: none.
  const WorkRow* own_work(int row) const {
    return own_work_[row] < 0 ? nullptr : &work_rows_[own_work_[row]];
  }
  // What peers returned of it.
  struct Partial {
    int32_t expert = 0;  // the first of the share whose sum it is
    const std::byte* data = nullptr;
  };
  // At most one per rank; returns how many.
  int Partials(int row, Partial* partials) const;

  int num_chunks() const { return options_.pipeline.chunks; }
  int first_expert() const { return own_experts_.first; }
  int num_local_experts() const { return own_experts_.size; }
  // Rows sent to and sums returned by each rank, per chunk, of the current layer.
  int64_t sent_rows(int rank, int chunk) const;
  int64_t returned_rows(int rank, int chunk) const;

 private:
  // A row that is sent: experts_[first .. first + count) of the routing.
  struct SentRow {
    int32_t row;
    int32_t first;
    int32_t count;
    int32_t dispatch_chunk;
    int32_t return_chunk;
  };
  struct Counts {
    int32_t rows = 0;
    int32_t pairs = 0;
    int32_t padded_rows = 0;  // at least rows
  };
  static_assert(sizeof(Counts) == strategy::kCountsBytes);
  struct Peer {
    int rank = 0;
    strategy::Part experts = {};  // of the layer in work
    std::vector<SentRow> sent;
    std::vector<Counts> out_counts;  // per dispatch chunk, as in_counts
    std::vector<Counts> in_counts;
    std::vector<int64_t> out_begin;  // of each chunk's block in `out`, and the end
    std::vector<int64_t> in_begin;
    std::span<std::byte> out;
    std::span<std::byte> in;
    std::span<std::byte> sums_out;      // what returns to the peer
    std::span<std::byte> sums_in;       // what returns from it
    std::vector<int32_t> sums_in_rows;  // per combine chunk
    std::vector<int32_t> sums_out_rows;
    std::vector<int32_t> arrived;  // work rows, in the order of arrival
    int32_t num_returned = 0;      // sums given out by Returns
  };

  static void TakeBuffers(const Options& options, ExchangeMemory& memory, Peer& peer);
  int64_t BlockBytes(const Counts& counts) const {
    const int64_t used =
        counts.padded_rows * options_.dispatch_row_bytes + counts.rows + int64_t{6} * counts.pairs;
    return (used + 3) / 4 * 4;
  }
  bool by_experts() const {
    return num_chunks() > 1 && options_.pipeline.cut == strategy::ChunkCut::kExperts;
  }
  // Where chunks are cut by experts.
  int GroupOf(int expert, const strategy::Part& experts) const {
    return static_cast<int>(int64_t{expert - experts.first} * num_chunks() / experts.size);
  }
  void CutIntoChunks(Peer& peer);
  void WriteBlocks(Peer& peer);
  void Pad(Peer& peer) const;
  int Capacity() const;  // rows of each expert from this rank
  void Arrive(int chunk);
  void Assign(const std::vector<int32_t>& work_rows, int chunk);
  std::string NameOf(const char* exchange, int chunk) const;

  Options options_;
  comm::Group* group_;
  std::vector<Peer> peers_;   // all other ranks
  std::vector<int> peer_of_;  // by rank; -1: this one
  int layer_ = 0;
  int num_experts_ = 0;
  int top_k_ = 0;
  int num_rows_ = 0;
  strategy::Part own_experts_;
  std::vector<int32_t> share_of_;  // by expert
  std::span<const int32_t> experts_;
  std::span<const float> weights_;
  std::vector<Outgoing> outgoing_;
  std::vector<WorkRow> work_rows_;
  std::vector<ExpertPair> pairs_;
  std::vector<int32_t> own_work_;    // by own row
  std::vector<int32_t> own_rows_;    // work rows of own tokens
  std::vector<int32_t> partial_at_;  // (own rows, peers): place in sums_in, or -1
  std::vector<int32_t> selected_;
  int selected_chunk_ = -1;  // -1: none yet
  std::vector<Returning> returning_;
  ChunkSlots slots_;
  std::vector<int32_t> next_slot_;
  int num_slots_ = 0;
  bool in_buffers_ready_ = false;
};

}  // namespace convene::device
