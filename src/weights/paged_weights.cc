#include "weights/paged_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "strategy/expert_cuts.h"
#include "strategy/paging.h"
#include "weights/file_pages.h"
#include "weights/finite_weights.h"
#include "weights/host_pages.h"
#include "weights/named_weights.h"
#include "weights/share.h"
#include "weights/tensor_digests.h"
#include "weights/weight_layout.h"

namespace convene::weights {
namespace {

// Uses of pages after which what was used before counts half.
constexpr int64_t kUsesPerPage = 16;

// As if so many steps of one token with even routing had been before the first one.
constexpr double kEvenSteps = 1;

// Norms and biases, from the mapped file.
Status CopyVectors(const PackedDirectory& directory, size_t num_matrices, ModelWeights& weights) {
  const std::byte* const file = directory.file.bytes().data();
  size_t at = num_matrices;
  for (const NamedVector& named : Vectors(weights, directory.parts)) {
    named.values->resize(static_cast<size_t>(named.size));
    const std::span<std::byte> values = std::as_writable_bytes(std::span(*named.values));
    std::memcpy(values.data(), file + directory.tensors[at].offset, values.size());
    BlockDigest digest(values);
    digest.Arrived(values.size());
    const uint64_t found = digest.Finish();
    if (found != directory.checksums[at].digest) {
      return Damaged(directory, directory.checksums[at], found);
    }
    ++at;
  }
  return CheckVectors(weights);
}

// All pages that stay in memory.
Status ReadResident(PageSource& source, const std::vector<StoredPage>& pages, std::byte* memory,
                    const LoadProgress& progress) {
  std::vector<PageRead> reads;
  uint64_t total_bytes = 0;
  for (const StoredPage& page : pages) {
    reads.push_back({.page = &page, .target = memory + total_bytes});
    total_bytes += memory::DirectBytes(page.size_bytes);
  }
  uint64_t done_bytes = 0;
  return source.Read(reads,
                     [&](size_t i) {
                       done_bytes += memory::DirectBytes(pages[i].size_bytes);
                       if (progress) progress(done_bytes, total_bytes);
                     },
                     {});
}

}  // namespace

Result<std::unique_ptr<PagedWeights>> PagedWeights::Load(PackedDirectory directory,
                                                         const PagedOptions& asked,
                                                         memory::Ledger& ledger,
                                                         const LoadProgress& progress,
                                                         ModelWeights* weights) {
  const model::ModelSpec& spec = directory.configuration.spec;
  const Share share = ShareOf(asked.owner.roles, asked.owner.rank);
  if (Status fits = CheckParts(directory.parts, share); !fits) return fits.error();
  const Result<model::ModelSpec> stored = LocalSpec(spec, directory.parts, directory.formats);
  if (!stored) return stored.error();
  const PagedSizes sizes = PagedSizesOf(spec, directory.formats, asked.owner);
  PagedOptions options = asked;
  options.num_buffers = std::min(options.num_buffers, sizes.num_pages);
  CHECK(options.num_buffers >= sizes.fewest_buffers, "{} buffers", options.num_buffers);
  LayOut(*stored, directory.formats, nullptr, weights, directory.parts);
  const size_t num_matrices = Matrices(*weights).size();
  if (Status copied = CopyVectors(directory, num_matrices, *weights); !copied) {
    return copied.error();
  }
  if (Status kept = KeepShare(spec, share, *weights); !kept) return kept.error();
  PageIndex index = IndexPages(directory, *weights);
  Result<memory::Reservation> storage =
      ledger.Allocate(memory::Use::kWeights, sizes.bytes_with(options.num_buffers));
  if (!storage) return storage.error();
  auto file = FilePages::Open(directory.file.path(), options.reader);
  if (!file) return file.error();
  const Status read = ReadResident(**file, index.resident, storage->data(), progress);
  if (!read) return read.error();
  if (Status unchanged = directory.file.CheckUnchanged(); !unchanged) return unchanged.error();

  std::byte* next = storage->data();
  for (const StoredPage& page : index.resident) {
    for (const PagePart& part : page.parts) part.matrix->data = next + part.begin;
    next += memory::DirectBytes(page.size_bytes);
  }
  // Of two that are one matrix, the index has one.
  weights->PlaceHeadInEmbedding();
  if (weights->encoder && spec.tied_embeddings) weights->encoder->embedding = weights->embedding;
  weights->storage = *std::move(storage);
  weights->bytes = weights->storage.bytes();
  return std::unique_ptr<PagedWeights>(
      new PagedWeights(*weights, std::move(index), options, *std::move(file), next, sizes));
}

Result<std::unique_ptr<PagedWeights>> PagedWeights::OnDevice(ModelWeights& weights,
                                                             const PagedOptions& asked,
                                                             std::unique_ptr<memory::CopyLane> lane,
                                                             memory::Ledger& of_device) {
  const PagedSizes sizes = PagedSizesOf(weights.spec, weights.formats, asked.owner);
  PagedOptions options = asked;
  options.num_buffers = std::min(options.num_buffers, sizes.num_pages);
  CHECK(options.num_buffers >= sizes.fewest_buffers, "{} buffers", options.num_buffers);
  auto buffers = of_device.Allocate(memory::Use::kWeights,
                                    sizes.page_bytes * static_cast<uint64_t>(options.num_buffers));
  if (!buffers) return buffers.error();
  PageIndex index = IndexPages(weights);
  for (const std::vector<StoredPage>& layer : index.experts) {
    for (const StoredPage& page : layer) {
      for (const PagePart& part : page.parts) part.matrix->data = nullptr;
    }
  }
  std::unique_ptr<PagedWeights> paged(new PagedWeights(
      weights, std::move(index), options,
      std::make_unique<HostPages>(weights.bytes.data(), std::move(lane)), buffers->data(), sizes));
  paged->buffer_memory_ = *std::move(buffers);
  return paged;
}

PagedWeights::PagedWeights(ModelWeights& weights, PageIndex index, const PagedOptions& options,
                           std::unique_ptr<PageSource> source, std::byte* buffers,
                           const PagedSizes& sizes)
    : WeightStore(weights),
      sizes_(sizes),
      options_(options),
      num_encoder_layers_(weights.encoder ? static_cast<int>(weights.encoder->layers.size()) : 0),
      buffers_(buffers),
      source_(std::move(source)),
      in_buffer_(static_cast<size_t>(options.num_buffers)) {
  for (std::vector<StoredPage>& layer : index.experts) {
    const auto number = static_cast<int>(pages_.size());
    const model::LayerSpec& layer_spec =
        number < num_encoder_layers_
            ? spec().encoder_layers[static_cast<size_t>(number)]
            : spec().layers[static_cast<size_t>(number - num_encoder_layers_)];
    std::vector<Page>& pages = pages_.emplace_back();
    for (StoredPage& stored : layer) {
      paged_bytes_ += stored.size_bytes;
      pages.push_back({.stored = std::move(stored),
                       .layer = number,
                       .even_share = double(layer_spec.moe->top_k) / layer_spec.moe->num_experts});
    }
  }
  streaming_ = PagingOf(/*encoder=*/false, std::numeric_limits<int64_t>::max());
  ChooseStaying();
}

void PagedWeights::ChooseStaying() {
  const int staying =
      strategy::StayingExperts(spec(), options_.num_buffers, streaming_, options_.owner);
  for (std::vector<Page>& layer : pages_) {
    const auto num_experts = static_cast<int>(layer.size());
    const int of_layer = std::min(staying, num_experts);
    // Evenly among them, so that each part has as many.
    for (int expert = 0; expert < num_experts; ++expert) {
      layer[static_cast<size_t>(expert)].stays =
          (expert + 1) * of_layer / num_experts > expert * of_layer / num_experts;
    }
  }
}

strategy::Part PagedWeights::OwnExperts(LayerId id) const {
  const auto& layers = id.encoder ? spec().encoder_layers : spec().layers;
  return options_.owner.roles.ExpertsOf(options_.owner.rank, layers[id.layer].moe->num_experts);
}

strategy::Paging PagedWeights::PagingOf(bool encoder, int64_t num_tokens) const {
  const strategy::ExpertOwner largest = strategy::LargestOwner(spec(), options_.owner.roles);
  int num_buffers = options_.least_buffers > 0 ? options_.least_buffers : options_.num_buffers;
  // Ranks that have room for all of their experts need not have equally many, and must cut alike.
  if (options_.least_buffers == 0 && options_.owner.roles.num_ranks() > 1) {
    num_buffers = std::max(num_buffers, strategy::CountExperts(spec(), largest));
  }
  strategy::Paging paging = strategy::PagingOf(spec(), encoder, num_buffers, num_tokens, largest);
  // The link to a GPU is what a step waits for, and it stands still for little more than the tenth
  // of a millisecond that a layer takes until its router has chosen. A guess could gain no more
  // than that, and a wrong one takes an expert's time.
  if (lends_on_device() != DeviceLoans::kNone) paging.predicts = false;
  return paging;
}

std::vector<int> PagedWeights::ExpertsOfChunk(int layer, int chunk) const {
  const std::vector<int> ends =
      strategy::ExpertEnds({.chunks = streaming_.chunks, .cut = strategy::ChunkCut::kExperts},
                           static_cast<int>(pages_[layer].size()));
  std::vector<int> experts;
  for (int expert = chunk > 0 ? ends[chunk - 1] : 0; expert < ends[chunk]; ++expert) {
    experts.push_back(expert);
  }
  return experts;
}

void PagedWeights::ReadAhead(LayerId id, int chunk) {
  const int layer = IndexOf(id);
  std::vector<Page*> pages;
  for (const int expert : ExpertsOfChunk(layer, chunk)) {
    pages.push_back(&pages_[layer][expert]);
  }
  ReadChunk(id, chunk, std::move(pages), {.streams = true, .layer = layer});
}

void PagedWeights::ReadChosen(LayerId id, int chunk, const std::vector<int>& chosen) {
  const int layer = IndexOf(id);
  std::vector<Page*> pages;
  for (const int expert : ExpertsOfChunk(layer, chunk)) {
    if (std::ranges::find(chosen, expert) == chosen.end()) continue;
    pages.push_back(&pages_[layer][expert]);
  }
  ReadChunk(id, chunk, std::move(pages), {.layer = layer});
}

void PagedWeights::ReadChunk(LayerId id, int chunk, std::vector<Page*> pages, Place place) {
  Release(id, chunk);  // of a step that ended before
  const Status fetched = Fetch(pages, place);
  const std::lock_guard lock(mutex_);
  if (fetched) {
    ahead_[{place.layer, chunk}] = std::move(pages);
  } else {
    errors_.insert_or_assign(place.layer, fetched.error());
  }
}

void PagedWeights::ReadPredicted(LayerId id, const std::vector<int>& predicted) {
  const int layer = IndexOf(id);
  std::vector<Page*> pages;
  for (const int expert : predicted) pages.push_back(&pages_[layer][expert]);
  // Where there is no room, those that were chosen come first.
  ReadSome(pages, {.layer = layer}, [&] { return chosen_layer_ != layer; });
}

void PagedWeights::BeginStep() {
  step_has_ended_ = false;
  const std::lock_guard lock(mutex_);
  ++step_;
  ++num_steps_;
}

void PagedWeights::ReadNext() {
  std::vector<Page*> wanted;
  int first_layer = -1;
  int num_chunks = 0;
  for (int layer = num_encoder_layers_; layer < std::ssize(pages_) && num_chunks < streaming_.depth;
       ++layer) {
    if (pages_[layer].empty()) continue;
    if (first_layer < 0) first_layer = layer;
    for (int chunk = 0; chunk < streaming_.chunks && num_chunks < streaming_.depth;
         ++chunk, ++num_chunks) {
      for (const int expert : ExpertsOfChunk(layer, chunk)) {
        wanted.push_back(&pages_[layer][expert]);
      }
    }
  }
  ReadSome(wanted, {.streams = true, .layer = first_layer}, [&] { return !step_has_ended_; });
}

void PagedWeights::ReadSome(const std::vector<Page*>& pages, Place place,
                            const std::function<bool()>& goes_on) {
  std::vector<Page*> held;
  std::vector<Page*> mine;
  size_t next = 0;
  // With mutex_. Whether there is one more, which is the last of `mine` then.
  const auto take_next = [&] {
    while (next < pages.size() && goes_on()) {
      Page& page = *pages[next++];
      ++page.holds;
      held.push_back(&page);
      if (page.state != State::kAbsent) continue;
      if (TakeBuffers({&page}, place, &mine)) return true;
      next = pages.size();
    }
    return false;
  };
  std::unique_lock lock(mutex_);
  if (take_next()) {
    lock.unlock();
    const Status read = ReadInto(mine, [&] {
      const std::lock_guard with_mutex(mutex_);
      return take_next();
    });
    lock.lock();
    // What could not be read is read again by whoever needs it.
    for (Page* page : mine) {
      if (page->state == State::kReading) SetThere(*page, false);
    }
    changed_.notify_all();
  }
  for (Page* page : held) --page->holds;
}

void PagedWeights::Chose(LayerId id, const std::vector<int>& chosen,
                         const std::vector<int>& predicted) {
  chosen_layer_ = IndexOf(id);
  if (predicted.empty()) return;
  std::vector<int> right;
  std::ranges::set_intersection(chosen, predicted, std::back_inserter(right));
  const std::lock_guard lock(mutex_);
  statistics_.num_chosen += std::ssize(chosen);
  statistics_.num_predicted += std::ssize(right);
}

void PagedWeights::Release(LayerId id, int chunk) {
  const std::lock_guard lock(mutex_);
  errors_.erase(IndexOf(id));  // of a read that nobody waits for any more
  const auto held = ahead_.find({IndexOf(id), chunk});
  if (held == ahead_.end()) return;
  for (Page* page : held->second) --page->holds;
  ahead_.erase(held);
}

Result<ExpertsLease> PagedWeights::LeaseExperts(LayerId id, std::span<const int> experts) {
  const int layer = IndexOf(id);
  std::vector<Page*> pages;
  for (const int expert : experts) pages.push_back(&pages_[layer][expert]);
  {
    const std::lock_guard lock(mutex_);
    const auto failed = errors_.extract(layer);
    if (!failed.empty()) return failed.mapped();
    for (Page* page : pages) CountUse(*page);
  }
  if (Status fetched = Fetch(pages, {.layer = layer}); !fetched) return fetched.error();
  const std::lock_guard lock(mutex_);
  for (Page* page : pages) page->is_fresh = false;
  leases_[++num_leases_] = std::move(pages);
  return ExpertsLease(LayerOf(id).moe->experts, *this, num_leases_);
}

void PagedWeights::End(uint64_t lease) {
  const std::lock_guard lock(mutex_);
  const auto ended = leases_.extract(lease);
  CHECK(!ended.empty(), "lease {}", lease);
  for (Page* page : ended.mapped()) --page->holds;
}

// With mutex_.
void PagedWeights::CountUse(Page& page) {
  ++page.uses;
  page.last_use = ++num_counted_;
  page.last_step = step_;
  ++statistics_.num_used;
  if (page.state == State::kThere && !page.is_fresh) ++statistics_.num_found;
  if (num_counted_ % (kUsesPerPage * sizes_.num_pages) != 0) return;
  num_steps_ /= 2;
  for (std::vector<Page>& layer : pages_) {
    for (Page& one : layer) one.uses /= 2;
  }
}

Status PagedWeights::Fetch(const std::vector<Page*>& pages, Place place) {
  std::unique_lock lock(mutex_);
  for (Page* page : pages) ++page->holds;
  Status status;
  for (;;) {
    std::vector<Page*> mine;
    status = TakeBuffers(pages, place, &mine);
    if (status && !mine.empty()) {
      lock.unlock();
      status = ReadInto(mine);
      lock.lock();
    }
    for (Page* page : mine) {
      if (page->state == State::kReading) SetThere(*page, false);
    }
    if (!mine.empty()) changed_.notify_all();
    if (!status) break;
    // Of others that are read by another thread, some may have failed: then it is our turn.
    changed_.wait(lock, [&] {
      return std::ranges::none_of(pages, [](Page* p) { return p->state == State::kReading; });
    });
    if (std::ranges::all_of(pages, [](Page* p) { return p->state == State::kThere; })) return {};
  }
  for (Page* page : pages) --page->holds;
  return status;
}

Status PagedWeights::TakeBuffers(const std::vector<Page*>& pages, Place place,
                                 std::vector<Page*>* mine) {
  for (Page* page : pages) {
    if (page->state != State::kAbsent) continue;
    const int buffer = FreeBuffer(place);
    if (buffer < 0) {
      return ResourceExhausted(fmt::format(
          "{} pages of experts are wanted at the same time, and there is memory for {}: raise {}",
          pages.size(), in_buffer_.size(),
          lends_on_device() == DeviceLoans::kNone ? "--memory-budget" : "--device-memory-budget"));
    }
    page->buffer = buffer;
    page->state = State::kReading;
    in_buffer_[buffer] = page;
    mine->push_back(page);
  }
  return {};
}

int PagedWeights::FreeBuffer(Place place) {
  int best = -1;
  std::pair<double, double> worth_least;
  for (int buffer = 0; buffer < std::ssize(in_buffer_); ++buffer) {
    const Page* page = in_buffer_[buffer];
    if (page == nullptr) return buffer;
    if (page->holds > 0 || page->state != State::kThere) continue;
    const std::pair<double, double> worth = WorthOf(*page, place);
    if (best >= 0 && worth >= worth_least) continue;
    best = buffer;
    worth_least = worth;
  }
  if (best >= 0) SetThere(*in_buffer_[best], false);
  return best;
}

std::pair<double, double> PagedWeights::WorthOf(const Page& page, Place place) const {
  const auto num_layers = static_cast<int>(pages_.size());
  // Layers until its own comes again.
  int distance = (page.layer - place.layer + num_layers) % num_layers;
  if (place.streams) return {page.stays ? 1 : 0, -distance};
  if (options_.eviction == PageEviction::kLongestUnused) {
    return {static_cast<double>(page.last_use), 0};
  }
  if (distance == 0 && page.last_step == step_) distance = num_layers;
  const double wanted =
      std::min(1.0, (page.uses + kEvenSteps * page.even_share) / (num_steps_ + kEvenSteps));
  return {-(distance + num_layers * (1 / wanted - 1)), 0};
}

void PagedWeights::SetThere(Page& page, bool is_there) {
  page.state = is_there ? State::kThere : State::kAbsent;
  for (const PagePart& part : page.stored.parts) {
    part.matrix->data = is_there ? BufferOf(page) + part.begin : nullptr;
  }
  if (is_there) return;
  in_buffer_[page.buffer] = nullptr;
  page.buffer = -1;
}

Status PagedWeights::ReadInto(const std::vector<Page*>& pages,
                              const std::function<bool()>& takes_next) {
  const std::lock_guard one_at_a_time(source_mutex_);
  const auto start = std::chrono::steady_clock::now();
  const auto read_of = [&](const Page& page) -> PageRead {
    return {.page = &page.stored, .target = BufferOf(page)};
  };
  std::vector<PageRead> reads;
  for (const Page* page : pages) reads.push_back(read_of(*page));
  uint64_t read_bytes = 0;
  const auto done = [&](size_t i) {
    read_bytes += pages[i]->stored.size_bytes;
    const std::lock_guard lock(mutex_);
    SetThere(*pages[i], true);
    pages[i]->is_fresh = true;
    ++statistics_.num_read;
    changed_.notify_all();  // somebody may wait for this page alone, while others still come
  };
  PageSource::Next next;
  if (takes_next) {
    next = [&]() -> std::optional<PageRead> {
      if (!takes_next()) return std::nullopt;
      return read_of(*pages.back());
    };
  }
  const Status status = source_->Read(reads, done, next);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const std::lock_guard lock(mutex_);
  statistics_.read_bytes += read_bytes;
  statistics_.read_seconds += elapsed.count();
  return status;
}

PageStatistics PagedWeights::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

std::string PagedWeights::Describe() const {
  const double share = static_cast<double>(options_.num_buffers) / std::max(1, sizes_.num_pages);
  double of_token = 0;  // pages that one reads here, on even routing
  for (const model::LayerSpec& layer : spec().layers) {
    if (!layer.moe) continue;
    const double experts = layer.moe->num_experts;
    const int own =
        options_.owner.roles.ExpertsOf(options_.owner.rank, layer.moe->num_experts).size;
    of_token += layer.moe->top_k * own / experts;
  }
  const auto bytes = [&](double pages) {
    return FormatBytes(
        static_cast<uint64_t>(pages * (1 - share) * static_cast<double>(sizes_.page_bytes)));
  };
  return fmt::format(
      "paged: {} of weights stay in memory; {} of experts, {} pages, are read from {}, of which "
      "{} has {} ({:.0f} %); on even routing a step of one sequence reads {}, one that needs all "
      "experts {}",
      FormatBytes(sizes_.resident_bytes), FormatBytes(paged_bytes_),
      FormatCount(static_cast<uint64_t>(sizes_.num_pages)), source_->Describe(),
      lends_on_device() == DeviceLoans::kNone ? "memory" : "the device",
      FormatCount(static_cast<uint64_t>(options_.num_buffers)), 100 * share, bytes(of_token),
      bytes(sizes_.num_pages));
}

}  // namespace convene::weights
