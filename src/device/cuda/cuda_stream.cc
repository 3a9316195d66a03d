#include "device/cuda/cuda_stream.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "device/cuda/cuda_error.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/rows.h"
#include "model/rope.h"

namespace convene::device {

using kernels::Epilogue;
using kernels::cuda::Bf16;

namespace {

// Cosines, then sines of one position or row, as RotaryAngles has them on the CPU.
void AppendAngles(const model::RopeSpec& rope, const std::vector<float>& frequencies, int position,
                  std::vector<float>& to) {
  const auto factor = static_cast<float>(rope.attention_factor);
  for (const bool is_sine : {false, true}) {
    for (const float frequency : frequencies) {
      const double angle = static_cast<float>(position) * frequency;
      to.push_back(static_cast<float>(is_sine ? std::sin(angle) : std::cos(angle)) * factor);
    }
  }
}

int HeadRowsOf(const StepShape& shape) { return std::min(shape.head_rows, Stream::kHeadRows); }

}  // namespace

uint64_t CudaStream::WorkingBytes(const model::ModelSpec& spec, const StepShape& shape) {
  const uint64_t angles = spec.rope.DependsOnLength()
                              ? 0
                              : static_cast<uint64_t>(shape.context) * spec.rope.rotary_dim * 4;
  return CudaWorkspace::SizeBytes(spec, shape) + angles + CudaUploads::kChunkBytes;
}

CudaStream::CudaStream(weights::WeightStore& store, CudaKvCache& cache,
                       const StreamOptions& options, int num_multiprocessors,
                       memory::Ledger& ledger)
    : store_(store),
      cache_(cache),
      num_multiprocessors_(num_multiprocessors),
      context_(options.shape.context),
      head_uploads_(ledger) {}

CudaStream::~CudaStream() {
  if (stream_ != nullptr) {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  cudaFreeHost(host_logits_);
  cudaFreeHost(host_keys_);
}

Result<std::unique_ptr<CudaStream>> CudaStream::Create(weights::WeightStore& store,
                                                       CudaKvCache& cache,
                                                       const StreamOptions& options,
                                                       int num_multiprocessors,
                                                       memory::Ledger& ledger) {
  std::unique_ptr<CudaStream> stream(
      new CudaStream(store, cache, options, num_multiprocessors, ledger));
  if (Status made = CudaStatus(cudaStreamCreateWithFlags(&stream->stream_, cudaStreamNonBlocking),
                               "making a stream");
      !made) {
    return made.error();
  }
  stream->progress_ = std::make_shared<CudaProgress>(stream->stream_);
  auto weights = CudaWeights::Upload(store, ledger);
  if (!weights) return weights.error();
  stream->weights_ = *std::move(weights);
  if (Status made = stream->MakeMemory(options, ledger); !made) return made.error();
  if (Status made = stream->MakeAngles(); !made) return made.error();
  return stream;
}

Status CudaStream::MakeMemory(const StreamOptions& options, memory::Ledger& ledger) {
  const uint64_t size_bytes = CudaWorkspace::SizeBytes(spec(), options.shape);
  auto memory = ledger.Allocate(memory::Use::kWorking, size_bytes);
  if (!memory) return memory.error();
  memory_ = *std::move(memory);
  workspace_ = CudaWorkspace::At(spec(), options.shape, memory_.data());
  if (Status cleared = CudaStatus(cudaMemset(memory_.data(), 0, size_bytes), "clearing memory");
      !cleared) {
    return cleared;
  }
  void* host = nullptr;
  const size_t logits_bytes = std::max<size_t>(1, static_cast<size_t>(HeadRowsOf(options.shape))) *
                              static_cast<size_t>(workspace_.logits.stride) * sizeof(float);
  if (Status pinned = CudaStatus(cudaMallocHost(&host, logits_bytes), "pinning host memory");
      !pinned) {
    return pinned;
  }
  host_logits_ = static_cast<float*>(host);
  if (Status pinned = CudaStatus(cudaMallocHost(&host, kHeadRows * sizeof(unsigned long long)),
                                 "pinning host memory");
      !pinned) {
    return pinned;
  }
  host_keys_ = static_cast<unsigned long long*>(host);
  if (spec().rope.rotary_dim == 0 || spec().rope.DependsOnLength()) return {};
  auto angles = ledger.Allocate(memory::Use::kWorking, static_cast<uint64_t>(context_) *
                                                           spec().rope.rotary_dim * sizeof(float));
  if (!angles) return angles.error();
  angles_memory_ = *std::move(angles);
  return {};
}

Status CudaStream::MakeAngles() {
  const model::RopeSpec& rope = spec().rope;
  if (rope.rotary_dim == 0 || rope.DependsOnLength()) return {};
  const std::vector<float> frequencies = model::InverseFrequencies(rope, 0);
  std::vector<float> angles;
  angles.reserve(static_cast<size_t>(context_) * static_cast<size_t>(rope.rotary_dim));
  for (int position = 0; position < context_; ++position) {
    AppendAngles(rope, frequencies, position, angles);
  }
  angles_ = reinterpret_cast<const float*>(angles_memory_.data());
  return CudaStatus(cudaMemcpy(angles_memory_.data(), angles.data(), angles.size() * sizeof(float),
                               cudaMemcpyHostToDevice),
                    "copying the angles of positions");
}

void CudaStream::Record(Event& event) { static_cast<CudaEvent&>(event).SetTo(progress_); }

void CudaStream::Fail(const Status& status) {
  if (failed_.ok()) failed_ = status;
}

Status CudaStream::Enqueued(const char* name) {
  progress_->AddEnqueued();
  Fail(CudaStatus(cudaGetLastError(), name));
  return failed_;
}

void CudaStream::Begin(Frame& frame) {
  std::vector<float> angles;
  if (spec().rope.rotary_dim > 0 && spec().rope.DependsOnLength()) {
    for (int row = 0; row < frame.rows.num_rows(); ++row) {
      const int position = frame.rows.position(row);
      const int prompt = frame.rows.step()[frame.rows.sequence(row)].prompt_length;
      AppendAngles(spec().rope,
                   model::InverseFrequencies(spec().rope, std::max(prompt, position + 1)), position,
                   angles);
    }
  }
  Fail(CudaFrameOf(frame).Begin(frame, angles));
  CudaFrameOf(frame).normed_by = nullptr;
  progress_->AddEnqueued();
  graphs_.Abandon(stream_);  // of a step that failed on its way
  const int num_rows = frame.rows.num_rows();
  const bool has_one_each =
      num_rows == std::ssize(frame.rows.step()) && num_rows == std::ssize(frame.rows.wanted());
  if (frame.is_seen_at_end_alone && has_one_each && num_rows > 0 && num_rows <= kHeadRows &&
      failed_.ok()) {
    Fail(BeginAsOne(frame));
  } else {
    Fail(CudaFrameOf(frame).uploads.Flush(stream_));
  }
}

Status CudaStream::BeginAsOne(Frame& frame) {
  CudaFrame& at = CudaFrameOf(frame);
  const SequenceRange all{0, static_cast<int>(frame.rows.step().size())};
  for (const model::LayerSpec& layer : spec().layers) {
    const auto plan = at.PlanOf(AttentionShapeOf(layer.attention), all, /*only_wanted=*/false,
                                num_multiprocessors_, frame);
    if (!plan) return plan.error();
  }
  if (Status brought = at.uploads.Flush(stream_); !brought) return brought;
  CudaGraphs::Key key = at.Places();
  key.push_back(frame.rows.num_rows());
  key.push_back(std::ranges::all_of(frame.rows.step(), &SequenceStep::largest_suffices));
  return graphs_.Begin(std::move(key), stream_);
}

Status CudaStream::Embed(bool, Frame& frame) {
  if (graphs_.replays()) return {};
  const CudaActivations& buffers = CudaFrameOf(frame).activations;
  kernels::cuda::Embed({.table = weights_.embedding.data,
                        .table_stride = weights_.embedding.row_stride,
                        .tokens = CudaFrameOf(frame).tokens,
                        .num_rows = frame.own().count,
                        .size = spec().hidden_size,
                        .scale = spec().embedding_scale,
                        .out = buffers.hidden.data,
                        .out_stride = buffers.hidden.stride},
                       stream_);
  return Enqueued("embedding");
}

kernels::cuda::NormRows CudaStream::NormOf(const float* weight, const Frame& frame) const {
  const CudaActivations& buffers = CudaFrameOf(frame).activations;
  return {.kind = spec().norm.kind,
          .epsilon = spec().norm.epsilon,
          .weight = weight,
          .size = spec().hidden_size,
          .num_rows = frame.own().count,
          .x = buffers.hidden.data,
          .x_stride = buffers.hidden.stride,
          .out = buffers.normed.data,
          .out_stride = buffers.normed.stride,
          .out_float_stride = buffers.normed_float.stride};
}

// Where the operator before has not done it already.
void CudaStream::NormalizeRows(const float* weight, Frame& frame) {
  if (CudaFrameOf(frame).normed_by == weight) return;
  kernels::cuda::Normalize(NormOf(weight, frame), stream_);
}

void CudaStream::Normalize(const Layer& layer, bool, Frame& frame) {
  if (graphs_.replays()) return;
  NormalizeRows(WeightsOf(layer).attention_norm, frame);
  Fail(Enqueued("a norm"));
}

void CudaStream::NormalizeFinal(bool, Frame& frame) {
  if (graphs_.replays()) return;
  NormalizeRows(weights_.final_norm, frame);
  Fail(Enqueued("the last norm"));
}

// Through other memory, since rows that are read by one block of a grid are written by another one.
Status CudaStream::MoveWanted(Frame& frame) {
  const CudaFrame& at = CudaFrameOf(frame);
  const std::span<const int32_t> wanted = frame.rows.wanted();
  if (std::ssize(wanted) == frame.rows.num_rows() || wanted.empty()) return failed_;
  CudaFrameOf(frame).normed_by = nullptr;
  const CudaRows<float>& hidden = at.activations.hidden;
  const CudaRows<float>& other = at.activations.normed_float;
  const int64_t bytes = hidden.stride * int64_t{sizeof(float)};
  const auto count = static_cast<int>(wanted.size());
  kernels::cuda::Copy({.x = hidden.data,
                       .x_stride = bytes,
                       .from = at.wanted,
                       .num_rows = count,
                       .bytes = bytes,
                       .out = other.data,
                       .out_stride = bytes},
                      stream_);
  kernels::cuda::Copy({.x = other.data,
                       .x_stride = bytes,
                       .num_rows = count,
                       .bytes = bytes,
                       .out = hidden.data,
                       .out_stride = bytes},
                      stream_);
  return Enqueued("moving rows");
}

void CudaStream::KeepWanted(Frame& frame) { Fail(MoveWanted(frame)); }

void CudaStream::Multiply(const kernels::cuda::WeightMatrices& weights, const float* bias,
                          const CudaRows<Bf16>& x, int num_rows, Epilogue epilogue, float scale,
                          const CudaRows<float>& out, int columns) {
  if (num_rows == 0) return;
  statistics_.flops += 2.0 * num_rows * weights.rows * weights.cols;
  statistics_.weight_bytes += int64_t{2} * weights.rows * weights.cols;
  kernels::cuda::Multiply({.weights = weights,
                           .bias = bias,
                           .x = x.data,
                           .x_stride = x.stride,
                           .num_rows = num_rows,
                           .epilogue = epilogue,
                           .parameters = {.scale = scale},
                           .out = out.data,
                           .out_stride = out.stride,
                           .columns = columns},
                          stream_);
}

Status CudaStream::Project(const Layer& layer, Frame& frame) {
  const CudaActivations& buffers = CudaFrameOf(frame).activations;
  const CudaLayer& weights = WeightsOf(layer);
  const model::AttentionSpec& attention = layer.spec.attention;
  Multiply(weights.qkv, weights.qkv_bias, buffers.normed, frame.rows.num_rows(), Epilogue::kStore,
           1, buffers.qkv, attention.query_dim() + attention.kv_dim() + attention.value_width());
  return Enqueued("projecting");
}

void CudaStream::PrepareQkv(const Layer& layer, bool stores, Frame& frame) {
  const CudaFrame& at = CudaFrameOf(frame);
  const CudaLayer& weights = WeightsOf(layer);
  const model::AttentionSpec& attention = layer.spec.attention;
  const CudaRows<float>& qkv = at.activations.qkv;
  kernels::cuda::PrepareQkv({.shape = {.num_heads = attention.num_heads,
                                       .num_kv_heads = attention.num_kv_heads,
                                       .head_dim = attention.head_dim,
                                       .value_dim = attention.value_dim,
                                       .rotary_dim = spec().rope.rotary_dim,
                                       .norm = attention.qk_norm,
                                       .epsilon = spec().norm.epsilon,
                                       .query_norm = weights.query_norm,
                                       .key_norm = weights.key_norm,
                                       .clip = attention.clip_qkv.value_or(0.0f)},
                             .num_rows = frame.rows.num_rows(),
                             .qkv = qkv.data,
                             .qkv_stride = qkv.stride,
                             .angles = at.angles != nullptr ? at.angles : angles_,
                             .angle_rows = at.angle_rows,
                             .queries = at.activations.queries.data,
                             .query_stride = at.activations.queries.stride,
                             .positions = at.positions,
                             .row_blocks = at.row_blocks,
                             .kv_blocks = cache_.Table(layer.cache_layer),
                             .kv_rows = stores ? nullptr : qkv.data + attention.query_dim(),
                             .kv_row_stride = qkv.stride},
                            stream_);
}

int CudaStream::RowsOf(const Frame& frame, bool only_wanted) const {
  return only_wanted ? static_cast<int>(frame.rows.wanted().size()) : frame.rows.num_rows();
}

Status CudaStream::RunScores(const Layer& layer, SequenceRange sequences, bool only_wanted,
                             Frame& frame) {
  CudaFrame& at = CudaFrameOf(frame);
  const model::AttentionSpec& attention = layer.spec.attention;
  const kernels::cuda::AttentionShape shape = AttentionShapeOf(attention);
  const bool is_cut = only_wanted && RowsOf(frame, true) < frame.rows.num_rows();
  const auto plan = at.PlanOf(shape, sequences, is_cut, num_multiprocessors_, frame);
  if (!plan) return plan.error();
  if (Status brought = at.uploads.Flush(stream_); !brought) return brought;
  kernels::cuda::Attend(shape,
                        {.work = (*plan)->work,
                         .num_work = (*plan)->num_work,
                         .folds = (*plan)->folds,
                         .num_folds = (*plan)->num_folds,
                         .sequences = (*plan)->rows,
                         .blocks = at.blocks,
                         .kv_blocks = cache_.Table(layer.cache_layer),
                         .queries = at.activations.queries.data,
                         .query_stride = at.activations.queries.stride,
                         .sinks = WeightsOf(layer).sinks,
                         .partials = workspace_.partials,
                         .out = at.activations.attended.data,
                         .out_stride = at.activations.attended.stride},
                        stream_);
  CountAttention(layer, frame);
  return Enqueued("attention");
}

// For the statistics: keys read per sequence.
void CudaStream::CountAttention(const Layer& layer, const Frame& frame) {
  const model::AttentionSpec& attention = layer.spec.attention;
  for (const SequenceStep& sequence : frame.rows.step()) {
    const int64_t tokens = std::ssize(sequence.tokens);
    const int64_t last = sequence.first_position + tokens - 1;
    const int64_t seen = attention.window > 0
                             ? std::min<int64_t>(last + 1, attention.window + tokens - 1)
                             : last + 1;
    statistics_.kv_bytes += seen * cache_.TokenBytes(layer.cache_layer);
    statistics_.flops += 2.0 * attention.num_heads * (attention.head_dim + attention.value_dim) *
                         static_cast<double>(tokens) * static_cast<double>(seen - tokens / 2);
  }
}

Status CudaStream::OutputOf(const Layer& layer, bool only_wanted, Frame& frame) {
  const CudaActivations& buffers = CudaFrameOf(frame).activations;
  if (only_wanted) {
    if (Status moved = MoveWanted(frame); !moved) return moved;
  }
  const CudaLayer& weights = WeightsOf(layer);
  CudaFrameOf(frame).normed_by = nullptr;
  Multiply(weights.output, weights.output_bias, buffers.attended, RowsOf(frame, only_wanted),
           Epilogue::kAdd, spec().residual_scale, buffers.hidden, spec().hidden_size);
  return Enqueued("the product behind attention");
}

Status CudaStream::Attend(const Layer& layer, const AttentionTask& task, Frame& frame) {
  if (graphs_.replays()) return {};
  if (Status begun = ProjectRows(layer, /*stores=*/true, frame); !begun) return begun;
  const SequenceRange all{0, static_cast<int>(frame.rows.step().size())};
  if (Status done = RunScores(layer, all, task.only_wanted, frame); !done) return done;
  return OutputOf(layer, task.only_wanted, frame);
}

Status CudaStream::ProjectRows(const Layer& layer, bool stores, Frame& frame) {
  NormalizeRows(WeightsOf(layer).attention_norm, frame);
  if (Status projected = Project(layer, frame); !projected) return projected;
  PrepareQkv(layer, stores, frame);
  return Enqueued("queries and keys");
}

Status CudaStream::BeginAttention(const Layer& layer, Frame& frame) {
  return ProjectRows(layer, /*stores=*/false, frame);
}

Status CudaStream::AttendSequences(const Layer& layer, SequenceRange sequences, bool only_wanted,
                                   Frame& frame) {
  if (sequences.begin == sequences.end) return {};
  const CudaFrame& at = CudaFrameOf(frame);
  const model::AttentionSpec& attention = layer.spec.attention;
  const StepRows& rows = frame.rows;
  const int first = rows.first_row(sequences.begin);
  const int end =
      sequences.end < std::ssize(rows.step()) ? rows.first_row(sequences.end) : rows.num_rows();
  const CudaRows<float>& qkv = at.activations.qkv;
  kernels::cuda::StoreKv({.shape = {.num_kv_heads = attention.num_kv_heads,
                                    .head_dim = attention.head_dim,
                                    .value_dim = attention.value_dim},
                          .num_rows = end - first,
                          .qkv = qkv.row(first) + attention.query_dim(),
                          .qkv_stride = qkv.stride,
                          .positions = at.positions + first,
                          .row_blocks = at.row_blocks + first,
                          .kv_blocks = cache_.Table(layer.cache_layer)},
                         stream_);
  return RunScores(layer, sequences, only_wanted, frame);
}

Status CudaStream::EndAttention(const Layer& layer, bool only_wanted, Frame& frame) {
  return OutputOf(layer, only_wanted, frame);
}

// As the CPU has them (device/cpu/attention_layer.cc): queries, each head padded, then keys and
// values as floats.
int64_t CudaStream::AttentionRowBytes(AttentionRows kind, const Layer& layer) const {
  const model::AttentionSpec& attention = layer.spec.attention;
  if (kind == AttentionRows::kAttended) return attention.output_dim() * int64_t{sizeof(Bf16)};
  return int64_t{attention.num_heads} * kernels::PaddedHead(attention.head_dim) *
             int64_t{sizeof(Bf16)} +
         (attention.kv_dim() + attention.value_width()) * int64_t{sizeof(float)};
}

void CudaStream::CopyRows(std::byte* to, int64_t to_stride, const void* from, int64_t from_stride,
                          int64_t bytes, int num_rows) {
  if (bytes == 0 || num_rows == 0) return;
  Fail(CudaStatus(cudaMemcpy2DAsync(to, static_cast<size_t>(to_stride), from,
                                    static_cast<size_t>(from_stride), static_cast<size_t>(bytes),
                                    static_cast<size_t>(num_rows), cudaMemcpyDefault, stream_),
                  "copying rows of attention"));
}

void CudaStream::PackAttention(AttentionRows kind, const Layer& layer, const Frame& frame,
                               std::byte* to) {
  CHECK(kind == AttentionRows::kQkv, "what was attended to travels to a GPU alone");
  constexpr int64_t kBf16 = sizeof(Bf16);
  const CudaActivations& buffers = CudaFrameOf(frame).activations;
  const model::AttentionSpec& attention = layer.spec.attention;
  const int num_rows = frame.rows.num_rows();
  const int64_t row_bytes = AttentionRowBytes(kind, layer);
  const int64_t padded = kernels::PaddedHead(attention.head_dim) * kBf16;
  const int64_t head = attention.head_dim * kBf16;
  if (padded == head) {
    CopyRows(to, row_bytes, buffers.queries.data, buffers.queries.stride * kBf16,
             attention.num_heads * head, num_rows);
  } else {
    Fail(CudaStatus(cudaMemsetAsync(to, 0, static_cast<size_t>(num_rows * row_bytes), stream_),
                    "clearing rows"));
    for (int i = 0; i < attention.num_heads; ++i) {
      CopyRows(to + i * padded, row_bytes, buffers.queries.data + int64_t{i} * attention.head_dim,
               buffers.queries.stride * kBf16, head, num_rows);
    }
  }
  CopyRows(to + attention.num_heads * padded, row_bytes, buffers.qkv.data + attention.query_dim(),
           buffers.qkv.stride * int64_t{sizeof(float)}, row_bytes - attention.num_heads * padded,
           num_rows);
  Fail(Enqueued("packing rows"));
}

void CudaStream::UnpackAttention(AttentionRows kind, const Layer& layer, const std::byte* from,
                                 Frame& frame) {
  CHECK(kind == AttentionRows::kAttended, "queries travel from a GPU alone");
  const CudaRows<Bf16>& attended = CudaFrameOf(frame).activations.attended;
  const int64_t row_bytes = AttentionRowBytes(kind, layer);
  CopyRows(reinterpret_cast<std::byte*>(attended.data), attended.stride * int64_t{sizeof(Bf16)},
           from, row_bytes, row_bytes, frame.rows.num_rows());
  Fail(Enqueued("unpacking rows"));
}

void CudaStream::AddPartials(Frame&) { Fail(Internal("a GPU has all heads of a layer")); }

void CudaStream::NormalizeDense(const Layer&, Frame&) {
  Fail(Internal("a GPU has all of a dense block"));
}

Status CudaStream::StoreCross(const Layer&, Frame&) {
  return Internal("encoders do not run on a GPU yet");
}

Status CudaStream::Head(std::span<const HeadRow> rows, bool largest_suffices) {
  largest_is_fetched_ = largest_suffices;
  num_fetched_ = static_cast<int>(rows.size());
  if (graphs_.replays()) {
    Fail(graphs_.End(stream_, statistics_));
    return Enqueued("a step");
  }
  head_uploads_.Clear();
  const auto count = static_cast<int>(rows.size());
  if (count == 0) return failed_;
  // Rows of one frame after the other, of each where they lie.
  int done = 0;
  CudaRows<Bf16> x = workspace_.wanted;
  if (graphs_.is_active()) {  // all of one frame, in their order
    x = static_cast<const CudaFrame*>(rows.front().memory)->activations.normed;
    done = count;
  }
  const int64_t bytes = workspace_.wanted.stride * int64_t{sizeof(Bf16)};
  while (done < count) {
    const auto* frame = static_cast<const CudaFrame*>(rows[static_cast<size_t>(done)].memory);
    std::vector<int32_t> from;
    while (done + std::ssize(from) < count &&
           rows[static_cast<size_t>(done + std::ssize(from))].memory == frame) {
      from.push_back(rows[static_cast<size_t>(done + std::ssize(from))].row);
    }
    const auto places = head_uploads_.Add(std::span<const int32_t>(from));
    if (!places) return places.error();
    if (Status brought = head_uploads_.Flush(stream_); !brought) return brought;
    kernels::cuda::Copy({.x = frame->activations.normed.data,
                         .x_stride = frame->activations.normed.stride * int64_t{sizeof(Bf16)},
                         .from = *places,
                         .num_rows = static_cast<int>(from.size()),
                         .bytes = bytes,
                         .out = workspace_.wanted.row(done),
                         .out_stride = bytes},
                        stream_);
    done += static_cast<int>(from.size());
  }
  Multiply(weights_.head, nullptr, x, count, Epilogue::kStore, spec().logits_scale,
           workspace_.logits, spec().vocab_size);
  if (largest_suffices) {
    Fail(FetchLargest(count));
  } else {
    const size_t logits_bytes =
        static_cast<size_t>(count) * static_cast<size_t>(workspace_.logits.stride) * sizeof(float);
    Fail(CudaStatus(cudaMemcpyAsync(host_logits_, workspace_.logits.data, logits_bytes,
                                    cudaMemcpyDeviceToHost, stream_),
                    "fetching logits"));
  }
  if (graphs_.is_active()) Fail(graphs_.End(stream_, statistics_));
  return Enqueued("the head");
}

// Fetching all logits takes longer than making them where there are many rows.
Status CudaStream::FetchLargest(int num_rows) {
  const size_t bytes = static_cast<size_t>(num_rows) * sizeof(unsigned long long);
  if (Status cleared = CudaStatus(cudaMemsetAsync(workspace_.largest, 0, bytes, stream_),
                                  "clearing the largest logits");
      !cleared) {
    return cleared;
  }
  kernels::cuda::FindLargest({.x = workspace_.logits.data,
                              .stride = workspace_.logits.stride,
                              .num_rows = num_rows,
                              .size = spec().vocab_size,
                              .keys = workspace_.largest},
                             stream_);
  return CudaStatus(
      cudaMemcpyAsync(host_keys_, workspace_.largest, bytes, cudaMemcpyDeviceToHost, stream_),
      "fetching the largest logits");
}

FetchedLogits CudaStream::FetchLogits() {
  Fail(CudaStatus(cudaStreamQuery(stream_), "a step"));
  if (!largest_is_fetched_) return {.rows = {host_logits_, workspace_.logits.stride}};
  largest_.resize(static_cast<size_t>(num_fetched_));
  std::transform(host_keys_, host_keys_ + num_fetched_, largest_.begin(), kernels::cuda::LargestOf);
  return {.largest = largest_.data()};
}

bool CudaStream::FetchAllFinite(const Frame& frame) {
  const CudaActivations& buffers = CudaFrameOf(frame).activations;
  int32_t all_finite = 1;
  cudaMemcpyAsync(buffers.all_finite, &all_finite, sizeof(all_finite), cudaMemcpyHostToDevice,
                  stream_);
  kernels::cuda::LookForNotFinite(buffers.hidden.data, buffers.hidden.stride, frame.own().count,
                                  spec().hidden_size, buffers.all_finite, stream_);
  cudaMemcpyAsync(&all_finite, buffers.all_finite, sizeof(all_finite), cudaMemcpyDeviceToHost,
                  stream_);
  Fail(CudaStatus(cudaStreamSynchronize(stream_), "looking at rows"));
  return all_finite != 0;
}

}  // namespace convene::device
