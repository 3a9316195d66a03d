#include "weights/paged_weights.h"

#include <fmt/format.h>

#include <algorithm>
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
  const Result<int> placed = hardware::PlaceMemory(storage->bytes(), options.cpus, options.numa);
  if (!placed) return placed.error();
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
  return std::unique_ptr<PagedWeights>(new PagedWeights(*weights, std::move(index), options,
                                                        *std::move(file), {.memory = next}, sizes));
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
  std::byte* const memory = buffers->data();
  return std::unique_ptr<PagedWeights>(
      new PagedWeights(weights, std::move(index), options,
                       std::make_unique<HostPages>(weights.bytes.data(), std::move(lane)),
                       {.memory = memory, .reserved = *std::move(buffers)}, sizes));
}

PagedWeights::PagedWeights(ModelWeights& weights, PageIndex index, const PagedOptions& options,
                           std::unique_ptr<PageSource> source, Buffers buffers,
                           const PagedSizes& sizes)
    : WeightStore(weights),
      sizes_(sizes),
      options_(options),
      num_encoder_layers_(weights.encoder ? static_cast<int>(weights.encoder->layers.size()) : 0),
      buffer_memory_(std::move(buffers.reserved)),
      streaming_(PagingOf(/*encoder=*/false, std::numeric_limits<int64_t>::max())),
      pages_(LayersOf(std::move(index)),
             {.num_buffers = options.num_buffers,
              .page_bytes = sizes.page_bytes,
              .eviction = options.eviction,
              .raise = lends_on_device() == DeviceLoans::kNone ? "--memory-budget"
                                                               : "--device-memory-budget"},
             std::move(source), buffers.memory) {}

std::vector<PageBuffers::Layer> PagedWeights::LayersOf(PageIndex index) {
  const int staying =
      strategy::StayingExperts(spec(), options_.num_buffers, streaming_, options_.owner);
  std::vector<PageBuffers::Layer> layers;
  for (std::vector<StoredPage>& pages : index.experts) {
    const auto number = static_cast<int>(layers.size());
    const model::LayerSpec& of_layer =
        number < num_encoder_layers_
            ? spec().encoder_layers[static_cast<size_t>(number)]
            : spec().layers[static_cast<size_t>(number - num_encoder_layers_)];
    for (const StoredPage& page : pages) paged_bytes_ += page.size_bytes;
    PageBuffers::Layer& layer = layers.emplace_back();
    layer.pages = std::move(pages);
    layer.num_staying = staying;
    if (of_layer.moe) layer.even_share = double(of_layer.moe->top_k) / of_layer.moe->num_experts;
  }
  return layers;
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
                           pages_.num_experts(layer));
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
    pages.push_back(pages_.page(layer, expert));
  }
  ReadChunk(id, chunk, std::move(pages), {.streams = true, .layer = layer});
}

void PagedWeights::ReadChosen(LayerId id, int chunk, const std::vector<int>& chosen) {
  const int layer = IndexOf(id);
  std::vector<Page*> pages;
  for (const int expert : ExpertsOfChunk(layer, chunk)) {
    if (std::ranges::find(chosen, expert) == chosen.end()) continue;
    pages.push_back(pages_.page(layer, expert));
  }
  ReadChunk(id, chunk, std::move(pages), {.layer = layer});
}

void PagedWeights::ReadChunk(LayerId id, int chunk, std::vector<Page*> pages, Place place) {
  Release(id, chunk);  // of a step that ended before
  const Status fetched = pages_.Fetch(pages, place);
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
  for (const int expert : predicted) pages.push_back(pages_.page(layer, expert));
  // Where there is no room, those that were chosen come first.
  pages_.ReadSome(pages, {.layer = layer}, [&] { return chosen_layer_ != layer; });
}

void PagedWeights::BeginStep() {
  step_has_ended_ = false;
  pages_.BeginStep();
}

void PagedWeights::ReadNext() {
  std::vector<Page*> wanted;
  int first_layer = -1;
  int num_chunks = 0;
  for (int layer = num_encoder_layers_;
       layer < pages_.num_layers() && num_chunks < streaming_.depth; ++layer) {
    if (pages_.num_experts(layer) == 0) continue;
    if (first_layer < 0) first_layer = layer;
    for (int chunk = 0; chunk < streaming_.chunks && num_chunks < streaming_.depth;
         ++chunk, ++num_chunks) {
      for (const int expert : ExpertsOfChunk(layer, chunk)) {
        wanted.push_back(pages_.page(layer, expert));
      }
    }
  }
  pages_.ReadSome(wanted, {.streams = true, .layer = first_layer},
                  [&] { return !step_has_ended_; });
}

void PagedWeights::Chose(LayerId id, const std::vector<int>& chosen,
                         const std::vector<int>& predicted) {
  chosen_layer_ = IndexOf(id);
  if (predicted.empty()) return;
  std::vector<int> right;
  std::ranges::set_intersection(chosen, predicted, std::back_inserter(right));
  num_chosen_ += std::ssize(chosen);
  num_predicted_ += std::ssize(right);
}

void PagedWeights::Release(LayerId id, int chunk) {
  const std::lock_guard lock(mutex_);
  errors_.erase(IndexOf(id));  // of a read that nobody waits for any more
  const auto held = ahead_.extract({IndexOf(id), chunk});
  if (!held.empty()) pages_.Release(held.mapped());
}

Result<ExpertsLease> PagedWeights::LeaseExperts(LayerId id, std::span<const int> experts) {
  const int layer = IndexOf(id);
  std::vector<Page*> pages;
  for (const int expert : experts) pages.push_back(pages_.page(layer, expert));
  {
    const std::lock_guard lock(mutex_);
    const auto failed = errors_.extract(layer);
    if (!failed.empty()) return failed.mapped();
  }
  if (Status fetched = pages_.Use(pages, {.layer = layer}); !fetched) return fetched.error();
  const std::lock_guard lock(mutex_);
  leases_[++num_leases_] = std::move(pages);
  return ExpertsLease(LayerOf(id).moe->experts, *this, num_leases_);
}

void PagedWeights::End(uint64_t lease) {
  const std::lock_guard lock(mutex_);
  const auto ended = leases_.extract(lease);
  CHECK(!ended.empty(), "lease {}", lease);
  pages_.Release(ended.mapped());
}

PageStatistics PagedWeights::statistics() const {
  return {pages_.reads(), num_chosen_, num_predicted_};
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
      FormatCount(static_cast<uint64_t>(sizes_.num_pages)), pages_.DescribeSource(),
      lends_on_device() == DeviceLoans::kNone ? "memory" : "the device",
      FormatCount(static_cast<uint64_t>(options_.num_buffers)), 100 * share, bytes(of_token),
      bytes(sizes_.num_pages));
}

}  // namespace convene::weights
