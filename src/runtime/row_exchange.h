// What ranks exchange of a frame's rows besides the experts' (expert_rows.h): normed rows and
// partial sums of those that divide attention's heads, and the rows whose logits are wanted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/wire_format.h"
#include "runtime/exchange_memory.h"
#include "runtime/forward_context.h"
#include "runtime/layer.h"
#include "strategy/role.h"

namespace convene::runtime {

struct Frame;

// A frame's memory for it, as large as any step needs it; none that these roles do not need.
struct RowBuffers {
  std::span<float> squares;                    // (parts, rows, 2)
  std::span<std::byte> sums_out;               // (rows, row_bytes)
  std::span<std::byte> sums_in;                // (parts, own rows, row_bytes)
  std::vector<std::span<std::byte>> gathered;  // by rank
};

class RowExchange {
 public:
  struct Options {
    strategy::Roles roles = {};
    int rank = 0;
    comm::WireFormat wire = comm::WireFormat::kBf16;
    int most_tokens = 0;  // of the rank's sequences in a step
    int most_rows = 0;    // own ones of any rank
  };
  // `group` may be null where there is one rank.
  RowExchange(ForwardContext& context, const Options& options, comm::Group* group);

  // Of a frame.
  static RowBuffers TakeBuffers(const model::ModelSpec& spec, kernels::ActivationFormat activations,
                                const Options& options, ExchangeMemory& memory);

  // normed: own rows go to the others, theirs come to their places.
  std::unique_ptr<comm::Exchange> StartGatherNormed(const Frame& frame, std::string what);

  // Sums of squares of projections that are normalised as a whole, over heads here and elsewhere.
  void SumSquares(const Frame& frame, const model::AttentionSpec& local);
  std::unique_ptr<comm::Exchange> StartNormSums(const Frame& frame, std::string what);
  // Normalises queries and keys in qkv; `whole` is the layer as all ranks together have it.
  void NormalizeWhole(const Frame& frame, const model::AttentionSpec& local,
                      const model::AttentionSpec& whole, std::span<const float> query_norm,
                      std::span<const float> key_norm);

  // partial_out to the owners, and the sum of all parts, times `scale`, to hidden.
  void PackPartials(const Frame& frame);
  std::unique_ptr<comm::Exchange> StartScatterSums(const Frame& frame, std::string what);
  void AddPartials(const Frame& frame, float scale);

  // Rank 0 gets everybody's rows of `buffer` whose output is wanted: all own rows, or none. With
  // them every rank gets `statuses` of all others (by rank; its own is sent), which ends a step.
  std::unique_ptr<comm::Exchange> StartGatherRows(const Frame& frame, const RowBuffer& buffer,
                                                  std::span<uint32_t> statuses);
  // After it, on rank 0: a row of the same buffer.
  const std::byte* GatheredRow(const Frame& frame, const RowBuffer& buffer, int rank,
                               int row_idx) const;

 private:
  const strategy::AttentionRole& own() const { return *roles_.of(rank_).attention; }
  int RankOfPart(int part) const { return roles_.RankOfPart(own().group, part); }
  size_t row_bytes() const {
    return comm::RowBytes(wire_, static_cast<size_t>(context_.spec().hidden_size));
  }

  ForwardContext& context_;
  strategy::Roles roles_;
  int rank_;
  comm::WireFormat wire_;
  comm::Group* group_;
};

}  // namespace convene::runtime
