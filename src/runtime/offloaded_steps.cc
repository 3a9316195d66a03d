#include "runtime/offloaded_steps.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "runtime/cut_step.h"
#include "runtime/step_memory.h"

namespace convene::runtime {

using device::AttentionRows;
using device::kKvBlockTokens;
using device::SequenceStep;
using schedule::Task;
using schedule::TaskKind;

namespace {

// Of the device's own cache, where all blocks that are used are places behind it.
constexpr int kFewestBlocks = 1;

// Where keys and values of all sequences lie in a device's own memory between steps.
bool KeepsCache(const device::Device& device, strategy::OffloadOrder order) {
  return order == strategy::OffloadOrder::kLayerwise &&
         device.memory() == memory::TierKind::kDevice;
}

int BlocksOf(int tokens) { return (tokens + kKvBlockTokens - 1) / kKvBlockTokens; }

}  // namespace

OffloadedSteps::OffloadedSteps(std::unique_ptr<weights::StreamedWeights> weights,
                               const weights::ModelWeights& slow, device::KvCache& host_cache,
                               LimitedLink up, LimitedLink down, const OffloadedOptions& options)
    : options_(options),
      weights_(std::move(weights)),
      slow_(slow),
      host_cache_(host_cache),
      micro_batches_(static_cast<size_t>(options.pipeline.micro_batches)),
      up_(std::move(up)),
      down_(std::move(down)) {}

TransformerOptions OffloadedSteps::StepOptions(const OffloadedOptions& options) {
  TransformerOptions of_steps{
      .max_step_tokens = std::max(options.max_sequences, options.max_step_tokens),
      .num_kv_blocks = kFewestBlocks,
      .context = options.context,
      .activations = options.activations,
      .kv = options.kv,
      // All rows pass the link.
      .prunes_last_layer = false};
  of_steps.parallel.pipeline.micro_batches = options.pipeline.micro_batches;
  of_steps.parallel.host_cpus = options.cpus.host;
  return of_steps;
}

Status OffloadedSteps::Supports(const model::ModelSpec& spec) {
  for (const model::LayerSpec& layer : spec.layers) {
    if (!layer.attention.latent) continue;
    return Error{
        "latent attention has no part that a host could compute beside a device: take a model "
        "without it"};
  }
  return {};
}

uint64_t OffloadedSteps::PlannedRowBytes(const model::ModelSpec& spec,
                                         const OffloadedOptions& options) {
  uint64_t row_elements = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    const model::AttentionSpec& attention = layer.attention;
    const int elements = attention.num_heads * kernels::PaddedHead(attention.head_dim) +
                         attention.kv_dim() + attention.value_width() + attention.output_dim();
    row_elements = std::max(row_elements, static_cast<uint64_t>(elements));
  }
  const auto count = static_cast<uint64_t>(options.pipeline.micro_batches);
  const auto rows =
      static_cast<uint64_t>(StepShapeOf(spec, StepOptions(options)).frames.front().tokens);
  return count * rows * row_elements * sizeof(float);
}

Result<std::unique_ptr<OffloadedSteps>> OffloadedSteps::Create(
    const weights::ModelWeights& weights, device::Device& device, device::Device& host,
    device::KvCache& host_cache, const OffloadedOptions& options, const Memory& memory) {
  if (const Status fits = Supports(weights.spec); !fits) return fits.error();
  auto up = device.CreateCopyLane();
  if (!up) return up.error();
  auto down = device.CreateCopyLane();
  if (!down) return down.error();
  const bool is_cgo = options.pipeline.order == strategy::OffloadOrder::kCgo;
  auto streamed =
      weights::StreamedWeights::Create(weights,
                                       {.pages = strategy::PagesOf(options.pipeline),
                                        .pinned_pages = is_cgo ? options.pipeline.pinned_pages : 0},
                                       memory.device, memory.host);
  if (!streamed) return streamed.error();
  std::unique_ptr<OffloadedSteps> steps(
      new OffloadedSteps(*std::move(streamed), weights, host_cache,
                         LimitedLink(*std::move(up), options.link_bytes_per_second),
                         LimitedLink(*std::move(down), options.link_bytes_per_second), options));
  if (const Status loaded = steps->LoadFirst(); !loaded) return loaded.error();
  const bool keeps_cache = KeepsCache(device, options.pipeline.order);
  const int num_device_blocks = keeps_cache ? host_cache.num_blocks() : kFewestBlocks;
  steps->first_place_ = keeps_cache ? 0 : num_device_blocks;
  TransformerOptions of_steps = StepOptions(options);
  of_steps.num_kv_blocks = num_device_blocks;
  auto runner = StepRunner::Create(*steps->weights_, device, of_steps, memory.device);
  if (!runner) return runner.error();
  steps->runner_ = *std::move(runner);
  steps->fence_ = device.CreateEvent();
  const Status created = steps->attends_on_host() ? steps->CreateHost(host, of_steps, memory)
                                                  : steps->CreateDeviceCache(device, memory.device);
  if (!created) return created.error();
  strategy::OffloadPipeline pipeline = options.pipeline;
  pipeline.next_step = true;
  auto schedule = std::make_shared<const schedule::Schedule>(
      strategy::BuildOffloadPipeline(weights.spec, pipeline));
  ProgramKey key;
  key.pipeline = of_steps.parallel.pipeline;
  steps->program_.emplace(Program{key, schedule, RankProgram(*schedule, /*rank=*/0)});
  return steps;
}

