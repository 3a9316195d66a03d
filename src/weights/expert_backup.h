// What a rank keeps in its host's memory so that its experts can change their division between two
// phases without a word to other ranks (HAP, section III-B; systems: hybrid adaptive parallelism):
// of decode's experts those that it has not in prefill, in int4 (backup_matrix.h), and of prefill's
// those that it has not in decode, as they are. When to change is the runtime's matter.
//
// So a change to decode rounds what comes from the backup, and nothing else; the way back gives the
// bytes of before, because what was rounded is never its source.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "hardware/thread_pool.h"
#include "memory/ledger.h"
#include "model/model_spec.h"
#include "strategy/role.h"
#include "weights/backup_matrix.h"
#include "weights/expert_parts.h"
#include "weights/phased_weights.h"
#include "weights/share.h"

namespace convene::weights {

class ExpertBackup {
 public:
  // A part of an expert is cut into pieces of at most so many columns, each of which is rounded as
  // a matrix of its own; so the memory that a piece is made in is bounded, whatever the model.
  static constexpr int kMostColumns = 1024;

  struct Bytes {
    uint64_t originals = 0;  // of prefill's experts
    uint64_t backup = 0;     // of decode's, in int4 and with the room for outliers
    uint64_t working = 0;    // a piece on its way
  };
  // What Create reserves. `share` has another part of the experts in decode.
  static Bytes BytesOf(const model::ModelSpec& whole, const WeightFormats& formats,
                       const Share& share);
  // Error: weights that are whole numbers already, which a backup in int4 would round twice.
  static Status CheckFormats(const WeightFormats& formats);

  // Keeps a reference to the weights. Error: memory that cannot be had; as CheckFormats.
  static Result<std::unique_ptr<ExpertBackup>> Create(PhasedWeights& weights,
                                                      memory::Ledger& ledger);

  // Once, before the experts leave their first division (prefill's): what the way back needs.
  void KeepOriginals(hardware::ThreadPool* pool);
  // Once, while they are in decode's division as another rank has sent them: the backup.
  void Round(hardware::ThreadPool* pool);
  const BackupQuality& quality() const { return quality_; }

  // Gives a layer of the decoder the experts of `phase`; it has those of the other one. Nothing may
  // be leased of it meanwhile. On any thread, one call at a time.
  void Load(int layer, strategy::Phase phase);

 private:
  struct Original {
    ExpertPiece piece;
    FfnWeights packed;
  };
  struct Rounded {
    ExpertPiece piece;
    BackupFfn backup;
  };
  struct Layer {
    std::vector<Original> originals;
    std::vector<Rounded> rounded;
  };

  explicit ExpertBackup(PhasedWeights& weights) : weights_(weights) {}
  void Place(std::byte* data);
  FfnWeights PieceOf(int layer, const ExpertPiece& piece) const;  // as the weights, without data
  bool IsGated(int layer) const;
  BackupQuality RoundPiece(int layer, const Rounded& kept) const;

  PhasedWeights& weights_;
  std::vector<Layer> layers_;
  memory::Reservation storage_;
  memory::Reservation working_;
  BackupQuality quality_;
};

}  // namespace convene::weights
