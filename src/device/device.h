// A device that computes the steps of a model: a set of CPU cores, or a GPU. The boundary is the
// operator (stream.h): memory, streams and events are the device's, and nobody above it knows where
// activations lie or what computes them. Which operators a step has is strategy/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/kv_cache.h"
#include "device/layer.h"
#include "device/step_shape.h"
#include "device/stream.h"
#include "hardware/thread_pool.h"
#include "memory/copy_lane.h"
#include "memory/ledger.h"
#include "model/model_spec.h"
#include "weights/weight_store.h"

namespace convene::device {

// Rows of a frame that travel between ranks as they lie.
enum class TravellingRows {
  kNormed,  // (rows, hidden) activations
  kStates,  // (rows, hidden) float32: an encoder's output
  kHidden,  // (rows, hidden) float32: the residual stream
};

// What one micro-batch has in the memory of a device while it goes through the layers. What lies
// there only the device knows.
class FrameMemory {
 public:
  virtual ~FrameMemory() = default;

  // The host memory of FrameShape::exchange_bytes, for all that operators pack and unpack.
  virtual std::span<std::byte> exchange() const = 0;
  // Host memory through which these rows travel, one RowStride after the other (wire_rows.h). Own
  // rows are there once the operator that made them is done. Others' rows are received there, and
  // the operators after that find them.
  virtual std::span<std::byte> HostRows(TravellingRows kind, OwnRows rows) const = 0;
};

// What a kind of device takes of its memory. The memory plan asks, which is made before there is a
// device: so these are functions beside it, and whoever chooses the device chooses them with it.
struct DeviceBytes {
  // Of one KV block over all layers.
  uint64_t (*of_kv_block)(const model::ModelSpec& spec, kernels::KvFormat format);
  // Of one in the layer where it is the largest.
  uint64_t (*of_layer_block)(const model::ModelSpec& spec, kernels::KvFormat format);
  // Of what steps work in, frames and stream together, where so many threads compute.
  memory::Amounts (*of_steps)(const model::ModelSpec& spec, kernels::ActivationFormat activations,
                              const StepShape& shape, int num_threads);
  // Of weights, where those of `loans` are lent to it: without these, which are counted with their
  // owner (weights::PagedWeights, StreamedWeights), and with the room that it unpacks them to.
  // Null: as they are packed. Error: it cannot compute so with this model.
  Result<uint64_t> (*of_weights_beside)(const model::ModelSpec& spec,
                                        weights::DeviceLoans loans) = nullptr;
  // As Device::Supports, so that nobody waits for weights of a model that it cannot compute. To be
  // asked before the others. Null: it can compute all.
  Status (*supports)(const model::ModelSpec& spec, kernels::ActivationFormat activations) = nullptr;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const char* name() const = 0;
  // What its memory is: of the ledgers that it is given.
  virtual memory::TierKind memory() const = 0;
  // CPUs for the threads beside it: those that exchange, load and store.
  virtual const std::vector<int>& lane_cpus() const = 0;
  // Threads of the host that help the one that enqueues operators, while none is at work on them;
  // null: none.
  virtual hardware::ThreadPool* host_threads() const = 0;
  // Error: what of the model the operators cannot compute, and what to change.
  virtual Status Supports(const model::ModelSpec& spec,
                          kernels::ActivationFormat activations) const = 0;

  // All memory is reserved in `ledger` while it lives. Errors: as Ledger::Allocate.
  virtual Result<std::unique_ptr<KvCache>> CreateKvCache(const model::ModelSpec& spec,
                                                         kernels::KvFormat format, int num_blocks,
                                                         memory::Ledger& ledger) = 0;
  virtual Result<std::unique_ptr<FrameMemory>> CreateFrameMemory(
      const model::ModelSpec& spec, kernels::ActivationFormat activations, const FrameShape& shape,
      memory::Ledger& ledger) = 0;
  // Keeps references to weights and cache, which is this device's.
  virtual Result<std::unique_ptr<Stream>> CreateStream(weights::WeightStore& weights,
                                                       KvCache& cache, const StreamOptions& options,
                                                       memory::Ledger& ledger) = 0;
  virtual std::unique_ptr<Event> CreateEvent() = 0;
  // Between the host's memory and the device's, beside operators. Error: the device has no room for
  // one more.
  virtual Result<std::unique_ptr<memory::CopyLane>> CreateCopyLane() = 0;
};

}  // namespace convene::device