Status OffloadedSteps::CreateHost(device::Device& host, const TransformerOptions& options,
                                  const Memory& memory) {
  const model::ModelSpec& spec = slow_.spec();
  const device::StepShape shape = StepShapeOf(spec, options);
  auto stream = host.CreateStream(slow_, host_cache_,
                                  {.activations = options.activations,
                                   .wire = WireRowsOf(spec, options),
                                   .roles = options.parallel.roles,
                                   .whole_spec = spec,
                                   .shape = shape},
                                  memory.host);
  if (!stream) return stream.error();
  host_ = *std::move(stream);
  RowSizes sizes;
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    const auto row_bytes = [&](AttentionRows kind) {
      const int64_t bytes = host_->AttentionRowBytes(kind, runner_->layer(layer));
      CHECK(bytes == runner_->stream().AttentionRowBytes(kind, runner_->layer(layer)),
            "rows of {} bytes between unlike streams", bytes);
      return static_cast<size_t>(bytes);
    };
    sizes.qkv = std::max(sizes.qkv, row_bytes(AttentionRows::kQkv));
    sizes.attended = std::max(sizes.attended, row_bytes(AttentionRows::kAttended));
  }
  const auto num_rows = static_cast<size_t>(shape.frames.front().tokens);
  if (const Status created = CreateRows(sizes, num_rows, memory); !created) return created;
  for (size_t i = 0; i < micro_batches_.size(); ++i) {
    auto frame = host.CreateFrameMemory(spec, options.activations, shape.frames[i], memory.host);
    if (!frame) return frame.error();
    micro_batches_[i].on_host = std::make_unique<device::Frame>(
        spec, FrameOptions(spec, options, static_cast<int>(i)), *std::move(frame), nullptr);
  }
  return {};
}

Status OffloadedSteps::CreateRows(RowSizes sizes, size_t num_rows, const Memory& memory) {
  const size_t size_bytes = micro_batches_.size() * num_rows * (sizes.qkv + sizes.attended);
  auto on_device = memory.device.Allocate(memory::Use::kExchange, size_bytes);
  if (!on_device) return on_device.error();
  auto on_host = memory.host.Allocate(memory::Use::kExchange, size_bytes);
  if (!on_host) return on_host.error();
  rows_on_device_ = *std::move(on_device);
  rows_on_host_ = *std::move(on_host);
  size_t offset = 0;
  for (MicroBatch& micro_batch : micro_batches_) {
    const auto take = [&](size_t row_bytes) {
      const size_t begin = std::exchange(offset, offset + num_rows * row_bytes);
      return Travelling{rows_on_device_.data() + begin, rows_on_host_.data() + begin};
    };
    micro_batch.qkv = take(sizes.qkv);
    micro_batch.attended = take(sizes.attended);
  }
  return {};
}

Status OffloadedSteps::CreateDeviceCache(const device::Device& device, memory::Ledger& ledger) {
  device::KvCache& cache = runner_->kv_cache();
  if (KeepsCache(device, options_.pipeline.order)) return FillDeviceCache();
  cache.SetPlaces(host_cache_.num_blocks());
  if (options_.pipeline.order == strategy::OffloadOrder::kLayerwise) {
    // On a machine whose host is its device, the cache is on the device already.
    for (int layer = 0; layer < cache.num_layers(); ++layer) {
      for (int block = 0; block < host_cache_.num_blocks(); ++block) {
        cache.Put(layer, block, host_cache_.Address(layer, block));
      }
    }
    return {};
  }
  for (int layer = 0; layer < cache.num_layers(); ++layer) {
    slot_bytes_ = std::max(slot_bytes_, static_cast<size_t>(cache.BlockBytes(layer)));
  }
  const int count = options_.pipeline.micro_batches;
  buffer_slots_ = (options_.max_sequences + count - 1) / count * BlocksOf(options_.context);
  auto memory =
      ledger.Allocate(memory::Use::kKvCache, 2 * static_cast<size_t>(buffer_slots_) * slot_bytes_);
  if (!memory) return memory.error();
  cache_buffers_ = *std::move(memory);
  return {};
}

