// A checkpoint ready to compute: threads, kernels, packed weights and a transformer with its KV
// cache, after making sure that all of it fits in memory. No tokenizer and no requests (engine.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "checkpoint/generation_config.h"
#include "device/device.h"
#include "engine/choose_formats.h"
#include "engine/crossovers.h"
#include "engine/load_options.h"
#include "engine/memory_plan.h"
#include "engine/model_source.h"
#include "hardware/thread_pool.h"
#include "hardware/topology.h"
#include "kernels/kernel_set.h"
#include "memory/ledger.h"
#include "model/model_spec.h"
#include "plan/plan.h"
#include "runtime/transformer.h"
#include "weights/load_weights.h"
#include "weights/weight_store.h"

namespace convene::engine {

class LoadedModel {
 public:
  // Opens the model directory, plans the memory and loads; with several ranks each its share
  // (*collective*: the others call FollowRankZero of ranks.h, and all return the same error). The
  // calling thread becomes thread 0 of the pool: it must be the one that computes and that destroys
  // the model. It is pinned meanwhile, so that a second model loaded beside the first would have
  // that one CPU alone. Errors: of the checkpoint, of CONVENE_ISA, options out of range, too little
  // memory.
  static Result<std::unique_ptr<LoadedModel>> Load(const std::string& directory,
                                                   const LoadOptions& options,
                                                   const LoadObserver& observer);

  // Of the whole model; this rank's share of it is the transformer's matter.
  const model::ModelSpec& spec() const { return whole_spec_; }
  const checkpoint::GenerationConfig& generation_config() const { return generation_config_; }
  const MemoryPlan& memory() const { return memory_; }
  const memory::Ledger& ledger() const { return *ledger_; }          // of this rank
  const weights::ModelWeights& weights() const { return weights_; }  // of this rank
  // The packed weights as they lie in memory.
  std::span<const std::byte> weight_bytes() const { return weights_.bytes; }
  const runtime::Formats& formats() const { return formats_; }
  int context() const { return memory_.context; }
  // Groups of ranks that divide the sequences among them (strategy/layout.h), each with its own KV
  // cache of num_kv_blocks() and its own steps of max_step_tokens().
  int num_groups() const { return plan_.layout.attention_dp; }
  const plan::Plan& plan() const { return plan_; }
  // That a step is cut into, or at most.
  int num_micro_batches() const {
    return std::max(plan_.pipeline.micro_batches, memory_.offload_micro_batches);
  }
  // As Transformer::UsePipeline: the plan is another one from now on, and computes the same bits.
  void UsePipeline(const strategy::Pipeline& pipeline) {
    transformer_->UsePipeline(pipeline);
    plan_.pipeline = pipeline;
  }
  // In memory and on a disk.
  int num_kv_blocks() const { return memory_.all_kv_blocks(); }
  int max_step_tokens() const { return max_step_tokens_; }
  // For which there is memory or a wish: as asked, or chosen for a batch (choose_batch.h).
  int max_sequences() const { return max_sequences_; }
  const kernels::KernelSet& kernels() const { return kernels_->set; }
  // Of keys and values on a disk.
  runtime::SpillStatistics spill_statistics() const { return transformer_->spill_statistics(); }
  // Null: all weights lie in memory.
  const weights::PagedWeights* paged() const { return store_->paged(); }
  hardware::ThreadPool& pool() { return *pool_; }
  runtime::Transformer& transformer() { return *transformer_; }

 private:
  LoadedModel() = default;

  // Of the memory of the device that computes.
  memory::Ledger& device_ledger() { return device_ledger_ ? *device_ledger_ : *ledger_; }

  static Result<std::unique_ptr<LoadedModel>> LoadShare(const std::string& directory,
                                                        const LoadOptions& options,
                                                        const LoadObserver& observer);
  // Where the weights are packed ahead, sets the formats in `options` to theirs.
  Status Open(const std::string& directory, std::optional<ModelSource>* source,
              LoadOptions* options, hardware::LaneCpus* cpus);
  Status MakeGpu(int gpu, bool copies);
  Status Verify(const ModelSource& source, comm::Group* group, const LoadObserver& observer);
  Status Fill(ModelSource source, const LoadOptions& options, const ChosenFormats& chosen,
              const LoadObserver& observer, std::vector<NamedDigest>* compared);
  Status ResolvePipeline(const LoadOptions& options, const LoadObserver& observer);
  // From what was measured of this machine: how panels are read, which changes no bit, and after
  // that from where on forms change.
  void TakeMeasured();
  void ResolveCrossovers(const LoadOptions& options);
  Status CreateTransformer(const LoadOptions& options);
  Status CreateOffloaded();
  Status PlaceBothPhases(int rank, const LoadObserver& observer);

  // In the order in which they depend on each other.
  std::optional<memory::Ledger> ledger_;
  std::optional<memory::Ledger> device_ledger_;  // of a GPU's memory, where one computes
  memory::Reservation program_;
  plan::Plan plan_;
  model::ModelSpec whole_spec_;
  // With what was measured of them. At an address for ever: the device refers to it.
  struct MeasuredKernels {
    kernels::KernelSet set;
    std::optional<kernels::StreamingChoice> streaming = {};
  };
  std::unique_ptr<MeasuredKernels> kernels_;
  std::function<void(const std::string&)> disk_is_slow_;  // as LoadObserver's
  std::unique_ptr<hardware::ThreadPool> pool_;
  std::vector<int> host_cpus_;
  weights::ModelWeights weights_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<weights::WeightStore> store_;
  // Of a batch whose attention is the host's beside a GPU; otherwise null.
  std::unique_ptr<hardware::ThreadPool> host_pool_;
  std::unique_ptr<device::Device> host_device_;
  std::unique_ptr<device::KvCache> host_cache_;
  std::optional<runtime::Transformer> transformer_;
  checkpoint::GenerationConfig generation_config_;
  MemoryPlan memory_;
  runtime::Formats formats_;
  int max_step_tokens_ = 0;
  int max_sequences_ = 1;
  int chunks_from_tokens_ = 0;
  int micro_batches_from_tokens_ = 0;
  Crossovers crossovers_;  // this rank's as measured; after ResolveCrossovers rank 0's
};

}  // namespace convene::engine
