// A rank's weights of which the routed experts are in the memory that computes only as far as there
// is room: in buffers that pages, one expert each, take in turn. All of them lie on a disk, as
// pages of a packed directory, or in the host's memory beside a GPU. Everything else stays in
// memory. Experts are numbered as the rank has them: its first one is 0. Who reads pages ahead, and
// when, is the step's schedule (strategy/paged_experts.h).
//
// A page that a task waits for or computes with is held, and is never replaced. Which of the others
// is replaced: in a step that reads all experts of each layer in turn, of each layer equally many
// stay, so that the disk has as much to do in each, and the rest passes through what is left: the
// page gives way whose layer comes last from there on. Otherwise the page that was used least, or
// not for the longest time (PageEviction).
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "memory/copy_lane.h"
#include "memory/ledger.h"
#include "memory/page_reader.h"
#include "strategy/paging.h"
#include "strategy/step.h"
#include "weights/packed_directory.h"
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
};

// Since the beginning.
struct PageStatistics {
  int64_t num_used = 0;  // pages that tasks wanted
  // Of these, pages that lay in memory since they had been used before.
  int64_t num_found = 0;
  int64_t num_read = 0;  // pages that were read, those that were predicted in vain among them
  uint64_t read_bytes = 0;
  double read_seconds = 0;    // while at least one was under way
  int64_t num_chosen = 0;     // by layers whose experts were predicted, of a step each once
  int64_t num_predicted = 0;  // of these those that were
};

class PagedWeights final : public WeightStore, public Lender {
 public:
  // Reads what stays in memory, compares it with its checksums, and reserves its memory and the
  // buffers in `ledger`. `weights` gets the rank's share; the store keeps a reference to it, and
  // its memory is there as long as they are. Errors: as CheckParts; the file was cut, changed or is
  // damaged, its disk fails; memory that cannot be had; norms and biases that are NaN or infinite.
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
  enum class State : uint8_t { kAbsent, kReading, kThere };
  struct Page {
    StoredPage stored;
    int layer = 0;          // those of the encoder first
    double even_share = 0;  // of the tokens that choose it, on even routing
    State state = State::kAbsent;
    int buffer = -1;
    int holds = 0;
    float uses = 0;
    int64_t last_use = 0;
    int64_t last_step = 0;
    bool stays = false;     // where steps read all experts
    bool is_fresh = false;  // was read, and not used since
  };
  struct Place {
    bool streams = false;  // all experts of each layer in turn
    int layer = 0;
  };

  PagedWeights(ModelWeights& weights, PageIndex index, const PagedOptions& options,
               std::unique_ptr<PageSource> source, std::byte* buffers, const PagedSizes& sizes);

  int IndexOf(LayerId id) const { return id.encoder ? id.layer : num_encoder_layers_ + id.layer; }
  // In steps that read all experts.
  void ChooseStaying();
  std::vector<int> ExpertsOfChunk(int layer, int chunk) const;
  void ReadChunk(LayerId id, int chunk, std::vector<Page*> pages, Place place);
  // Holds all of them, once each, and returns when they are there; after an error none is held.
  Status Fetch(const std::vector<Page*>& pages, Place place);
  // With mutex_, of pages that are absent: those that got a buffer are being read from here on.
  Status TakeBuffers(const std::vector<Page*>& pages, Place place, std::vector<Page*>* mine);
  // `takes_next`, if there is one, is asked for more while these are under way: true: it has
  // appended one to `pages`.
  Status ReadInto(const std::vector<Page*>& pages, const std::function<bool()>& takes_next = {});
  // Reads them with few of them under way, as long as `goes_on()` and there is room; holds them
  // meanwhile only.
  void ReadSome(const std::vector<Page*>& pages, Place place, const std::function<bool()>& goes_on);
  int FreeBuffer(Place place);  // with mutex_; -1: all are held
  // With mutex_: the page that is worth least gives way.
  std::pair<double, double> WorthOf(const Page& page, Place place) const;
  void SetThere(Page& page, bool is_there);  // with mutex_
  std::byte* BufferOf(const Page& page) const {
    return buffers_ + sizes_.page_bytes * static_cast<uint64_t>(page.buffer);
  }
  void CountUse(Page& page);

  PagedSizes sizes_;
  PagedOptions options_;
  int num_encoder_layers_ = 0;
  strategy::Paging streaming_;  // of steps that read all experts; all have its chunks
  uint64_t paged_bytes_ = 0;
  std::vector<std::vector<Page>> pages_;  // by layer and expert
  std::byte* buffers_ = nullptr;
  memory::Reservation buffer_memory_;  // theirs, where the weights' own memory is another one
  std::unique_ptr<PageSource> source_;
  std::mutex source_mutex_;  // who reads

  mutable std::mutex mutex_;  // of all below, and of the pages
  std::condition_variable changed_;
  std::vector<Page*> in_buffer_;                             // by buffer; null: free
  std::map<std::pair<int, int>, std::vector<Page*>> ahead_;  // by layer and chunk
  std::map<int, Error> errors_;                              // of reading ahead, by layer
  std::map<uint64_t, std::vector<Page*>> leases_;
  uint64_t num_leases_ = 0;
  int64_t num_counted_ = 0;
  int64_t step_ = 0;      // that runs, the first one being 1
  double num_steps_ = 0;  // halved as uses are
  PageStatistics statistics_;
  std::atomic<int> chosen_layer_ = -1;  // of the last Chose
  std::atomic<bool> step_has_ended_ = false;
};

}  // namespace convene::weights
