// What a rank has for its steps besides the weights, made once and reserved in its ledger: keys and
// values, the frames and the stream that works in them, and what brings experts to the division of
// another phase. How large the frames are is step_memory.h, what tasks do here step_operators.h.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "device/frame.h"
#include "memory/ledger.h"
#include "runtime/expert_mover.h"
#include "runtime/spilled_kv.h"
#include "runtime/transformer_options.h"
#include "schedule/schedule.h"
#include "weights/expert_backup.h"
#include "weights/weight_store.h"

namespace convene::runtime {

struct RankMemory {
  // Keeps references to weights, device and the options' group. Errors: memory that cannot be had;
  // what the device does not support.
  static Result<RankMemory> Create(weights::WeightStore& weights, device::Device& device,
                                   const TransformerOptions& options, memory::Ledger& ledger);

  // Of the task's micro-batch.
  device::Frame& FrameOf(const schedule::Task& task) const {
    return *frames[static_cast<size_t>(std::max(0, task.micro_batch))];
  }

  std::unique_ptr<device::KvCache> cache;
  std::unique_ptr<SpilledKv> spilled;  // null: all keys and values are in memory
  std::unique_ptr<device::Stream> stream;
  std::unique_ptr<ExpertMover> mover;                  // null: the experts stay where they are
  std::unique_ptr<weights::ExpertBackup> backup;       // null: no experts come from one
  std::vector<std::unique_ptr<device::Frame>> frames;  // by micro-batch
};

}  // namespace convene::runtime
