#include "runtime/transformer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>

#include "base/check.h"
#include "device/wire_rows.h"
#include "kernels/activation_row.h"
#include "runtime/check_options.h"
#include "runtime/executor.h"
#include "runtime/offloaded_steps.h"
#include "runtime/program_cache.h"
#include "runtime/step_memory.h"
#include "runtime/step_message.h"
#include "runtime/step_recorder.h"
#include "runtime/step_runner.h"
#include "weights/paged_weights.h"
#include "weights/phased_weights.h"
#include "weights/weight_layout.h"

namespace convene::runtime {

using device::EncoderInput;
using device::SequenceStep;
using strategy::Phase;

strategy::ElementBytes Transformer::BytesOf(const model::ModelSpec& spec, const Formats& formats,
                                            comm::WireFormat wire, bool returns_fp8) {
  const device::WireRows rows = device::WireRowsOf(spec, formats.activations, wire, returns_fp8);
  const double hidden = std::max(1, spec.hidden_size);
  const bool has_scales = formats.activations == kernels::ActivationFormat::kInt8;
  const auto activation_bytes = static_cast<double>(
      has_scales ? kernels::ActivationRowBytes(formats.activations, spec.hidden_size)
                 : spec.hidden_size * ElementBytes(formats.activations));
  return {.weights = weights::BytesPerWeight(formats.weights),
          .activations = activation_bytes / hidden,
          .kv = static_cast<double>(kernels::KvElementBytes(formats.kv)),
          .dispatched = static_cast<double>(rows.dispatch_bytes) / hidden,
          .returned = static_cast<double>(rows.returned_bytes) / hidden,
          .sums = static_cast<double>(rows.sum_bytes) / hidden};
}

struct Transformer::State {
  // Of the two one is null.
  State(std::unique_ptr<StepRunner> own_runner_in, std::unique_ptr<OffloadedSteps> offloaded_in,
        weights::WeightStore& weights, const TransformerOptions& options_in,
        hardware::LaneCpus cpus)
      : options(options_in),
        paged(weights.paged()),
        own_runner(std::move(own_runner_in)),
        offloaded(std::move(offloaded_in)),
        runner(own_runner != nullptr ? own_runner.get() : &offloaded->runner()),
        programs(options.parallel.WholeOf(weights.spec()),
                 {.step = {.roles = options.parallel.roles,
                           .pipeline = options.parallel.pipeline,
                           .bytes = BytesOf(options.parallel.WholeOf(weights.spec()),
                                            {weights.formats(), options.activations, options.kv},
                                            options.parallel.wire, options.parallel.returns_fp8),
                           .prunes_last_layer = options.prunes()},
                  .decode_roles = options.parallel.decode_roles,
                  .rank = options.parallel.rank(),
                  .all_ranks = options.parallel.record}),
        last(offloaded != nullptr ? &offloaded->program()
                                  : &programs.Get(KeyOf(/*encoder=*/false, options.max_step_tokens,
                                                        Phase::kPrefill))),
        executor(options.parallel.pipeline.overlap, std::move(cpus)) {
    runner->WatchExchanges(executor);
    if (!options.parallel.record) return;
    recorder.emplace(options.parallel.roles.num_ranks() > 1 ? options.parallel.group : nullptr);
    runner->RecordSizes(*recorder);
  }

  TransformerOptions options;
  weights::PagedWeights* paged;  // null: all weights are in memory
  std::unique_ptr<StepRunner> own_runner;
  std::unique_ptr<OffloadedSteps> offloaded;
  StepRunner* runner;  // of either
  ProgramCache programs;
  const Program* last;  // that was run
  Executor executor;
  std::optional<StepRecorder> recorder;
  StepObserver observer;
  std::function<bool()> is_wanted = {};  // to be recorded; empty: all steps are
  bool is_recorded = false;              // the step in work
  bool has_ended = false;
  weights::PhasedWeights* phased = nullptr;       // where decode has experts of its own
  std::array<bool, 2> in_memory = {true, false};  // by phase, whose experts are
  PhaseChanges changes;