Status OffloadedSteps::FillDeviceCache() {
  const device::KvCache& cache = runner_->kv_cache();
  up_.Begin();
  for (int layer = 0; layer < cache.num_layers(); ++layer) {
    for (int block = 0; block < host_cache_.num_blocks(); ++block) {
      up_.Copy(cache.Address(layer, block), host_cache_.Address(layer, block),
               static_cast<size_t>(cache.BlockBytes(layer)));
    }
  }
  return up_.End();
}

Status OffloadedSteps::LoadFirst() {
  if (Status loaded = Copy(weights_->First(), up_); !loaded) return loaded;
  first_is_there_ = true;
  return {};
}

Status OffloadedSteps::Begin(std::span<const SequenceStep> step, const LogitsSink* sink) {
  std::vector<SequenceStep> on_device(step.begin(), step.end());
  device_blocks_.resize(step.size());
  for (size_t i = 0; i < step.size(); ++i) {
    CHECK(attends_on_host() || (step[i].tokens.size() == 1 && step[i].first_logits_token == 0),
          "no step of one generated token each");
    const auto length = step[i].first_position + static_cast<int>(step[i].tokens.size());
    CHECK(length <= options_.context, "{} tokens of {}", length, options_.context);
    device_blocks_[i].assign(step[i].blocks.begin(), step[i].blocks.end());
    for (int32_t& block : device_blocks_[i]) block += first_place_;
    on_device[i].blocks = device_blocks_[i];
  }
  weights_->BeginStep();
  if (!first_is_there_) {
    if (Status loaded = LoadFirst(); !loaded) return loaded;
  }
  first_is_there_ = false;
  runner_->BeginForward(on_device, *program_, sink);
  const auto count = static_cast<int>(micro_batches_.size());
  for (int i = 0; i < count; ++i) {
    MicroBatch& micro_batch = micro_batches_[i];
    micro_batch.sequences = CutStep(step, /*group=*/0, i, count);
    if (!attends_on_host()) continue;
    micro_batch.on_host->Begin(micro_batch.sequences);
    host_->Begin(*micro_batch.on_host);
  }
  return {};
}

Status OffloadedSteps::End(const Status& run) {
  if (!run) return run;
  Status ended = runner_->End();
  first_is_there_ = ended.ok();
  return ended;
}

void OffloadedSteps::AwaitDevice() {
  runner_->stream().Record(*fence_);
  fence_->Wait();
}

size_t OffloadedSteps::RowsBytes(AttentionRows kind, const Task& task) {
  return static_cast<size_t>(host_->AttentionRowBytes(kind, runner_->layer(task.layer))) *
         static_cast<size_t>(micro_batches_[FrameOf(task)].on_host->rows.num_rows());
}

void OffloadedSteps::Compute(const Task& task) {
  const int index = FrameOf(task);
  MicroBatch& micro_batch = micro_batches_[index];
  device::Stream& stream = runner_->stream();
  device::Frame& frame = runner_->frame(index);
  switch (task.kind) {
    case TaskKind::kPreAttention:
      runner_->Compute(task);
      if (!attends_on_host()) break;
      stream.PackAttention(AttentionRows::kQkv, runner_->layer(task.layer), frame,
                           micro_batch.qkv.on_device);
      break;
    case TaskKind::kAttend: {
      const Status attended = stream.AttendSequences(
          runner_->layer(task.layer), {0, static_cast<int>(micro_batch.sequences.size())},
          /*only_wanted=*/false, frame);
      CHECK(attended.ok(), "{}", attended.error().message);
      break;
    }
    case TaskKind::kPostAttention:
      if (attends_on_host()) {
        stream.UnpackAttention(AttentionRows::kAttended, runner_->layer(task.layer),
                               micro_batch.attended.on_device, frame);
      }
      runner_->Compute(task);
      break;
    default:
      runner_->Compute(task);
  }
  // Tasks of other lanes that wait for this one copy what it made, or to where it read; and its
  // time is what it took.
  AwaitDevice();
}

std::unique_ptr<comm::Exchange> OffloadedSteps::Start(const Task& task) {
  CHECK(false, "an exchange on one rank: {}", Label(task));
}

