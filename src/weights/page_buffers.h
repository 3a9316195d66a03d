// Buffers that pages of experts take in turn, where not all of them have room: which page is in
// which buffer, who holds it, which one gives way, and reading what is not there. Why a page is
// wanted is paged_weights.h.
//
// A page that a task waits for or computes with is held, and is never replaced. Which of the others
// is replaced: in a step that reads all experts of each layer in turn, of each layer equally many
// stay, so that the disk has as much to do in each, and the rest passes through what is left: the
// page gives way whose layer comes last from there on. Otherwise the page that was used least, or
// not for the longest time (PageEviction).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "weights/page_eviction.h"
#include "weights/page_index.h"
#include "weights/page_source.h"

namespace convene::weights {

// Since the beginning.
struct PageReads {
  int64_t num_used = 0;  // pages that tasks wanted
  // Of these, pages that lay in memory since they had been used before.
  int64_t num_found = 0;
  int64_t num_read = 0;  // pages that were read, those that were predicted in vain among them
  uint64_t read_bytes = 0;
  double read_seconds = 0;  // while at least one was under way
};

// Any thread calls it.
class PageBuffers {
 public:
  struct Options {
    int num_buffers = 0;
    uint64_t page_bytes = 0;  // of a buffer
    PageEviction eviction = PageEviction::kLeastUsed;
    const char* raise = "";  // the option that gives more of them
  };
  // The experts of a layer that the rank has.
  struct Layer {
    std::vector<StoredPage> pages = {};
    double even_share = 0;  // of the tokens that choose one, on even routing
    int num_staying = 0;    // where steps read all experts
  };
  // Of layer `layer` in order: those of the encoder first. `streams`: all experts of each layer in
  // turn.
  struct Place {
    bool streams = false;
    int layer = 0;
  };
  // Who asks for pages passes them on and does not look inside.
  struct Page {
    enum class State : uint8_t { kAbsent, kReading, kThere };

    StoredPage stored;
    int layer = 0;
    double even_share = 0;
    bool stays = false;  // where steps read all experts
    State state = State::kAbsent;
    int buffer = -1;
    int holds = 0;
    float uses = 0;
    int64_t last_use = 0;
    int64_t last_step = 0;
    bool is_fresh = false;  // was read, and not used since
  };

  // `memory`: the buffers, one behind the other. The matrices of pages that are in none have no
  // address.
  PageBuffers(std::vector<Layer> layers, const Options& options, std::unique_ptr<PageSource> source,
              std::byte* memory);

  int num_layers() const { return static_cast<int>(pages_.size()); }
  int num_experts(int layer) const { return static_cast<int>(pages_[layer].size()); }
  Page* page(int layer, int expert) { return &pages_[layer][expert]; }

  // By steps is counted how often a page was wanted.
  void BeginStep();

  // Holds all of them, once each, and returns when they are there; after an error none is held.
  // Errors: the source's; there are not as many buffers.
  Status Fetch(const std::vector<Page*>& pages, Place place);
  // The same of pages that a task computes with.
  Status Use(const std::vector<Page*>& pages, Place place);
  void Release(const std::vector<Page*>& pages);
  // Reads them with few of them under way, as long as `goes_on()` and there is room; holds them
  // meanwhile only. Errors are nobody's: whoever needs a page reads it again.
  void ReadSome(const std::vector<Page*>& pages, Place place, const std::function<bool()>& goes_on);

  PageReads reads() const;
  std::string DescribeSource() const { return source_->Describe(); }

 private:
  using State = Page::State;

  // With mutex_, of pages that are absent: those that got a buffer are being read from here on.
  Status TakeBuffers(const std::vector<Page*>& pages, Place place, std::vector<Page*>* mine);
  // `takes_next`, if there is one, is asked for more while these are under way: true: it has
  // appended one to `pages`.
  Status ReadInto(const std::vector<Page*>& pages, const std::function<bool()>& takes_next = {});
  int FreeBuffer(Place place);  // with mutex_; -1: all are held
  // With mutex_: the page that is worth least gives way.
  std::pair<double, double> WorthOf(const Page& page, Place place) const;
  void SetThere(Page& page, bool is_there);  // with mutex_
  void CountUse(Page& page);                 // with mutex_
  std::byte* BufferOf(const Page& page) const {
    return memory_ + options_.page_bytes * static_cast<uint64_t>(page.buffer);
  }

  Options options_;
  std::vector<std::vector<Page>> pages_;  // by layer and expert
  int64_t num_pages_ = 0;
  std::byte* memory_;
  std::unique_ptr<PageSource> source_;
  std::mutex source_mutex_;  // who reads

  mutable std::mutex mutex_;  // of all below, and of the pages
  std::condition_variable changed_;
  std::vector<Page*> in_buffer_;  // by buffer; null: free
  int64_t num_counted_ = 0;
  int64_t step_ = 0;      // that runs, the first one being 1
  double num_steps_ = 0;  // halved as uses are
  PageReads reads_;
};

}  // namespace convene::weights
