// Which rows a rank's experts compute, chunk by chunk, and where they come from and return to: its
// own rows, and those that other ranks dispatch. Bookkeeping and exchange; the arithmetic is
// feed_forward.h. Its parts are the division of own rows (sent_rows.h), what arrives
// (received_rows.h), and the order in which experts compute both (expert_work.h).
//
// Grouping is a counting sort, linear in the pairs of row and expert, however many chunks there
// are: where a row is routed, its pairs are counted and then written to the block of their
// destination and chunk (dispatch_block.h); where they are computed, read and noted under their
// chunk as they arrive, and counted and placed by expert once the chunk is selected. The threads of
// a pool share this where there are many pairs; the order of rows and slots does not depend on that
// (docs/results/grouping.md).
//
// Of a dispatch returns a sum per row, in the order in which the rows of that combine were sent.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"
#include "device/exchange_memory.h"
#include "device/expert_placement.h"
#include "device/expert_rows_options.h"
#include "device/expert_work.h"
#include "device/received_rows.h"
#include "device/row_parts.h"
#include "device/sent_rows.h"
#include "strategy/role.h"
#include "strategy/step.h"

namespace convene::device {

// Of the group: each lane that exchanges has a queue of its own.
inline constexpr int kDispatchQueue = 0;
inline constexpr int kCombineQueue = 1;

class ExpertRows {
 public:
  using Options = ExpertRowsOptions;
  using Outgoing = SentRows::Outgoing;
  using Partial = SentRows::Partial;
  using Returning = ReceivedRows::Returning;

  // `group` may be null where there is one rank. Takes MemoryBytes of `memory`.
  ExpertRows(const Options& options, comm::Group* group, ExchangeMemory& memory);
  ExpertRows(const ExpertRows&) = delete;
  ExpertRows& operator=(const ExpertRows&) = delete;

  // What rows to and from all other ranks take at most.
  static int64_t MemoryBytes(const Options& options);

  // How the layers from here on are divided and cut; the same on all ranks. The buffers have room
  // for what these roles need. `own_chunks`: of one rank alone, which exchanges nothing, into how
  // many chunks its experts are cut.
  void Use(const strategy::Roles& roles, const strategy::Pipeline& pipeline, int own_chunks = 1);

  // The routing of a layer's own rows: (num_rows, top_k), experts in increasing order per row.
  void Begin(int layer, int num_experts, int top_k, std::span<const int32_t> experts,
             std::span<const float> weights);

  // Where each row that goes out must be written. Once after Begin.
  std::span<const Outgoing> outgoing() const { return sent_.outgoing(); }

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
  const ChunkSlots& selected() const { return work_.slots(); }  // by the last Select
  const std::vector<WorkRow>& work_rows() const { return work_.rows; }
  const std::vector<ExpertPair>& pairs() const { return work_.pairs; }

  // The sums that combine `chunk` returns, and where to write them. Once per chunk, in order.
  std::span<const Returning> Returns(int chunk) { return received_.Returns(chunk); }

  // Own row `row`'s pairs on this rank; null: none.
  const WorkRow* own_work(int row) const {
    const int32_t work_row = work_.of_own_row[row];
    return work_row < 0 ? nullptr : &work_.rows[work_row];
  }
  // What peers returned of it, at most one per rank; returns how many.
  int Partials(int row, Partial* partials) const { return sent_.Partials(row, partials); }

  int num_chunks() const { return placement_.num_chunks(); }
  int first_expert() const { return placement_.own().first; }
  int num_local_experts() const { return placement_.own().size; }
  // Rows sent to and sums returned by each rank, per chunk, of the current layer.
  int64_t sent_rows(int rank, int chunk) const;
  int64_t returned_rows(int rank, int chunk) const;

 private:
  // That each own expert has in a chunk, where they are padded.
  int FewestSlots() const;
  std::string NameOf(const char* exchange, int chunk) const;

  Options options_;
  comm::Group* group_;
  RowParts parts_;
  ExpertPlacement placement_;
  SentRows sent_;
  ReceivedRows received_;
  ExpertWork work_;
  int layer_ = 0;
  int selected_chunk_ = -1;  // -1: none yet
};

}  // namespace convene::device
