#include "runtime/step_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "comm/agree.h"
#include "runtime/cut_step.h"
#include "runtime/record_sizes.h"
#include "runtime/step_memory.h"
#include "strategy/layer_pipeline.h"

namespace convene::runtime {

using device::EncoderInput;
using device::SequenceStep;
using schedule::Block;
using schedule::Task;

namespace {

// For errors of exchanges.
std::string NameOf(const char* exchange, const Task& task) {
  const char* stack = task.encoder ? "encoder" : "decoder";
  if (task.layer < 0) return fmt::format("{} of the {}", exchange, stack);
  return fmt::format("{} of {} layer {}", exchange, stack, task.layer);
}

std::vector<CapacityRow> CapacityRows(const device::StepRows& rows) {
  std::vector<CapacityRow> capacity_rows;
  for (int row = 0; row < rows.num_rows(); ++row) {
    // Running sequences that share nothing have different first blocks.
    const SequenceStep& sequence = rows.step()[rows.sequence(row)];
    capacity_rows.push_back({.sequence = sequence.blocks.front(),
                             .first = rows.position(row) == 0,
                             .counts = rows.position(row) < sequence.prompt_length});
  }
  return capacity_rows;
}

// They keep references to the specs. The encoder's layers use the first decoder layer's part of the
// cache, which gets the decoder's keys and values only afterwards.
std::vector<device::Layer> LayersOf(const std::vector<model::LayerSpec>& specs, bool is_encoder) {
  std::vector<device::Layer> layers;
  for (const model::LayerSpec& spec : specs) {
    const auto index = static_cast<int>(layers.size());
    layers.push_back({.spec = spec,
                      .index = index,
                      .is_encoder = is_encoder,
                      .cache_layer = is_encoder ? 0 : index});
  }
  return layers;
}

}  // namespace

const StepRunner::Operator& StepRunner::OperatorOf(schedule::TaskKind kind) {
  static const auto operators = [] {
    using enum schedule::TaskKind;
    std::array<Operator, schedule::kNumTaskKinds> table;
    const auto at = [&](schedule::TaskKind of) -> Operator& {
      return table[static_cast<size_t>(of)];
    };
    at(kEmbed).run = &StepRunner::Embed;
    at(kNormalize) = {.run = &StepRunner::Normalize, .skip = &StepRunner::SkipToWanted};
    at(kGatherNormed).start = &StepRunner::GatherNormed;
    at(kProject).run = &StepRunner::Project;
    at(kNormSums).start = &StepRunner::NormSums;
    at(kAttention) = {.run = &StepRunner::Attend, .skip = &StepRunner::SkipToWanted};
    at(kPreAttention).run = &StepRunner::BeginAttention;
    at(kAttend).run = &StepRunner::AttendPart;
    at(kPostAttention) = {.run = &StepRunner::EndAttention, .skip = &StepRunner::SkipToWanted};
    at(kScatterSums).start = &StepRunner::ScatterSums;
    at(kAddPartials) = {.run = &StepRunner::AddPartials, .skip = &StepRunner::SkipToWanted};
    at(kDense).run = &StepRunner::Dense;
    at(kRoute) = {.run = &StepRunner::Route, .skip = &StepRunner::SkipRoute};
    at(kCounts).start = &StepRunner::Counts;
    at(kDispatch).start = &StepRunner::Dispatch;
    at(kShared).run = &StepRunner::Shared;
    at(kExperts) = {.run = &StepRunner::Experts, .skip = &StepRunner::SkipExperts};
    at(kReduce) = {.run = &StepRunner::Reduce, .skip = &StepRunner::SkipReduce};
    at(kCombine).start = &StepRunner::Combine;
    at(kFinish).run = &StepRunner::Finish;
    at(kPassRows).start = &StepRunner::PassRows;
    at(kGatherRows).start = &StepRunner::GatherRows;
    at(kHead).run = &StepRunner::RunHead;
    at(kGatherLogits).start = &StepRunner::GatherLogits;
    at(kJoinLogits).run = &StepRunner::JoinLogits;
    at(kCrossStore).run = &StepRunner::CrossStore;
    at(kMoveExperts).start = &StepRunner::MoveExperts;
    return table;
  }();
  return operators[static_cast<size_t>(kind)];
}

Result<std::unique_ptr<StepRunner>> StepRunner::Create(weights::WeightStore& weights,
                                                       device::Device& device,
                                                       const TransformerOptions& options,
                                                       memory::Ledger& ledger) {
  CHECK(ledger.tier().kind == device.memory(), "{} is not the memory of the {}",
        ledger.tier().name(), device.name());
  const model::ModelSpec& spec = weights.spec();
  const ParallelOptions& parallel = options.parallel;
  const device::StepShape shape = StepShapeOf(spec, options);
  std::unique_ptr<StepRunner> runner(new StepRunner(weights, device, options));
  auto cache = device.CreateKvCache(spec, options.kv, options.num_kv_blocks, ledger);
  if (!cache) return cache.error();
  runner->cache_ = *std::move(cache);
  if (options.kv_spill) {
    auto spilled = SpilledKv::Create(*options.kv_spill, spec, *runner->cache_, ledger);
    if (!spilled) return spilled.error();
    runner->spilled_ = *std::move(spilled);
  }
  auto stream = device.CreateStream(weights, *runner->cache_,
                                    {.activations = options.activations,
                                     .wire = WireRowsOf(spec, options),
                                     .roles = parallel.SeenRoles(),
                                     .rank = parallel.rank(),
                                     .whole_spec = parallel.WholeOf(spec),
                                     .shape = shape,
                                     .dense_from_rows = options.dense_from_rows,
                                     .comm_budget = parallel.comm_budget},
                                    ledger);
  if (!stream) return stream.error();
  runner->stream_ = *std::move(stream);
  if (parallel.decode_roles) {
    auto mover = ExpertMover::Create(*weights.phased(),
                                     {.prefill = parallel.roles, .decode = *parallel.decode_roles},
                                     *parallel.group, device.host_threads(), ledger);
    if (!mover) return mover.error();
    runner->mover_ = *std::move(mover);
    if (parallel.loads_experts) {
      auto backup = weights::ExpertBackup::Create(*weights.phased(), ledger);
      if (!backup) return backup.error();
      runner->backup_ = *std::move(backup);
    }
  }
  for (const device::FrameShape& frame : shape.frames) {
    auto memory = device.CreateFrameMemory(spec, options.activations, frame, ledger);
    if (!memory) return memory.error();
    const auto index = static_cast<int>(runner->frames_.size());
    Frame::Options frame_options = FrameOptions(spec, options, index);
    frame_options.expert_rows.pool = device.host_threads();
    runner->frames_.push_back(
        std::make_unique<Frame>(spec, frame_options, *std::move(memory), parallel.group));
  }
  return runner;
}

StepRunner::StepRunner(weights::WeightStore& weights, device::Device& device,
                       const TransformerOptions& options)
    : weights_(weights),
      device_(device),
      options_(options),
      rank_(options.parallel.rank()),
      decoder_(LayersOf(spec().layers, /*is_encoder=*/false)),
      encoder_(LayersOf(spec().encoder_layers, /*is_encoder=*/true)),
      row_exchange_(options.parallel.roles, rank_, WireRowsOf(spec(), options),
                    options.parallel.group),
      head_(row_exchange_, options.parallel.roles, rank_),
      expert_capacity_(options.expert_capacity),
      reads_(weights.paged()),
      fence_(device.CreateEvent()) {
  // Of all layers on each rank, whichever it has: what they count is added up.
  for (const model::LayerSpec& layer : options.parallel.WholeOf(spec()).layers) {
    expert_counts_.emplace_back(layer.moe ? layer.moe->num_experts : 0);
  }
}

void StepRunner::BeginForward(std::span<const SequenceStep> step, const Program& program,
                              const LogitsSink* sink) {
  logits_sink_ = sink;
  states_sink_ = nullptr;
  Begin(step, program, /*encoder=*/false);
}

void StepRunner::BeginEncode(std::span<const EncoderInput> inputs, const Program& program,
                             bool with_states, const StatesSink* sink) {
  CHECK(spec().has_encoder(), "the model has no encoder");
  logits_sink_ = nullptr;
  states_sink_ = sink;
  std::vector<SequenceStep> step;
  for (const EncoderInput& input : inputs) {
    const auto length = static_cast<int>(input.tokens.size());
    step.push_back({.tokens = input.tokens,
                    .blocks = input.blocks,
                    .prompt_length = length,
                    .first_logits_token = with_states ? 0 : length,
                    .group = input.group});
  }
  Begin(step, program, /*encoder=*/true);
  stream_->statistics().logits_rows = 0;
}

void StepRunner::BeginChange(const Program& program, strategy::Phase phase) {
  moves_to_ = phase;
  has_failed_.store(false);
  follows_change_ = true;
  schedule_ = program.schedule.get();
  while (events_.size() < schedule_->tasks.size()) events_.push_back(device_.CreateEvent());
  if (recorder_ != nullptr) recorder_->Begin();
}

Status StepRunner::EndChange() {
  follows_change_ = false;
  Status mine;
  if (has_failed()) {
    const std::lock_guard lock(fault_mutex_);
    mine = fault_;
  }
  return comm::AgreeOnSuccess(*options_.parallel.group, mine);
}

void StepRunner::Begin(std::span<const SequenceStep> step, const Program& program, bool encoder) {
  const strategy::Pipeline& pipeline = program.key.pipeline;
  const strategy::Roles& roles = options_.parallel.roles;
  for (const SequenceStep& sequence : step) {
    CHECK(sequence.group >= 0 && sequence.group < roles.num_groups(), "group {} of {}",
          sequence.group, roles.num_groups());
  }
  // A rank with experts alone has no sequences.
  constexpr int kNoGroup = -1;
  const auto& attention = roles.of(rank_).attention;
  const int group = attention ? attention->group : kNoGroup;
  CHECK(CountRows(step, group) <= options_.max_step_tokens, "{} tokens in a step of at most {}",
        CountRows(step, group), options_.max_step_tokens);
  CHECK(pipeline.micro_batches <= std::ssize(frames_), "{} micro-batches of {}",
        pipeline.micro_batches, frames_.size());
  num_frames_ = pipeline.micro_batches;
  if (program.key.loads_decode) moves_to_ = strategy::Phase::kDecode;
  encodes_ = encoder;
  reads_.Begin(program.key.paging, std::max(decoder_.size(), encoder_.size()));
  keeps_routing_ = stream_->KeepsRouting() && roles.num_ranks() == 1 && pipeline.chunks == 1 &&
                   weights_.paged() == nullptr && !options_.parallel.experiment.router.is_set() &&
                   !expert_capacity_.is_limited() && recorder_ == nullptr;
  if (!std::exchange(follows_change_, false)) has_failed_.store(false);
  statuses_.assign(roles.num_ranks() > 1 ? static_cast<size_t>(roles.num_ranks()) : 0, 0);
  schedule_ = program.schedule.get();
  while (events_.size() < schedule_->tasks.size()) events_.push_back(device_.CreateEvent());
  device::StepStatistics& statistics = stream_->statistics();
  statistics = {};
  for (int i = 0; i < num_frames_; ++i) {
    Frame& frame = *frames_[i];
    std::vector<SequenceStep> sequences = CutStep(step, group, i, num_frames_);
    if (spilled_ != nullptr) {
      spilled_->Begin(sequences);
      CHECK(program.key.spilled_kv && program.key.spilled_kv->parts == spilled_->num_parts(),
            "a step of {} parts", spilled_->num_parts());
    }
    frame.Begin(std::move(sequences));
    frame.expert_rows.Use(options_.parallel.RolesIn(program.key.phase).SeenFrom(rank_), pipeline,
                          program.key.paging ? program.key.paging->chunks : 1);
    // Where weights are lent there, the host says when they come.
    frame.is_seen_at_end_alone = keeps_routing_ && num_frames_ == 1 && !encodes_ &&
                                 !watches_rows_ && spilled_ == nullptr &&
                                 weights_.lends_on_device() == weights::DeviceLoans::kNone;
    stream_->Begin(frame);
    statistics.logits_rows += std::ssize(frame.rows.wanted());
  }
  for (const SequenceStep& sequence : step) statistics.tokens += std::ssize(sequence.tokens);
  if (recorder_ != nullptr) {
    recorder_->Begin();
    for (int i = 0; attention && i < num_frames_; ++i) {
      RecordRows(*frames_[i], encoder ? encoder_ : decoder_, *attention, rank_,
                 num_frames_ > 1 ? i : -1, *recorder_);
    }
  }
  largest_suffices_ = program.key.largest_suffices;
  if (roles.of(rank_).has_head()) head_.Begin(step, frames());
}

bool StepRunner::OnlyWanted(const Task& task) const {
  return !task.encoder && task.layer + 1 == std::ssize(decoder_) && options_.prunes();
}

Status StepRunner::BeforeTask(const Task& task) const {
  const auto& before_task = options_.parallel.experiment.before_task;
  return before_task ? before_task(task) : Status();
}

void StepRunner::Fail(const Task& task, const Error& error) {
  const std::lock_guard lock(fault_mutex_);
  if (has_failed()) return;
  fault_ = error;
  const std::string where =
      task.layer < 0 ? ""
                     : fmt::format(" of {}layer {}", task.encoder ? "encoder " : "", task.layer);
  fault_.message = fmt::format("{}{} failed: {}", schedule::Name(task.kind), where, error.message);
  has_failed_.store(true, std::memory_order_release);
}

bool StepRunner::AnyHasFailed() const {
  return std::any_of(statuses_.begin(), statuses_.end(), [](uint32_t status) { return status; });
}

void StepRunner::Compute(const Task& task) {
  const Operator& work = OperatorOf(task.kind);
  CHECK(work.run != nullptr, "no computation: {}", schedule::Name(task.kind));
  Frame& frame = FrameOf(task);
  bool is_done = false;  // asked once: an exchange may fail meanwhile, on another thread
  if (!has_failed()) {
    Status done = BeforeTask(task);
    if (done) done = (this->*work.run)(task, frame);
    if (!done) Fail(task, done.error());
    is_done = done.ok();
  }
  stream_->Record(EventOf(task));
  if (!is_done) {
    if (work.skip != nullptr) (this->*work.skip)(task, frame);
    return;
  }
  if (recorder_ != nullptr) {
    RecordTask(frame, task, options_.parallel.roles.num_ranks(), *recorder_);
  }
  if (watches_rows_ && !not_finite_) LookAtRows(task);
}

// An exchange that begins when the device has come so far, and not before.
class StepRunner::StartedOnceReady : public comm::Exchange {
 public:
  StartedOnceReady(StepRunner& runner, const Task& task) : runner_(runner), task_(task) {}