Status OffloadedSteps::RunOnLane(const Task& task, hardware::ThreadPool*) {
  MicroBatch& micro_batch = micro_batches_[FrameOf(task)];
  switch (task.kind) {
    case TaskKind::kSendQkv:
      down_.Begin();
      down_.Copy(micro_batch.qkv.on_host, micro_batch.qkv.on_device,
                 RowsBytes(AttentionRows::kQkv, task));
      return down_.End();
    case TaskKind::kAttend:
      return AttendOnHost(task);
    case TaskKind::kSendHidden:
      up_.Begin();
      up_.Copy(micro_batch.attended.on_device, micro_batch.attended.on_host,
               RowsBytes(AttentionRows::kAttended, task));
      return up_.End();
    case TaskKind::kStagePage:
      return Stage(task);
    case TaskKind::kLoadPage:
      return Copy(weights_->Loading(task.layer, task.chunk), up_);
    case TaskKind::kReadKv:
      return LoadCache(task);
    case TaskKind::kWriteKv:
      return StoreCache(task);
    default:
      CHECK(false, "nothing runs on lane {}: {}", schedule::Name(task.lane.kind), Label(task));
  }
}

Status OffloadedSteps::Copy(std::span<const weights::StreamedWeights::Copy> copies,
                            LimitedLink& link) {
  link.Begin();
  for (const auto& copy : copies) link.Copy(copy.to, copy.from, copy.size_bytes);
  return link.End();
}

Status OffloadedSteps::Stage(const Task& task) {
  // As large as a thread copies in a fraction of a millisecond.
  constexpr size_t kPieceBytes = size_t{1} << 20;
  std::vector<weights::StreamedWeights::Copy> pieces;
  for (const auto& copy : weights_->Staging(task.layer, task.chunk)) {
    for (size_t done = 0; done < copy.size_bytes; done += kPieceBytes) {
      pieces.push_back({.from = copy.from + done,
                        .to = copy.to + done,
                        .size_bytes = std::min(kPieceBytes, copy.size_bytes - done)});
    }
  }
  const auto copy = [&](int64_t index, int) {
    const auto& piece = pieces[static_cast<size_t>(index)];
    std::memcpy(piece.to, piece.from, piece.size_bytes);
  };
  if (options_.staging != nullptr) {
    options_.staging->ParallelFor(std::ssize(pieces), copy);
  } else {
    for (int64_t i = 0; i < std::ssize(pieces); ++i) copy(i, 0);
  }
  return {};
}

Status OffloadedSteps::AttendOnHost(const Task& task) {
  MicroBatch& micro_batch = micro_batches_[FrameOf(task)];
  const device::Layer& layer = runner_->layer(task.layer);
  device::Frame& frame = *micro_batch.on_host;
  host_->UnpackAttention(AttentionRows::kQkv, layer, micro_batch.qkv.on_host, frame);
  const Status attended =
      host_->AttendSequences(layer, {0, static_cast<int>(micro_batch.sequences.size())},
                             /*only_wanted=*/false, frame);
  if (!attended) return attended;
  host_->PackAttention(AttentionRows::kAttended, layer, frame, micro_batch.attended.on_host);
  return {};
}

std::byte* OffloadedSteps::BufferOf(const Task& task) const {
  const int item = task.layer * options_.pipeline.micro_batches + FrameOf(task);
  return cache_buffers_.data() +
         static_cast<size_t>(item % 2) * static_cast<size_t>(buffer_slots_) * slot_bytes_;
}

Status OffloadedSteps::LoadCache(const Task& task) {
  device::KvCache& cache = runner_->kv_cache();
  const auto block_bytes = static_cast<size_t>(cache.BlockBytes(task.layer));
  std::byte* slot = BufferOf(task);
  up_.Begin();
  for (const SequenceStep& sequence : micro_batches_[FrameOf(task)].sequences) {
    for (int i = 0; i < BlocksOf(sequence.first_position + 1); ++i, slot += slot_bytes_) {
      const int earlier =
          std::clamp(sequence.first_position - i * kKvBlockTokens, 0, kKvBlockTokens);
      if (earlier > 0) {
        up_.CopyCounting(slot, host_cache_.Address(task.layer, sequence.blocks[i]), block_bytes,
                         block_bytes * static_cast<size_t>(earlier) / kKvBlockTokens);
      }
      cache.Put(task.layer, sequence.blocks[i], slot);
    }
    up_.Pause();
  }
  return up_.End();
}

Status OffloadedSteps::StoreCache(const Task& task) {
  const device::KvCache& cache = runner_->kv_cache();
  const auto block_bytes = static_cast<size_t>(cache.BlockBytes(task.layer));
  down_.Begin();
  for (const SequenceStep& sequence : micro_batches_[FrameOf(task)].sequences) {
    const int32_t block = sequence.blocks[sequence.first_position / kKvBlockTokens];
    down_.CopyCounting(host_cache_.Address(task.layer, block),
                       cache.Address(task.layer, first_place_ + block), block_bytes,
                       block_bytes / kKvBlockTokens);
  }
  return down_.End();
}

}  // namespace convene::runtime
