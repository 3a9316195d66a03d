// Moves the experts of a layer between the ranks, from their division in one phase to that in the
// other: what each rank lacks comes from the one rank that has it. When is transformer.h; which
// layers, and what that costs, strategy/transition.h.
//
// What goes from a rank to another one is cut into pieces, some columns of an expert each, which
// are packed like any expert; the exchange goes in rounds of a few pieces for each pair of ranks,
// so that their memory is bounded, whatever the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "comm/group.h"
#include "hardware/thread_pool.h"
#include "memory/ledger.h"
#include "model/model_spec.h"
#include "strategy/role.h"
#include "weights/expert_parts.h"
#include "weights/phased_weights.h"

namespace convene::runtime {

class ExpertMover {
 public:
  // Most bytes of pieces that a rank sends in a round, and that it receives: what hides the latency
  // of a round many times. More only where a piece of the fewest columns to every other rank is
  // more.
  static constexpr int64_t kMostRoundBytes = int64_t{16} << 20;

  struct Phases {
    strategy::Roles prefill;
    strategy::Roles decode;
    int64_t most_round_bytes = kMostRoundBytes;
  };
  // What Create reserves, as exchange buffers; 0: nothing moves.
  static uint64_t StagingBytes(const model::ModelSpec& whole, const weights::WeightFormats& formats,
                               const Phases& phases);

  // Keeps references to all but `phases`. `pool`: its threads copy; null: the caller does. Error:
  // memory that cannot be had.
  static Result<std::unique_ptr<ExpertMover>> Create(weights::PhasedWeights& weights,
                                                     const Phases& phases, comm::Group& group,
                                                     hardware::ThreadPool* pool,
                                                     memory::Ledger& ledger);

  // *Collective*: all ranks. The exchange of a layer of the decoder that has experts; when it is
  // complete, the layer has those of `phase`. Copies are made while it is started and tested, on
  // the thread that does so.
  std::unique_ptr<comm::Exchange> Start(int layer, strategy::Phase phase);

  // What this rank sends to others for it.
  int64_t SentBytes(int layer, strategy::Phase phase) const;

 private:
  class Move;
  // How a layer's pieces are cut, the same on all ranks and in both directions.
  struct Cut {
    int columns = 0;           // of a piece, at most
    int64_t piece_bytes = 0;   // of so many
    int pieces_per_round = 1;  // from a rank to another one
    int num_rounds = 0;        // of the change to decode, and back
  };
  static Cut CutOf(const model::ModelSpec& whole, const model::MoeSpec& moe,
                   const weights::WeightFormats& formats, const Phases& phases);
  // By rank.
  static std::vector<weights::ExpertPart> PartsOf(const model::MoeSpec& moe,
                                                  const weights::WeightFormats& formats,
                                                  const strategy::Roles& roles);

  ExpertMover(weights::PhasedWeights& weights, const Phases& phases, comm::Group& group,
              hardware::ThreadPool* pool)
      : weights_(weights), phases_(phases), group_(group), pool_(pool) {}
  const model::MoeSpec& MoeOf(int layer) const {
    return *weights_.whole().layers[static_cast<size_t>(layer)].moe;
  }

  weights::PhasedWeights& weights_;
  Phases phases_;
  comm::Group& group_;
  hardware::ThreadPool* pool_;
  memory::Reservation staging_;
};

}  // namespace convene::runtime
