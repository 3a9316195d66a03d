// What ranks exchange of rows besides the experts' (expert_rows.h): normed rows and partial sums of
// those that divide attention's heads, and the rows whose logits are wanted.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/wire_format.h"
#include "runtime/forward_context.h"
#include "runtime/layer.h"
#include "strategy/layout.h"

namespace convene::runtime {

class RowExchange {
 public:
  // `group` may be null where the layout has one rank.
  RowExchange(ForwardContext& context, const strategy::Layout& layout, int rank,
              comm::WireFormat wire, comm::Group* group);

  // Rows of the group's sequences that each rank of it owns; ranges in the order of ranks.
  void SetOwners(std::vector<OwnRows> owners) { owners_ = std::move(owners); }
  OwnRows own() const { return owners_[layout_.attention_part(rank_)]; }

  // normed: own rows go to the others, theirs come to their places.
  std::unique_ptr<comm::Exchange> StartGatherNormed(std::string what);

  // Sums of squares of projections that are normalised as a whole, over heads here and elsewhere.
  void SumSquares(const model::AttentionSpec& local, int num_rows);
  std::unique_ptr<comm::Exchange> StartNormSums(int num_rows, std::string what);
  // Normalises queries and keys in qkv; `whole` is the layer as all ranks together have it.
  void NormalizeWhole(const model::AttentionSpec& local, const model::AttentionSpec& whole,
                      std::span<const float> query_norm, std::span<const float> key_norm,
                      int num_rows);

  // partial_out to the owners, and the sum of all parts, times `scale`, to hidden.
  void PackPartials();
  std::unique_ptr<comm::Exchange> StartScatterSums(std::string what);
  void AddPartials(float scale);

  // Rank 0 gets everybody's rows of `buffer` whose output is wanted: all own rows, or none.
  // `counts` of them by rank, used there only.
  std::unique_ptr<comm::Exchange> StartGatherRows(const RowBuffer& buffer, int num_wanted,
                                                  std::span<const int> counts);
  // After it, on rank 0: a row of the same buffer.
  const std::byte* GatheredRow(const RowBuffer& buffer, int rank, int row_idx) const;

 private:
  int first_rank() const { return layout_.attention_group(rank_) * layout_.attention_tp; }
  size_t row_bytes() const {
    return comm::RowBytes(wire_, static_cast<size_t>(context_.spec().hidden_size));
  }

  ForwardContext& context_;
  strategy::Layout layout_;
  int rank_;
  comm::WireFormat wire_;
  comm::Group* group_;
  std::vector<OwnRows> owners_;                   // by part of the heads
  std::vector<float> squares_;                    // (parts, rows, 2)
  std::vector<std::byte> sums_out_;               // (rows, row_bytes)
  std::vector<std::byte> sums_in_;                // (parts, own rows, row_bytes)
  std::vector<float> unpacked_;                   // (threads, parts, hidden)
  std::vector<std::vector<std::byte>> gathered_;  // by rank
};

}  // namespace convene::runtime
