// Steps of a model whose experts lie in a slow tier, the host's memory, and go through that of the
// device layer by layer, while the host computes attention beside it: by a GPU and its host, or on
// a machine without one, where one set of cores stands for the device, another one for the host,
// and what passes between them for a link of a stated rate (limited_link.h). Keys and values are
// the host's. All orders that MoE-Lightning compares (strategy/offload_pipeline.h) run so with the
// same operators, prompts in those that attend on the host, in steps of their own or beside
// generated tokens. Where both sides are CPUs they give the bits of steps with everything resident;
// a GPU's products round otherwise than the host's attention, so there the orders that attend on
// the host give the same bits as each other, and so do those that attend on the GPU, which give a
// resident GPU's. It is a Transformer's (Transformer::Offload).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "hardware/topology.h"
#include "memory/ledger.h"
#include "runtime/executor.h"
#include "runtime/limited_link.h"
#include "runtime/program_cache.h"
#include "runtime/step_runner.h"
#include "strategy/offload_pipeline.h"
#include "weights/streamed_weights.h"

namespace convene::runtime {

struct OffloadedOptions {
  // Of each step; next_step is as if set. Steps of fewer sequences than micro-batches have some
  // without rows.
  strategy::OffloadPipeline pipeline = {};
  double link_bytes_per_second = 0;  // in each direction; 0: as fast as it goes
  int max_sequences = 1;
  int max_step_tokens = 0;  // over all sequences of a step; 0: one of each
  int context = 0;          // of the longest sequence, in tokens
  kernels::ActivationFormat activations = kernels::ActivationFormat::kBf16;
  kernels::KvFormat kv = kernels::KvFormat::kBf16;
  // Where the threads of copies run, and that of the host's attention.
  hardware::LaneCpus cpus = {};
  // Share a page's copy to pinned memory; null: its lane's thread copies alone.
  hardware::ThreadPool* staging = nullptr;
};

class OffloadedSteps : public LaneWork {
 public:
  // Of the device's memory, and of the host's that it copies from and to (of a GPU: pinned).
  struct Memory {
    memory::Ledger& device;
    memory::Ledger& host;
  };
  // `weights`: the model in the slow tier. `host_cache`: where keys and values lie between steps,
  // in the host's memory; of orders that attend on the host a cache of `host`, otherwise one of
  // `device`. `device` and `host` compute at the same time: each has threads of its own. Keeps
  // references to all of them. Errors: what of a model cannot be offloaded so; memory that cannot
  // be had.
  static Result<std::unique_ptr<OffloadedSteps>> Create(
      const weights::ModelWeights& weights, device::Device& device, device::Device& host,
      device::KvCache& host_cache, const OffloadedOptions& options, const Memory& memory);
  ~OffloadedSteps() override = default;

  // For the memory plan, beside the frames of steps (device::DeviceBytes::of_steps) and the weights
  // that stay on a GPU (of_weights_beside): the rooms for weights, in the memory of the device; and
  // rows of attention, at their widest, in the memory of the device and as much of the host's.
  static uint64_t RoomBytes(const model::ModelSpec& spec, const weights::WeightFormats& formats) {
    return 2 * weights::StreamedWeights::RoomBytes(spec, formats);
  }
  static uint64_t PlannedRowBytes(const model::ModelSpec& spec, const OffloadedOptions& options);
  // What of a model cannot be offloaded so, as an error.
  static Status Supports(const model::ModelSpec& spec);
  // How its steps are computed, on both sides.
  static TransformerOptions StepOptions(const OffloadedOptions& options);

  // The next run of the program is of this step, as Transformer::Forward's, of at most
  // max_sequences sequences; blocks are those of the host's cache. Where the device attends each
  // has one token, whose logits are wanted. Error: the link's.
  Status Begin(std::span<const device::SequenceStep> step, const LogitsSink* sink);
  // After the run, which has ended so: the step's error. The next one begins anew.
  Status End(const Status& run);

  const Program& program() const { return *program_; }
  StepRunner& runner() { return *runner_; }
  weights::WeightStore& weights() { return *weights_; }
  device::KvCache& kv_cache() { return host_cache_; }
  const OffloadedOptions& options() const { return options_; }

  void Compute(const schedule::Task& task) override;
  std::unique_ptr<comm::Exchange> Start(const schedule::Task& task) override;
  Status RunOnLane(const schedule::Task& task, hardware::ThreadPool* pool) override;

 private:
  // Rows of a micro-batch between the parts of attention, on both sides of the link.
  struct Travelling {
    std::byte* on_device = nullptr;
    std::byte* on_host = nullptr;
  };
  // Bytes of a row in the layer where it has the most.
  struct RowSizes {
    size_t qkv = 0;
    size_t attended = 0;
  };
  struct MicroBatch {
    std::vector<device::SequenceStep> sequences;  // with blocks of the host's cache
    std::unique_ptr<device::Frame> on_host;
    Travelling qkv;
    Travelling attended;
  };

  OffloadedSteps(std::unique_ptr<weights::StreamedWeights> weights,
                 const weights::ModelWeights& slow, device::KvCache& host_cache, LimitedLink up,
                 LimitedLink down, const OffloadedOptions& options);
  Status CreateHost(device::Device& host, const TransformerOptions& options, const Memory& memory);
  Status CreateRows(RowSizes sizes, size_t num_rows, const Memory& memory);
  Status CreateDeviceCache(const device::Device& device, memory::Ledger& ledger);
  // All keys and values are on the device between steps, too.
  Status FillDeviceCache();
  bool attends_on_host() const { return strategy::AttendsOnHost(options_.pipeline.order); }
  static int FrameOf(const schedule::Task& task) { return std::max(0, task.micro_batch); }
  size_t RowsBytes(device::AttentionRows kind, const schedule::Task& task);
  void AwaitDevice();

  Status Copy(std::span<const weights::StreamedWeights::Copy> copies, LimitedLink& link);
  Status LoadFirst();
  Status Stage(const schedule::Task& task);
  Status AttendOnHost(const schedule::Task& task);
  // Of keys and values of a micro-batch, where attention is on the device.
  std::byte* BufferOf(const schedule::Task& task) const;
  Status LoadCache(const schedule::Task& task);
  Status StoreCache(const schedule::Task& task);

  OffloadedOptions options_;
  std::unique_ptr<weights::StreamedWeights> weights_;
  weights::ResidentWeights slow_;
  device::KvCache& host_cache_;
  std::unique_ptr<StepRunner> runner_;  // the device's
  std::unique_ptr<device::Event> fence_;
  std::unique_ptr<device::Stream> host_;
  std::vector<MicroBatch> micro_batches_;
  memory::Reservation rows_on_device_;
  memory::Reservation rows_on_host_;
  memory::Reservation cache_buffers_;
  size_t slot_bytes_ = 0;  // of a block in the layer where it is the largest
  int buffer_slots_ = 0;   // blocks of a micro-batch
  int first_place_ = 0;    // the number that block 0 of the host's cache has in the device's
  std::vector<std::vector<int32_t>> device_blocks_;  // by sequence of the step
  LimitedLink up_;
  LimitedLink down_;
  std::optional<Program> program_;
  bool first_is_there_ = false;  // the first layer's weights, for the next step
};

}  // namespace convene::runtime
