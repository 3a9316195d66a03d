// Keys and values on a disk: the blocks of a cache that have no room in memory lie in a spill file,
// and those of a part of a step's sequences come to buffers for as long as attention of a layer
// works with them, when the step's tasks of the load lane say so (strategy/spilled_kv.h). It knows
// no attention; which sequence has which block is engine/'s matter.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "device/kv_cache.h"
#include "device/step_inputs.h"
#include "device/stream.h"
#include "memory/ledger.h"
#include "memory/spill_file.h"
#include "model/model_spec.h"
#include "runtime/spill_statistics.h"
#include "runtime/transformer_options.h"

namespace convene::runtime {

class SpilledKv {
 public:
  // What of a model cannot be spilled, and what to change.
  static Status Supports(const model::ModelSpec& spec, const TransformerOptions& options);
  // Of the buffers in memory, and of the file; `layer_bytes`: of a block in the layer where it is
  // the largest.
  static uint64_t BufferBytes(const KvSpillOptions& options, uint64_t layer_bytes);
  static uint64_t FileBytes(int num_blocks, int num_layers, uint64_t layer_bytes);

  // Blocks from cache.num_blocks() on are on the disk. Keeps a reference to the cache. Errors: as
  // SpillFile::Create and Ledger::Allocate.
  static Result<std::unique_ptr<SpilledKv>> Create(const KvSpillOptions& options,
                                                   const model::ModelSpec& spec,
                                                   device::KvCache& cache, memory::Ledger& ledger);

  // Into how many parts such a step is cut: each has as many sequences, one behind the other, as
  // have room in a buffer. A sequence alone must have (CHECKed).
  int CountParts(std::span<const device::SequenceStep> step) const;
  int depth() const { return options_.depth; }
  double missing() const;  // the share of all blocks that is on the disk

  // Before a step of these sequences, whose blocks it replaces by places in the cache's table.
  // They are valid until the next call.
  void Begin(std::vector<device::SequenceStep>& step);
  int num_parts() const { return static_cast<int>(parts_.size()); }  // as CountParts
  device::Stream::SequenceRange PartAt(int part) const { return parts_[part].sequences; }

  // Of a part of the step, in the order of layers and parts, on one thread: what its tokens see of
  // earlier steps to a buffer; what they have added back to the disk, after which the buffer is
  // free. Errors: the disk's.
  Status Read(int layer, int part);
  Status Write(int layer, int part);

  const SpillStatistics& statistics() const { return statistics_; }
  const std::string& directory() const { return file_->directory(); }

 private:
  // A block of the disk that a part works with, each once, in the order of their slots in the
  // buffer.
  struct Held {
    int block = 0;
    bool has_earlier = false;  // positions that earlier steps have made
    bool changes = false;      // positions that this one makes
    int distance = 0;          // from the first token that sees it to its last position
  };
  struct StepPart {
    device::Stream::SequenceRange sequences;
    int first_place = 0;
    std::vector<Held> held = {};
  };

  SpilledKv(KvSpillOptions options, device::KvCache& cache, std::vector<int> windows);
  int CountSpilled(const device::SequenceStep& sequence) const;
  bool Sees(int layer, const Held& held) const;
  std::byte* SlotAt(int layer, int part, size_t slot) const;
  // Goes on with the last transfer where both places follow on its own.
  void AddTransfer(int layer, int part, size_t slot);
  Status Transfer(bool is_write);

  KvSpillOptions options_;
  device::KvCache& cache_;
  std::unique_ptr<memory::SpillFile> file_;
  memory::Reservation memory_;
  std::vector<int> windows_;             // by layer; 0: none
  std::vector<uint64_t> layer_offsets_;  // in the file
  uint64_t slot_bytes_ = 0;              // of a block in the layer where it is the largest
  SpillStatistics statistics_;

  // Of the step in work.
  std::vector<StepPart> parts_;
  std::vector<std::vector<int32_t>> blocks_;  // by sequence, as places
  std::vector<memory::SpillTransfer> transfers_;
};

}  // namespace convene::runtime
