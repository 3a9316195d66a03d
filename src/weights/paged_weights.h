// A rank's weights of which the routed experts are in the memory that computes only as far as there
// is room: in buffers that pages, one expert each, take in turn. All of them lie on a disk, as
// pages of a packed directory, or in the host's memory beside a GPU. Everything else stays in
// memory. Experts are numbered as the rank has them: its first one is 0. Who reads pages ahead, and
// when, is the step's schedule (strategy/paged_experts.h), and which of them has a buffer is
// page_buffers.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "hardware/numa.h"
#include "memory/copy_lane.h"
#include "memory/ledger.h"
#include "memory/page_reader.h"
#include "strategy/paging.h"
#include "strategy/step.h"
#include "weights/packed_directory.h"
#include "weights/page_buffers.h"
#include "weights/page_eviction.h"
#include "weights/page_index.h"
#include "weights/page_source.h"
#include "weights/weight_store.h"

namespace convene::weights {

struct PagedOptions {
  int num_buffers = 0;  // at least PagedSizes::fewest_buffers; more than there are pages: all
  PageEviction eviction = PageEviction::kLeastUsed;
  // Whose share of the directory's model it is.
  strategy::ExpertOwner owner = {};
  // Of several ranks: the fewest buffers of one that has not all of its experts in memory, by which
  // all of them cut their layers (strategy/paging.h). 0: num_buffers.
  int least_buffers = 0;
  memory::PageReader::Options reader = {};  // of a disk
  // Of what lies in the host's memory: on which nodes, for threads on these CPUs. None: where it is
  // first written.
  hardware::NumaPolicy numa = hardware::NumaPolicy::kAuto;
  std::vector<int> cpus = {};
};

struct PageStatistics : PageReads {
  int64_t num_chosen = 0;     // by layers whose experts were predicted, of a step each once
  int64_t num_predicted = 0;  // of these those that were
};

class PagedWeights final : public WeightStore, public Lender {
 public:
  // Reads what stays in memory, compares it with its checksums, and reserves its memory and the
  // buffers in `ledger`. `weights` gets the rank's share; the store keeps a reference to it, and
  // its memory is there as long as they are. Errors: as CheckParts; the file was cut, changed or is
  // damaged, its disk fails; memory that cannot be had, or not on the nodes that are asked for;
  // norms and biases that are NaN or infinite.
  static Result<std::unique_ptr<PagedWeights>> Load(PackedDirectory directory,
                                                    const PagedOptions& options,
                                                    memory::Ledger& ledger,
                                                    const LoadProgress& progress,
                                                    ModelWeights* weights);

  // The same of weights that lie in the host's memory, best in pinned memory, where a device beside
  // it has no room for them all: the buffers are reserved in its ledger, and `lane` copies to them.
  // Of what else there is the host's are lent: the device brings it to its memory once. Keeps a
  // reference; experts have no address from here on but as they are lent. Precondition: all
  // experts are this rank's. Errors: memory that cannot be had.
  static Result<std::unique_ptr<PagedWeights>> OnDevice(ModelWeights& weights,
                                                        const PagedOptions& options,
                                                        std::unique_ptr<memory::CopyLane> lane,
                                                        memory::Ledger& of_device);

  Result<LayerLease> LeaseLayer(LayerId id, LayerPart) override { return LayerLease(LayerOf(id)); }
  // Reads what nobody has read ahead. Errors: as of where pages lie (file_pages.h, host_pages.h).
  Result<ExpertsLease> LeaseExperts(LayerId id, std::span<const int> experts) override;
  Result<MatrixLease> LeaseEmbedding(bool encoder) override {
    return MatrixLease(encoder ? weights_.encoder->embedding : weights_.embedding);
  }
  Result<MatrixLease> LeaseHead() override { return MatrixLease(weights_.head); }
  void End(uint64_t lease) override;
  PagedWeights* paged() override { return this; }
  DeviceLoans lends_on_device() const override {
    return buffer_memory_.size_bytes() > 0 ? DeviceLoans::kExperts : DeviceLoans::kNone;
  }

  // Of a layer, those that this rank has: its expert number 0 is the first of them.
  strategy::Part OwnExperts(LayerId id) const;
  // How a step of so many tokens, of all ranks together, has its experts read.
  strategy::Paging PagingOf(bool encoder, int64_t num_tokens) const;

  // Reads the experts of a chunk of a layer that are not in memory, in a step that reads all of
  // them, and holds the chunk until Release. An error is that of the lease. One chunk at a time,
  // beside leases of others.
  void ReadAhead(LayerId id, int chunk);
  // The same in a step that wants only these experts of the layer, in any order.
  void ReadChosen(LayerId id, int chunk, const std::vector<int>& chosen);
  // Reads those of a layer's experts that will probably be chosen and are not in memory, a few at a
  // time until Chose is called for the layer, and holds none of them. Nobody waits for it: where a
  // read fails, whoever needs the page reads it again. Not beside ReadChosen.
  void ReadPredicted(LayerId id, const std::vector<int>& predicted);
  // Reads the pages that the next step which reads everything wants first, as many as it reads
  // before it computes, a few at a time until EndStep is called, and holds none of them. Errors are
  // nobody's, and what else may run meanwhile is, as of ReadPredicted.
  void ReadNext();
  // A step begins; its last logits are sampled, so that ReadNext ends.
  void BeginStep();
  void EndStep() { step_has_ended_ = true; }
  // A layer's router has chosen, and `predicted` had been expected; both in increasing order.
  void Chose(LayerId id, const std::vector<int>& chosen, const std::vector<int>& predicted);
  // What the layer's tasks from the chunk on no longer wait for; nothing, if nothing is held.
  void Release(LayerId id, int chunk);

  PageStatistics statistics() const;
  // "586 MiB of weights stay in memory; 6.00 GiB of experts, 1,024 pages, are read from ...", as a
  // line for people.
  std::string Describe() const;

 private:
  using Page = PageBuffers::Page;
  using Place = PageBuffers::Place;
  // Where the weights' own memory is another one, it is reserved besides.
  struct Buffers {
    std::byte* memory = nullptr;
    memory::Reservation reserved = {};
  };

  PagedWeights(ModelWeights& weights, PageIndex index, const PagedOptions& options,
               std::unique_ptr<PageSource> source, Buffers buffers, const PagedSizes& sizes);

  int IndexOf(LayerId id) const { return id.encoder ? id.layer : num_encoder_layers_ + id.layer; }
  std::vector<PageBuffers::Layer> LayersOf(PageIndex index);
  std::vector<int> ExpertsOfChunk(int layer, int chunk) const;
  void ReadChunk(LayerId id, int chunk, std::vector<Page*> pages, Place place);

  PagedSizes sizes_;
  PagedOptions options_;
  int num_encoder_layers_ = 0;
  memory::Reservation buffer_memory_;  // of the buffers, where the weights' own is another one
  strategy::Paging streaming_;         // of steps that read all experts; all have its chunks
  uint64_t paged_bytes_ = 0;
  PageBuffers pages_;

  std::mutex mutex_;                                         // of the next ones
  std::map<std::pair<int, int>, std::vector<Page*>> ahead_;  // by layer and chunk
  std::map<int, Error> errors_;                              // of reading ahead, by layer
  std::map<uint64_t, std::vector<Page*>> leases_;
  uint64_t num_leases_ = 0;

  std::atomic<int64_t> num_chosen_ = 0;
  std::atomic<int64_t> num_predicted_ = 0;
  std::atomic<int> chosen_layer_ = -1;  // of the last Chose
  std::atomic<bool> step_has_ended_ = false;
};

}  // namespace convene::weights
