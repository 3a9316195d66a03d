// Which rows a rank's experts compute, chunk by chunk, and where they come from and return to: its
// own rows, and those that other ranks dispatch. Bookkeeping and exchange; the arithmetic is
// feed_forward.h.
//
// Grouping is a counting sort, linear in the pairs of row and expert, however many chunks there
// are: where a row is routed, its pairs are counted and then written to the block of their
// destination and chunk; where they are computed, read and noted under their chunk as they arrive,
// and counted and placed by expert once the chunk is selected. The threads of a pool share this
// where there are many pairs; the order of rows and slots does not depend on that
// (docs/results/grouping.md).
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
#include "device/row_parts.h"
#include "hardware/thread_pool.h"
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
  int32_t work_row = -1;
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
    // Shares the grouping of many pairs, and is free where Begin and Select are called; null: the
    // caller does all of it.
    hardware::ThreadPool* pool = nullptr;
  };
  // `group` may be null where there is one rank. Takes MemoryBytes of `memory`.
  ExpertRows(const Options& options, comm::Group* group, ExchangeMemory& memory);

  // What rows to and from all other ranks take at most.
  static int64_t MemoryBytes(const Options& options);

  // How the layers from here on are divided and cut; the same on all ranks. The buffers have room
  // for what these roles need. `own_chunks`: of one rank alone, which exchanges nothing, into how
  // many chunks its experts are cut.
  void Use(const strategy::Roles& roles, const strategy::Pipeline& pipeline, int own_chunks = 1);

  // The routing of a layer's own rows: (num_rows, top_k), experts in increasing order per row.
  void Begin(int layer, int num_experts, int top_k, std::span<const int32_t> experts,
             std::span<const float> weights);

  // Where each row that goes out must be written: `to`, of own row `row`. Once after Begin.
  struct Outgoing {
    int32_t row = 0;
    std::byte* to = nullptr;
  };
  std::span<const Outgoing> outgoing() const { return outgoing_; }

  // A rank that owns no rows calls Begin with none before it.
  std::unique_ptr<comm::Exchange> StartCounts();
  std::unique_ptr<comm::Exchange> StartDispatch(int chunk);
  std::unique_ptr<comm::Exchange> StartCombine(int chunk);

  // Experts of this rank, by their number in the layer, that rows of chunks up to `chunk` want: its
  // own rows, and those that have arrived; each once, in increasing order. Once the dispatch of the
  // chunk is done; beside Select, Returns and exchanges of the layer.
  std::vector<int> WantedExperts(int chunk) const;

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
  using Lists = std::vector<std::vector<int32_t>>;  // by chunk
  struct Peer {
    int rank = 0;
    strategy::Part experts = {};     // of the layer in work
    std::vector<int32_t> chunk_of;   // of each of them, where chunks are cut by experts
    std::vector<SentRow> sent;       // in the order of rows
    std::vector<int32_t> order;      // places in `sent`, in the order in which they go out
    std::vector<Counts> out_counts;  // per dispatch chunk, as in_counts
    std::vector<Counts> in_counts;
    std::vector<int32_t> first_sent;  // of each chunk in `order`, and the end
    std::vector<int64_t> out_begin;   // of each chunk's block in `out`, and the end
    std::vector<int64_t> in_begin;
    std::span<std::byte> out;
    std::span<std::byte> in;
    std::span<std::byte> sums_out;      // what returns to the peer
    std::span<std::byte> sums_in;       // what returns from it
    std::vector<int32_t> sums_in_rows;  // per combine chunk
    std::vector<int32_t> sums_out_rows;
    Lists returning;           // by combine chunk the work rows, in the order of arrival
    int32_t num_returned = 0;  // sums given out by Returns
  };
  // What a part of the rows has, and then where it begins.
  struct BeginPart {
    int32_t own_rows = 0;
    int32_t own_pairs = 0;
    std::vector<int32_t> sent;         // by peer
    std::vector<Counts> blocks;        // by peer and dispatch chunk
    std::vector<int32_t> return_rows;  // by peer and combine chunk
    Lists pairs;                       // own ones by chunk, as pairs_of_chunk_
  };
  struct ArrivedPart {
    int32_t first_pair = 0;
    Lists pairs;
    Lists returning;  // as Peer::returning
  };

  // What a peer's dispatch has brought, and where it goes.
  struct ArrivedBlock {
    const std::byte* rows;
    const std::byte* sizes;
    const std::byte* numbers;
    const std::byte* weights;
    int32_t first_work_row;
    int32_t first_pair;
    int chunk;
  };

  static void TakeBuffers(const Options& options, int peer_rank, ExchangeMemory& memory,
                          Peer& peer);
  // Whether rows of the one rank may go to experts of the other.
  static bool Sends(const strategy::Roles& roles, int from, int to) {
    return roles.of(from).owns_rows() && roles.of(to).has_experts();
  }
  int64_t BlockBytes(const Counts& counts) const {
    const int64_t used =
        counts.padded_rows * options_.dispatch_row_bytes + counts.rows + int64_t{6} * counts.pairs;
    return (used + 3) / 4 * 4;
  }
  bool by_experts() const {
    return num_chunks() > 1 && options_.pipeline.cut == strategy::ChunkCut::kExperts;
  }
  // Calls f(rank's peer or null for this rank, first, end) for each rank that the row goes to; the
  // rank's experts among those that it chose are places [first, end) of the routing.
  template <typename F>
  void ForEachDestination(int32_t row, F&& f);
  void CutLayer(int num_experts);
  void CutExperts(const strategy::Part& experts, std::vector<int32_t>& chunk_of) const;
  void CountRows(int num_parts);
  void DivideRows(int num_parts);
  void AddOwn(int32_t row, int32_t first, int32_t end, BeginPart& part, Lists& pairs);
  void AddSent(SentRow row, int32_t place, Peer& peer, BeginPart& part);
  void CountBlocks(int num_parts, Peer& peer);
  void WriteBlocks(int num_parts);
  Outgoing WriteRow(const SentRow& row, const Counts& before, Peer& peer);
  void PlaceSums(Peer& peer);
  int64_t PeerIndex(const Peer& peer) const { return &peer - peers_.data(); }
  void Pad(Peer& peer) const;
  int Capacity() const;  // rows of each expert from this rank
  void Arrive(int chunk);
  void ArriveFrom(Peer& peer, int chunk);
  void ReadRows(const ArrivedBlock& block, int32_t first, int32_t end, int32_t pair,
                const Peer& peer, Lists& pairs, Lists& returning);
  // Gives `num_pairs` pairs their slots, sorted by expert; the i-th of them is pair_at(i).
  template <typename F>
  void Assign(int64_t num_pairs, F&& pair_at);
  int PaddedRows() const;
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
  std::vector<int32_t> chunk_of_;  // of each own expert, where chunks are cut by experts
  bool is_cut_ = false;            // the tables above are those of the pipeline
  std::span<const int32_t> experts_;
  std::span<const float> weights_;
  std::vector<Outgoing> outgoing_;
  std::vector<WorkRow> work_rows_;
  std::vector<ExpertPair> pairs_;
  std::vector<int32_t> own_work_;  // by own row
  int32_t num_own_work_ = 0;       // own tokens among work_rows_, the first of them
  int32_t num_own_pairs_ = 0;
  std::vector<int32_t> partial_at_;  // (own rows, peers): place in sums_in, or -1
  Lists pairs_of_chunk_;             // places in pairs_, where chunks are cut by experts
  int selected_chunk_ = -1;          // -1: none yet
  std::vector<Returning> returning_;
  ChunkSlots slots_;
  int num_slots_ = 0;
  bool in_buffers_ready_ = false;
  RowParts parts_;
  std::vector<BeginPart> begin_parts_;
  std::vector<ArrivedPart> arrived_parts_;
  Lists next_slot_;  // by part and own expert
};

}  // namespace convene::device
