#include "runtime/spilled_kv.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "memory/page_reader.h"

namespace convene::runtime {

using device::kKvBlockTokens;
using device::SequenceStep;
using memory::DirectBytes;

namespace {

// That hold the sequence when the step has ended.
int BlocksOfSpilled(const SequenceStep& sequence) {
  const int end = sequence.first_position + static_cast<int>(sequence.tokens.size());
  return (end + kKvBlockTokens - 1) / kKvBlockTokens;
}

std::vector<int> WindowsOf(const model::ModelSpec& spec) {
  std::vector<int> windows;
  for (const model::LayerSpec& layer : spec.layers) windows.push_back(layer.attention.window);
  return windows;
}

}  // namespace

Status SpilledKv::Supports(const model::ModelSpec& spec, const TransformerOptions& options) {
  const bool has_latents = std::ranges::any_of(
      spec.layers, [](const auto& layer) { return layer.attention.latent.has_value(); });
  const char* what = nullptr;
  if (options.parallel.roles.num_ranks() > 1) what = "of several ranks";
  if (spec.has_encoder()) what = "of a model with an encoder";
  if (has_latents) what = "of a model with latent attention";
  if (options.expert_capacity > 0) what = "beside a capacity of experts";
  if (what == nullptr) return {};
  return Error{
      fmt::format("keys and values {} cannot be kept on a disk: leave --spill-dir out, or "
                  "--spill-dir none",
                  what)};
}

uint64_t SpilledKv::BufferBytes(const KvSpillOptions& options, uint64_t layer_bytes) {
  return DirectBytes(layer_bytes) * static_cast<uint64_t>(options.part_blocks) *
         static_cast<uint64_t>(options.depth);
}

uint64_t SpilledKv::FileBytes(int num_blocks, int num_layers, uint64_t layer_bytes) {
  return DirectBytes(layer_bytes) * static_cast<uint64_t>(num_blocks) *
         static_cast<uint64_t>(num_layers);
}

SpilledKv::SpilledKv(KvSpillOptions options, device::KvCache& cache, std::vector<int> windows)
    : options_(std::move(options)), cache_(cache), windows_(std::move(windows)) {}

Result<std::unique_ptr<SpilledKv>> SpilledKv::Create(const KvSpillOptions& options,
                                                     const model::ModelSpec& spec,
                                                     device::KvCache& cache,
                                                     memory::Ledger& ledger) {
  CHECK(options.num_blocks > 0 && options.part_blocks > 0 && options.depth > 0,
        "{} blocks on a disk, {} at a time in each of {} buffers", options.num_blocks,
        options.part_blocks, options.depth);
  std::unique_ptr<SpilledKv> spilled(new SpilledKv(options, cache, WindowsOf(spec)));
  uint64_t file_bytes = 0;
  for (int layer = 0; layer < cache.num_layers(); ++layer) {
    const uint64_t size = DirectBytes(static_cast<uint64_t>(cache.BlockBytes(layer)));
    spilled->slot_bytes_ = std::max(spilled->slot_bytes_, size);
    spilled->layer_offsets_.push_back(file_bytes);
    file_bytes += size * static_cast<uint64_t>(options.num_blocks);
  }
  auto file = memory::SpillFile::Create(options.directory, file_bytes, options.file);
  if (!file) return file.error();
  spilled->file_ = *std::move(file);
  auto memory = ledger.Allocate(memory::Use::kKvCache, BufferBytes(options, spilled->slot_bytes_));
  if (!memory) return memory.error();
  spilled->memory_ = *std::move(memory);
  return spilled;
}

double SpilledKv::missing() const {
  return static_cast<double>(options_.num_blocks) / (options_.num_blocks + cache_.num_blocks());
}

int SpilledKv::CountSpilled(const SequenceStep& sequence) const {
  const auto blocks = sequence.blocks.first(static_cast<size_t>(BlocksOfSpilled(sequence)));
  return static_cast<int>(
      std::ranges::count_if(blocks, [&](int32_t block) { return block >= cache_.num_blocks(); }));
}

int SpilledKv::CountParts(std::span<const SequenceStep> step) const {
  int count = 1;
  int used = 0;
  for (const SequenceStep& sequence : step) {
    const int spilled = CountSpilled(sequence);
    CHECK(spilled <= options_.part_blocks, "{} blocks of a sequence, and a buffer for {}", spilled,
          options_.part_blocks);
    if (used + spilled > options_.part_blocks) {
      ++count;
      used = 0;
    }
    used += spilled;
  }
  return count;
}

void SpilledKv::Begin(std::vector<SequenceStep>& step) {
  parts_.assign(1, {});
  blocks_.assign(step.size(), {});
  std::map<int32_t, int32_t> places;  // of the part, by block
  int num_places = 0;
  int used = 0;
  for (int i = 0; i < std::ssize(step); ++i) {
    SequenceStep& sequence = step[i];
    const int spilled = CountSpilled(sequence);
    if (used + spilled > options_.part_blocks) {
      parts_.push_back({.sequences = {i, i}, .first_place = num_places});
      places.clear();
      used = 0;
    }
    used += spilled;
    StepPart& part = parts_.back();
    part.sequences.end = i + 1;
    for (int j = 0; j < BlocksOfSpilled(sequence); ++j) {
      const int32_t block = sequence.blocks[j];
      if (block < cache_.num_blocks()) {
        blocks_[i].push_back(block);
        continue;
      }
      const auto [place, is_new] = places.try_emplace(block, cache_.num_blocks() + num_places);
      blocks_[i].push_back(place->second);
      const int first = j * kKvBlockTokens;
      const int last = first + kKvBlockTokens - 1;
      const int distance = sequence.first_position - last;
      if (is_new) {
        ++num_places;
        part.held.push_back({.block = block,
                             .has_earlier = first < sequence.first_position,
                             .changes = last >= sequence.first_position,
                             .distance = distance});
      } else {
        // Sequences share blocks that are full, and none of them changes.
        Held& held =
            part.held[static_cast<size_t>(place->second - cache_.num_blocks() - part.first_place)];
        CHECK(!held.changes && distance > 0, "block {} is written by one sequence and has others",
              block);
        held.distance = std::min(held.distance, distance);
      }
    }
    sequence.blocks = blocks_[i];
  }
  cache_.SetPlaces(num_places);
}

bool SpilledKv::Sees(int layer, const Held& held) const {
  return windows_[layer] == 0 || held.distance < windows_[layer];
}

std::byte* SpilledKv::SlotAt(int layer, int part, size_t slot) const {
  const auto number = static_cast<uint64_t>(layer) * parts_.size() + static_cast<uint64_t>(part);
  const uint64_t buffer = number % static_cast<uint64_t>(options_.depth);
  return memory_.data() +
         (buffer * static_cast<uint64_t>(options_.part_blocks) + slot) * slot_bytes_;
}

void SpilledKv::AddTransfer(int layer, int part, size_t slot) {
  const uint64_t size = DirectBytes(static_cast<uint64_t>(cache_.BlockBytes(layer)));
  const int on_disk = parts_[part].held[slot].block - cache_.num_blocks();
  const uint64_t offset = layer_offsets_[layer] + static_cast<uint64_t>(on_disk) * size;
  std::byte* const memory = SlotAt(layer, part, slot);
  if (!transfers_.empty()) {
    memory::SpillTransfer& last = transfers_.back();
    if (last.offset + last.size_bytes == offset && last.memory + last.size_bytes == memory) {
      last.size_bytes += size;
      return;
    }
  }
  transfers_.push_back({.offset = offset, .size_bytes = size, .memory = memory});
}

Status SpilledKv::Transfer(bool is_write) {
  if (transfers_.empty()) return {};
  const auto start = std::chrono::steady_clock::now();
  const Status done = is_write ? file_->Write(transfers_) : file_->Read(transfers_);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  statistics_.seconds += took.count();
  const uint64_t bytes =
      std::accumulate(transfers_.begin(), transfers_.end(), uint64_t{0},
                      [](uint64_t sum, const auto& each) { return sum + each.size_bytes; });
  (is_write ? statistics_.written_bytes : statistics_.read_bytes) += bytes;
  return done;
}

Status SpilledKv::Read(int layer, int part) {
  const StepPart& work = parts_[part];
  transfers_.clear();
  for (size_t slot = 0; slot < work.held.size(); ++slot) {
    const Held& held = work.held[slot];
    if (!Sees(layer, held)) continue;
    cache_.Put(layer, work.first_place + static_cast<int>(slot), SlotAt(layer, part, slot));
    if (held.has_earlier) AddTransfer(layer, part, slot);
  }
  return Transfer(/*is_write=*/false);
}

Status SpilledKv::Write(int layer, int part) {
  const StepPart& work = parts_[part];
  transfers_.clear();
  for (size_t slot = 0; slot < work.held.size(); ++slot) {
    if (work.held[slot].changes) AddTransfer(layer, part, slot);
  }
  const Status written = Transfer(/*is_write=*/true);
  for (size_t slot = 0; slot < work.held.size(); ++slot) {
    cache_.Put(layer, work.first_place + static_cast<int>(slot), nullptr);
  }
  return written;
}

}  // namespace convene::runtime