  const model::ModelSpec& spec() const { return runner->spec(); }
  // On rank 0, which tells the others.
  bool ChooseRecording() {
    BeginStep(recorder && (!is_wanted || is_wanted()));
    return is_recorded;
  }
  void BeginStep(bool records) {
    is_recorded = records;
    if (records) recorder->PassOver(runner->expert_counts());
  }
  bool leads() const {
    return options.parallel.roles.num_ranks() > 1 && options.parallel.rank() == 0;
  }
  void Tell(std::vector<std::byte> message) const {
    options.parallel.group->Broadcast(0, &message, "announcing a step");
  }
  // Of a step of so many tokens over all groups: as the plan has it, or in one piece.
  ProgramKey KeyOf(bool encoder, int64_t num_tokens, Phase phase) const {
    ProgramKey key{.encoder = encoder, .phase = phase, .pipeline = options.parallel.pipeline};
    if (num_tokens < options.parallel.chunks_from_tokens) {
      key.pipeline.chunks = 1;
      key.pipeline.cuts.clear();
    }
    // An encoder's inputs stay whole.
    if (encoder || num_tokens < FewestTokensToCut(options) ||
        num_tokens < options.parallel.micro_batches_from_tokens) {
      key.pipeline.micro_batches = 1;
    }
    if (runner->spilled_kv() != nullptr) key.pipeline.micro_batches = 1;
    if (paged != nullptr) {
      // The whole step goes through a layer at once, so that each expert is read once.
      key.pipeline.micro_batches = 1;
      key.paging = paged->PagingOf(encoder, num_tokens);
      key.pipeline = strategy::PipelineOf(
          {.roles = options.parallel.roles, .pipeline = key.pipeline, .paging = key.paging});
    }
    return key;
  }
  // Of a step of the decoder: every rank knows the whole step.
  ProgramKey KeyOfStep(std::span<const SequenceStep> step, Phase phase) const {
    ProgramKey key = KeyOfRows(step, phase);
    const strategy::Roles& roles = options.parallel.roles;
    if (!roles.divides_head()) return key;
    int64_t num_wanted = 0;
    for (const SequenceStep& sequence : step) {
      num_wanted += std::max<int64_t>(0, std::ssize(sequence.tokens) - sequence.first_logits_token);
    }
    key.head_chunks = strategy::HeadChunksOf(roles, num_wanted);
    key.largest_suffices = std::ranges::all_of(step, &SequenceStep::largest_suffices);
    return key;
  }
  ProgramKey KeyOfRows(std::span<const SequenceStep> step, Phase phase) const {
    const int64_t num_tokens = CountTokens(step);
    const auto& pipeline_of = options.parallel.pipeline_of;
    if (const SpilledKv* spilled = runner->spilled_kv()) {
      ProgramKey key = KeyOf(/*encoder=*/false, num_tokens, phase);
      key.spilled_kv = {.parts = spilled->CountParts(step),
                        .depth = spilled->depth(),
                        .missing = spilled->missing()};
      return key;
    }
    if (!pipeline_of || num_tokens == 0) return KeyOf(/*encoder=*/false, num_tokens, phase);
    const int num_groups = options.parallel.roles.num_groups();
    strategy::StepLoadCounter counter(num_groups);
    for (const SequenceStep& sequence : step) {
      counter.Add(sequence.group, sequence.first_position, std::ssize(sequence.tokens));
    }
    ProgramKey key{.phase = phase, .pipeline = pipeline_of(counter.most())};
    if (num_tokens < int64_t{1} * key.pipeline.micro_batches * num_groups) {
      key.pipeline.micro_batches = 1;
    }
    return key;
  }
  // The phase of a step that says nothing else.
  Phase PhaseOf(std::span<const SequenceStep> step) const {
    const bool generates = std::ranges::all_of(step, [](const SequenceStep& sequence) {
      return sequence.first_position >= sequence.prompt_length;
    });
    return generates && phased != nullptr ? Phase::kDecode : Phase::kPrefill;
  }
  // Whether experts were moved, so that EndChange or a step must follow.
  bool ChangePhase(Phase phase) {
    using enum ProgramCache::Change;
    return ChangePhase(phase, options.parallel.loads_experts ? kLoad : kMove);
  }
  bool ChangePhase(Phase phase, ProgramCache::Change how) {
    if (phased == nullptr || phased->phase() == phase) return false;
    const Program& program = programs.ChangeTo(phase, how);
    bool& is_there = in_memory[static_cast<size_t>(phase)];
    const bool moves = !is_there && !program.schedule->tasks.empty();
    if (moves) {
      const uint64_t sent_before = options.parallel.group->sent_bytes();
      runner->BeginChange(program, phase);
      const Status done = executor.Run(program.lanes, *runner, /*beside=*/false);
      CHECK(done.ok(), "the runner keeps what fails: {}", done.error().message);
      ++changes.count;
      changes.seconds += executor.timeline().seconds();
      changes.sent_bytes +=
          static_cast<int64_t>(options.parallel.group->sent_bytes() - sent_before);
      RecordChange(program);
      in_memory.fill(phased->keeps_both());
    }
    is_there = true;
    phased->Use(phase);
    return moves;
  }
  Status ChangePhaseAlone(Phase phase) {
    return ChangePhase(phase) ? runner->EndChange() : Status();
  }
  // The experts of decode come while the step runs, whatever becomes of it.
  bool LoadsDecode(Phase phase, bool decode_follows) const {
    return decode_follows && options.parallel.loads_experts && phased != nullptr &&
           phase == Phase::kPrefill;
  }
  void CountLoads() {
    ++changes.count;
    ++changes.beside_count;
    const std::vector<schedule::Task>& tasks = last->schedule->tasks;
    for (size_t id = 0; id < tasks.size(); ++id) {
      if (tasks[id].kind != schedule::TaskKind::kLoadExperts) continue;
      if (tasks[id].lane.rank != options.parallel.rank()) continue;
      changes.beside_seconds += executor.timeline().tasks[id].seconds();
    }
    in_memory.fill(false);
    in_memory[static_cast<size_t>(Phase::kDecode)] = true;
    phased->Use(Phase::kDecode);
  }
  Result<weights::BackupQuality> MakeBackup() {
    CHECK(phased != nullptr && options.parallel.loads_experts, "no experts are loaded");
    weights::ExpertBackup& backup = *runner->backup();
    hardware::ThreadPool* const pool = runner->host_threads();
    backup.KeepOriginals(pool);
    ChangePhase(Phase::kDecode, ProgramCache::Change::kMove);
    if (const Status moved = runner->EndChange(); !moved) return moved.error();
    backup.Round(pool);
    ChangePhase(Phase::kPrefill, ProgramCache::Change::kLoad);
    if (const Status loaded = runner->EndChange(); !loaded) return loaded.error();
    changes = {};
    return backup.quality();
  }
  void UsePipeline(const strategy::Pipeline& pipeline) {
    CHECK(!options.parallel.pipeline_of, "each step has a pipeline of its own");
    strategy::Pipeline& used = options.parallel.pipeline;
    CHECK(pipeline.overlap == used.overlap && pipeline.micro_batches == used.micro_batches,
          "lanes and memory are there for others");
    CHECK(pipeline.chunks >= 1 && pipeline.chunks <= strategy::kMostChunks, "{} chunks",
          pipeline.chunks);
    used = pipeline;
  }
  void RecordChange(const Program& program) {
    if (!is_recorded) return;
    RecordedStep recorded = recorder->Gather({.schedule = program.schedule,
                                              .timeline = &executor.timeline(),
                                              .start = executor.start(),
                                              .expert_counts = &runner->expert_counts()});
    if (!observer || options.parallel.rank() != 0) return;
    recorded.changes_to = program.key.phase;
    observer(recorded);
  }
  Status Forward(std::span<const SequenceStep> step, const LogitsSink* sink, Phase phase,
                 bool decode_follows) {
    if (offloaded != nullptr) return ForwardOffloaded(step, sink);
    ChangePhase(phase);
    ProgramKey key = KeyOfStep(step, phase);
    key.loads_decode = LoadsDecode(phase, decode_follows);
    last = &programs.Get(key);
    runner->BeginForward(step, *last, sink);
    const Status done = Run();
    if (key.loads_decode) CountLoads();
    Record(step);
    return done;
  }
  Status ForwardOffloaded(std::span<const SequenceStep> step, const LogitsSink* sink) {
    if (Status begun = offloaded->Begin(step, sink); !begun) return begun;
    const Status done = offloaded->End(executor.Run(last->lanes, *offloaded));
    Record(step);
    return done;
  }
  Status Encode(std::span<const EncoderInput> inputs, bool with_states, const StatesSink* sink) {
    last = &programs.Get(KeyOf(/*encoder=*/true, CountTokens(inputs), Phase::kPrefill));
    runner->BeginEncode(inputs, *last, with_states, sink);
    const Status done = Run();
    Record(inputs);
    return done;
  }
  // Of all groups: every rank knows the whole step.
  template <typename Sequence>
  static int64_t CountTokens(std::span<const Sequence> step) {
    int64_t num_tokens = 0;
    for (const Sequence& sequence : step) num_tokens += std::ssize(sequence.tokens);
    return num_tokens;
  }
  Status Run() {
    const Status done = executor.Run(last->lanes, *runner, last->computes_beside);
    // A thread for a lane may be refused.
    const bool may_fail = paged != nullptr || runner->spilled_kv() != nullptr;
    // Of several ranks the others are in the step's exchanges: then the job ends.
    if (!done && may_fail && options.parallel.roles.num_ranks() == 1) return done;
    CHECK(done.ok(), "the runner keeps what fails: {}", done.error().message);
    const Status ended = runner->End();
    // While the caller samples, the first experts of a step like this one are read.
    if (paged != nullptr && ended) executor.Prefetch(last->lanes, *runner);
    return ended;
  }
  template <typename Sequence>
  void Record(std::span<const Sequence> step) {
    if (!is_recorded) return;
    RecordedStep recorded = recorder->Gather({.schedule = last->schedule,
                                              .timeline = &executor.timeline(),
                                              .start = executor.start(),
                                              .expert_counts = &runner->expert_counts()});
    if (!observer || options.parallel.rank() != 0) return;
    recorded.encoder = std::is_same_v<Sequence, EncoderInput>;
    recorded.num_sequences = static_cast<int>(step.size());
    recorded.num_tokens = CountTokens(step);
    observer(recorded);
  }
};

memory::Amounts Transformer::StepBytes(const device::DeviceBytes& device,
                                       const model::ModelSpec& spec,
                                       const TransformerOptions& options, int num_threads) {
  return device.of_steps(spec, options.activations, StepShapeOf(spec, options), num_threads);
}

Result<Transformer> Transformer::Create(weights::WeightStore& weights, device::Device& device,
                                        const TransformerOptions& asked_options,
                                        memory::Ledger& ledger) {
  TransformerOptions options = asked_options;
  std::optional<strategy::Roles>& decode = options.parallel.decode_roles;
  if (decode == options.parallel.roles) decode.reset();
  if (Status can = CheckOptions(weights, device, options); !can) return can.error();
  Result<std::unique_ptr<StepRunner>> runner = StepRunner::Create(weights, device, options, ledger);
  if (!runner) return runner.error();
  auto state =
      std::make_unique<State>(*std::move(runner), nullptr, weights, options,
                              hardware::LaneCpus{device.lane_cpus(), options.parallel.host_cpus});
  if (decode) {
    state->phased = weights.phased();
    state->in_memory[static_cast<size_t>(Phase::kDecode)] = state->phased->begins_with_both();
  }
  if (options.parallel.roles.num_ranks() > 1) {
    if (const Status started = state->executor.StartBackground(); !started) return started.error();
  }
  return Transformer(std::move(state));
}

Transformer Transformer::Offload(std::unique_ptr<OffloadedSteps> steps) {
  weights::WeightStore& weights = steps->weights();
  const OffloadedOptions& options = steps->options();
  const TransformerOptions of_steps = OffloadedSteps::StepOptions(options);
  const hardware::LaneCpus cpus = options.cpus;
  return Transformer(std::make_unique<State>(nullptr, std::move(steps), weights, of_steps, cpus));
}

Transformer::Transformer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Transformer::Transformer(Transformer&&) noexcept = default;
Transformer& Transformer::operator=(Transformer&&) noexcept = default;
Transformer::~Transformer() {
  if (state_ != nullptr) EndSteps();
}

device::KvCache& Transformer::kv_cache() {
  return state_->offloaded != nullptr ? state_->offloaded->kv_cache() : state_->runner->kv_cache();
}
SpillStatistics Transformer::spill_statistics() const {
  const SpilledKv* spilled = state_->runner->spilled_kv();
  return spilled != nullptr ? spilled->statistics() : SpillStatistics();
}
const device::StepStatistics& Transformer::statistics() const {
  return state_->runner->statistics();
}
const schedule::Schedule& Transformer::schedule() const { return *state_->last->schedule; }
const schedule::Timeline& Transformer::timeline() const { return state_->executor.timeline(); }
void Transformer::ObserveSteps(StepObserver observer) { state_->observer = std::move(observer); }
void Transformer::RecordOnly(std::function<bool()> is_wanted) {
  state_->is_wanted = std::move(is_wanted);
}
const std::vector<std::vector<int64_t>>& Transformer::expert_counts() const {
  return state_->runner->expert_counts();
}

int Transformer::SharingLimit(int prompt_length) const {
  // Of all ranks: this one may have no attention.
  const ParallelOptions& parallel = state_->options.parallel;
  const model::ModelSpec& spec = parallel.WholeOf(state_->spec());
  // Whether an expert still has room depends on what was counted, not on what is cached.
  if (state_->options.expert_capacity > 0) return 0;
  // What a decoder attends to is not among its tokens.
  if (!spec.encoder_layers.empty()) return 0;
  int limit = std::numeric_limits<int>::max();
  if (spec.rope.DependsOnLength()) {
    // A longer prompt has other frequencies from its first position on.
    const bool is_short = prompt_length <= spec.rope.original_max_positions;
    limit = is_short ? spec.rope.original_max_positions : 0;
  }
  const auto has_latent = [](const model::LayerSpec& layer) { return layer.attention.latent; };
  if (std::any_of(spec.layers.begin(), spec.layers.end(), has_latent)) {
    // Two forms of attention, two roundings: long prompts share their prompts.
    const int has_attention = parallel.roles.RankOfPart(0, 0);
    const bool expands = parallel.roles.of(has_attention).attention->Expands(prompt_length);
    limit = std::min(limit, expands ? prompt_length : 0);
  }
  // Positions of generated tokens have passed other slices of the experts than those of prompts.
  if (state_->phased != nullptr) limit = std::min(limit, prompt_length);
  return limit;
}

Status Transformer::Forward(std::span<const SequenceStep> step, const LogitsSink& sink,
                            std::optional<Phase> phase, bool decode_follows) {
  const Phase whose = phase ? *phase : state_->PhaseOf(step);
  const bool is_recorded = state_->ChooseRecording();
  if (state_->leads()) state_->Tell(ForwardMessage(step, whose, is_recorded, decode_follows));
  return state_->Forward(step, &sink, whose, decode_follows);
}

Result<weights::BackupQuality> Transformer::MakeBackup() { return state_->MakeBackup(); }

Status Transformer::ChangePhase(Phase phase) {
  const bool is_recorded = state_->ChooseRecording();
  if (state_->leads()) state_->Tell(ChangePhaseMessage(phase, is_recorded));
  return state_->ChangePhaseAlone(phase);
}

void Transformer::UsePipeline(const strategy::Pipeline& pipeline) {
  if (state_->leads()) state_->Tell(UsePipelineMessage(pipeline));
  state_->UsePipeline(pipeline);
}

const PhaseChanges& Transformer::phase_changes() const { return state_->changes; }
void Transformer::ForgetPhaseChanges() { state_->changes = {}; }

Status Transformer::Encode(std::span<const EncoderInput> inputs, const StatesSink& sink) {
  const bool with_states = static_cast<bool>(sink);
  const bool is_recorded = state_->ChooseRecording();
  if (state_->leads()) state_->Tell(EncodeMessage(inputs, with_states, is_recorded));
  return state_->Encode(inputs, with_states, &sink);
}

void Transformer::StopReadingAhead() { state_->executor.DiscardPrefetched(); }

std::optional<TaskAt> Transformer::FindNotFinite(std::span<const SequenceStep> step) {
  CHECK(state_->options.parallel.roles.num_ranks() == 1, "other ranks would wait");
  if (state_->options.expert_capacity > 0) return std::nullopt;
  state_->runner->WatchRows(true);
  const Status done = Forward(step, [](int, int, std::span<const float>) {});
  state_->runner->WatchRows(false);
  if (!done) return std::nullopt;
  return state_->runner->not_finite();
}

void Transformer::EndSteps() {
  if (!state_->leads() || state_->has_ended) return;
  state_->has_ended = true;
  state_->Tell(EndMessage());
}

void Transformer::Abandon() { state_->has_ended = true; }

void Transformer::FollowSteps() {
  while (FollowStep()) {
  }
}

bool Transformer::FollowStep() {
  CHECK(state_->options.parallel.rank() != 0, "rank 0 follows nobody");
  std::vector<std::byte> bytes;
  state_->options.parallel.group->Broadcast(0, &bytes, "waiting for the next step");
  const StepMessage message = ReadStepMessage(bytes);
  if (message.kind == StepKind::kUsePipeline) {
    state_->UsePipeline(message.pipeline);
    return true;
  }
  if (message.kind != StepKind::kEnd) state_->BeginStep(message.is_recorded);
  switch (message.kind) {
    case StepKind::kEnd:
      return false;
    case StepKind::kUsePipeline:
      break;
    case StepKind::kForward:
      // What failed is rank 0's to tell.
      (void)state_->Forward(message.step, nullptr, message.phase, message.decode_follows);
      break;
    case StepKind::kChangePhase:
      (void)state_->ChangePhaseAlone(message.phase);
      break;
    case StepKind::kEncode:
      (void)state_->Encode(message.inputs, message.with_states, nullptr);
      break;
  }
  return true;
}

}  // namespace convene::runtime