  bool Test() override {
    if (!is_started_) {
      if (!runner_.IsReady(task_)) return false;
      exchange_ = runner_.StartReady(task_);
      is_started_ = true;
    }
    return exchange_ == nullptr || exchange_->Test();
  }

 private:
  StepRunner& runner_;
  const Task& task_;
  bool is_started_ = false;
  std::unique_ptr<comm::Exchange> exchange_;
};

std::unique_ptr<comm::Exchange> StepRunner::Start(const Task& task) {
  return IsReady(task) ? StartReady(task) : std::make_unique<StartedOnceReady>(*this, task);
}

bool StepRunner::IsReady(const Task& task) const {
  return std::all_of(task.after.begin(), task.after.end(),
                     [&](schedule::TaskId before) { return events_[before]->IsDone(); });
}

std::unique_ptr<comm::Exchange> StepRunner::StartReady(const Task& task) {
  const Operator& work = OperatorOf(task.kind);
  CHECK(work.start != nullptr, "no exchange: {}", schedule::Name(task.kind));
  if (!has_failed()) {
    // The other ranks are in the exchange, too, and wait.
    if (const Status fine = BeforeTask(task); !fine) Fail(task, fine.error());
  }
  if (recorder_ == nullptr) return (this->*work.start)(task, FrameOf(task));
  const comm::Group& group = *options_.parallel.group;
  const uint64_t before = group.sent_bytes();
  std::unique_ptr<comm::Exchange> exchange = (this->*work.start)(task, FrameOf(task));
  // Of experts only the first round has been sent by now.
  const bool moves = task.kind == schedule::TaskKind::kMoveExperts;
  recorder_->SetSent(
      task, moves ? mover_->SentBytes(task.layer, moves_to_) : group.sent_bytes() - before);
  return exchange;
}

void StepRunner::AwaitStream() {
  stream_->Record(*fence_);
  fence_->Wait();
}

Status StepRunner::End() {
  AwaitStream();
  Status mine;
  if (has_failed()) {
    const std::lock_guard lock(fault_mutex_);
    mine = fault_;
  }
  if (mine) mine = stream_->status();
  // Behind an encoder's last exchange, keys and values of the decoder's layers are made.
  const bool agrees = !statuses_.empty() && (encodes_ || AnyHasFailed());
  // The head's rank alone works behind the last exchange, and its step is the one that is answered.
  CHECK(mine.ok() || agrees || rank_ == 0, "no rank was told: {}", mine.error().message);
  return agrees ? comm::AgreeOnSuccess(*options_.parallel.group, mine) : mine;
}

Status StepRunner::Embed(const Task& task, Frame& frame) {
  return stream_->Embed(task.encoder, frame);
}

Status StepRunner::Normalize(const Task& task, Frame& frame) {
  if (task.layer >= 0) {
    if (task.block == Block::kDense) {
      stream_->NormalizeDense(LayerOf(task), frame);
    } else {
      stream_->Normalize(LayerOf(task), task.block == Block::kCross, frame);
    }
    return {};
  }
  if (!task.encoder && !options_.prunes()) KeepWanted(frame);
  stream_->NormalizeFinal(task.encoder, frame);
  return {};
}

void StepRunner::KeepWanted(Frame& frame) {
  frame.DivideWanted();
  stream_->KeepWanted(frame);
}

Status StepRunner::Project(const Task& task, Frame& frame) {
  return stream_->Project(LayerOf(task), frame);
}

Status StepRunner::Attend(const Task& task, Frame& frame) {
  const bool only_wanted = OnlyWanted(task);
  const bool is_cross = task.block == Block::kCross;
  const Status attended =
      stream_->Attend(LayerOf(task), {.cross = is_cross, .only_wanted = only_wanted}, frame);
  if (attended && only_wanted && !is_cross) frame.DivideWanted();
  return attended;
}

Status StepRunner::BeginAttention(const Task& task, Frame& frame) {
  return stream_->BeginAttention(LayerOf(task), frame);
}

Status StepRunner::AttendPart(const Task& task, Frame& frame) {
  const Status attended = stream_->AttendSequences(LayerOf(task), spilled_->PartAt(task.chunk),
                                                   OnlyWanted(task), frame);
  // The load lane goes on with its buffer.
  AwaitStream();
  return attended;
}

Status StepRunner::EndAttention(const Task& task, Frame& frame) {
  const bool only_wanted = OnlyWanted(task);
  const Status ended = stream_->EndAttention(LayerOf(task), only_wanted, frame);
  if (ended && only_wanted) frame.DivideWanted();
  return ended;
}

Status StepRunner::AddPartials(const Task& task, Frame& frame) {
  if (OnlyWanted(task) && task.block == Block::kAttention) KeepWanted(frame);
  stream_->AddPartials(frame);
  return {};
}

Status StepRunner::Dense(const Task& task, Frame& frame) {
  return stream_->Dense(LayerOf(task), frame);
}

Status StepRunner::Route(const Task& task, Frame& frame) {
  const Layer& layer = LayerOf(task);
  if (keeps_routing_) return stream_->RouteHere(layer, frame);
  const Layer* const next = reads_.ToPredict(layer.is_encoder ? encoder_ : decoder_, layer.index);
  if (next != nullptr) {
    if (Status predicted = stream_->Predict(*next, frame); !predicted) return predicted;
  }
  if (Status routed = stream_->Route(layer, frame); !routed) return routed;
  AwaitStream();
  stream_->FetchRouting(frame);
  ChangeRouting(layer, frame);
  reads_.Chose(layer, next, frame);
  if (!layer.is_encoder) {
    for (const int32_t expert : frame.experts) ++expert_counts_[layer.index][expert];
  }
  BeginExpertRows(layer.spec, layer.index, frame);
  stream_->PackDispatch(frame);
  return {};
}

void StepRunner::BeginExpertRows(const model::LayerSpec& spec, int layer, Frame& frame) {
  const model::MoeSpec& moe = *spec.moe;
  frame.visits_shared =
      options_.parallel.roles.divides_shared() && moe.shared_intermediate_size > 0;
  const int visits = moe.top_k + (frame.visits_shared ? 1 : 0);
  if (frame.visits_shared) {
    // One more of each row, behind the others.
    const size_t num_rows = frame.shared_weights.size();
    const auto top_k = static_cast<size_t>(moe.top_k);
    frame.experts.resize(num_rows * visits);
    frame.expert_weights.resize(num_rows * visits);
    for (size_t row = num_rows; row-- > 0;) {
      const auto move = [&](auto& values, auto last) {
        std::copy_backward(&values[row * top_k], &values[row * top_k] + top_k,
                           &values[row * visits] + top_k);
        values[row * visits + top_k] = last;
      };
      move(frame.experts, static_cast<int32_t>(moe.num_experts));
      move(frame.expert_weights, frame.shared_weights[row]);
    }
  }
  frame.expert_rows.Begin(layer, moe.num_experts + (frame.visits_shared ? 1 : 0), visits,
                          frame.experts, frame.expert_weights);
}

void StepRunner::ChangeRouting(const Layer& layer, Frame& frame) {
  const RouterOverride& made_up = options_.parallel.experiment.router;
  const model::MoeSpec& moe = *layer.spec.moe;
  const auto top_k = static_cast<size_t>(moe.top_k);
  for (int row = 0; made_up.is_set() && row < frame.own().count; ++row) {
    // By the token and its place, as the router itself: no plan, batch or step changes the text.
    const int of_step = frame.row_of(row);
    const uint64_t key =
        TokenKey(layer.index, frame.rows.position(of_step), frame.rows.token(of_step));
    OverrideExperts(made_up, moe.num_experts, key,
                    std::span(frame.experts).subspan(row * top_k, top_k));
  }
  if (!expert_capacity_.is_limited()) return;
  // Both stacks count for themselves.
  const int first = layer.is_encoder ? static_cast<int>(decoder_.size()) : 0;
  expert_capacity_.Apply(first + layer.index, moe.num_experts, CapacityRows(frame.rows),
                         frame.experts, frame.expert_weights);
}

Status StepRunner::Shared(const Task& task, Frame& frame) {
  return stream_->Shared(LayerOf(task), frame);
}

Status StepRunner::Experts(const Task& task, Frame& frame) {
  if (!keeps_routing_) frame.expert_rows.Select(task.chunk);
  const Status done = stream_->Experts(LayerOf(task), frame);
  if (done) reads_.Release(task);
  return done;
}

Status StepRunner::RunOnLane(const Task& task, hardware::ThreadPool*) {
  if (task.kind == schedule::TaskKind::kLoadExperts) {
    // Whatever has failed here: other ranks divide them so, too.
    backup_->Load(task.layer, moves_to_);
    return {};
  }
  const bool reads_kv = task.kind == schedule::TaskKind::kReadKv;
  if (reads_kv || task.kind == schedule::TaskKind::kWriteKv) {
    if (has_failed()) return {};
    Status done = BeforeTask(task);
    if (done) {
      done = reads_kv ? spilled_->Read(task.layer, task.chunk)
                      : spilled_->Write(task.layer, task.chunk);
    }
    if (!done) Fail(task, done.error());
    return {};
  }
  reads_.Read(task, task.encoder ? encoder_ : decoder_, has_failed() ? nullptr : &FrameOf(task));
  return {};
}

Status StepRunner::Reduce(const Task& task, Frame& frame) {
  stream_->Reduce(frame.expert_rows.Returns(task.chunk), frame);
  return {};
}

Status StepRunner::Finish(const Task& task, Frame& frame) {
  stream_->Finish(LayerOf(task), frame);
  return {};
}

Status StepRunner::RunHead(const Task& task, Frame&) {
  // Nobody is to see rows that are worth nothing.
  if (AnyHasFailed()) return {};
  if (options_.parallel.roles.divides_head()) {
    return head_.RunPart(task.chunk, frames(), spec().vocab_size, largest_suffices_, *stream_,
                         *fence_);
  }
  Status done = head_.Run(frames(), spec().vocab_size, *stream_, *fence_, *logits_sink_);
  reads_.EndStep();
  return done;
}

Status StepRunner::JoinLogits(const Task& task, Frame&) {
  if (AnyHasFailed()) return {};
  head_.Join(task.chunk, *frames_.front(), spec().vocab_size, largest_suffices_, *stream_,
             *logits_sink_);
  reads_.EndStep();
  return {};
}

Status StepRunner::CrossStore(const Task&, Frame& frame) {
  for (const Layer& layer : decoder_) {
    if (Status stored = stream_->StoreCross(layer, frame); !stored) return stored;
  }
  if (states_sink_ != nullptr && *states_sink_ && !AnyHasFailed()) {
    AwaitStream();
    head_.PassStates(frames(), spec().hidden_size, *states_sink_);
  }
  return {};
}

void StepRunner::SkipToWanted(const Task& task, Frame& frame) {
  const bool is_final_norm = task.layer < 0 && !task.encoder;
  const bool keeps_wanted = is_final_norm ? !options_.prunes()
                                          : task.kind != schedule::TaskKind::kNormalize &&
                                                OnlyWanted(task) && task.block == Block::kAttention;
  if (keeps_wanted) frame.DivideWanted();
}

void StepRunner::SkipRoute(const Task& task, Frame& frame) {
  frame.experts.clear();
  frame.expert_weights.clear();
  frame.shared_weights.clear();
  BeginExpertRows(LayerOf(task).spec, task.layer, frame);
}

void StepRunner::SkipExperts(const Task& task, Frame& frame) {
  frame.expert_rows.Select(task.chunk);
  reads_.Release(task);
}

void StepRunner::SkipReduce(const Task& task, Frame& frame) {
  frame.expert_rows.Returns(task.chunk);
}

std::unique_ptr<comm::Exchange> StepRunner::Counts(const Task& task, Frame& frame) {
  // Without rows of its own to route, a rank begins the layer here.
  if (!options_.parallel.roles.of(rank_).owns_rows()) SkipRoute(task, frame);
  return frame.expert_rows.StartCounts();
}

std::unique_ptr<comm::Exchange> StepRunner::Dispatch(const Task& task, Frame& frame) {
  return frame.expert_rows.StartDispatch(task.chunk);
}

std::unique_ptr<comm::Exchange> StepRunner::Combine(const Task& task, Frame& frame) {
  return frame.expert_rows.StartCombine(task.chunk);
}

std::unique_ptr<comm::Exchange> StepRunner::GatherNormed(const Task& task, Frame& frame) {
  return row_exchange_.StartGatherNormed(frame, NameOf("gathering normed rows", task));
}

std::unique_ptr<comm::Exchange> StepRunner::NormSums(const Task& task, Frame& frame) {
  return row_exchange_.StartNormSums(frame, NameOf("sums of squares", task));
}

std::unique_ptr<comm::Exchange> StepRunner::ScatterSums(const Task& task, Frame& frame) {
  return row_exchange_.StartScatterSums(frame, NameOf("partial sums", task));
}

std::unique_ptr<comm::Exchange> StepRunner::PassRows(const Task& task, Frame& frame) {
  const bool sends = task.lane.kind == strategy::LaneBehind(rank_);
  return row_exchange_.StartPassRows(frame, sends ? rank_ : rank_ - 1,
                                     NameOf("passing rows", task));
}

std::unique_ptr<comm::Exchange> StepRunner::GatherRows(const Task& task, Frame& frame) {
  using enum device::TravellingRows;
  statuses_[rank_] = has_failed();
  return row_exchange_.StartGatherRows(frame, task.encoder ? kStates : kNormed, statuses_);
}

std::unique_ptr<comm::Exchange> StepRunner::GatherLogits(const Task& task, Frame&) {
  statuses_[rank_] = has_failed();
  return head_.StartGather(task.chunk, *frames_.front(), spec().vocab_size, largest_suffices_,
                           statuses_);
}

std::unique_ptr<comm::Exchange> StepRunner::MoveExperts(const Task& task, Frame&) {
  return mover_->Start(task.layer, moves_to_);
}

void StepRunner::LookAtRows(const Task& task) {
  // Logits are the caller's matter.
  if (task.layer < 0 && task.kind != schedule::TaskKind::kEmbed) return;
  AwaitStream();
  if (stream_->FetchAllFinite(FrameOf(task))) return;
  not_finite_ =
      TaskAt{std::max(0, task.layer), task.encoder, std::string(schedule::Name(task.kind))};
}

}  // namespace convene::runtime
