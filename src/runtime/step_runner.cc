#include "runtime/step_runner.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/check.h"
#include "comm/agree.h"
#include "runtime/cut_step.h"
#include "runtime/record_sizes.h"

namespace convene::runtime {

using device::EncoderInput;
using device::SequenceStep;

Result<std::unique_ptr<StepRunner>> StepRunner::Create(weights::WeightStore& weights,
                                                       device::Device& device,
                                                       const TransformerOptions& options,
                                                       memory::Ledger& ledger) {
  auto memory = RankMemory::Create(weights, device, options, ledger);
  if (!memory) return memory.error();
  return std::unique_ptr<StepRunner>(new StepRunner(weights, device, options, *std::move(memory)));
}

StepRunner::StepRunner(weights::WeightStore& weights, device::Device& device,
                       const TransformerOptions& options, RankMemory memory)
    : weights_(weights),
      device_(device),
      options_(options),
      memory_(std::move(memory)),
      fault_(options.parallel.rank(), options.parallel.roles.num_ranks()),
      operators_(weights, device, options, memory_, fault_) {}

void StepRunner::BeginForward(std::span<const SequenceStep> step, const Program& program,
                              const LogitsSink* sink) {
  Begin(step, program, {.logits_sink = sink});
}

void StepRunner::BeginEncode(std::span<const EncoderInput> inputs, const Program& program,
                             bool with_states, const StatesSink* sink) {
  CHECK(spec().has_encoder(), "the model has no encoder");
  std::vector<SequenceStep> step;
  for (const EncoderInput& input : inputs) {
    const auto length = static_cast<int>(input.tokens.size());
    step.push_back({.tokens = input.tokens,
                    .blocks = input.blocks,
                    .prompt_length = length,
                    .first_logits_token = with_states ? 0 : length,
                    .group = input.group});
  }
  Begin(step, program, {.states_sink = sink});
  stream().statistics().logits_rows = 0;
}

void StepRunner::BeginChange(const Program& program, strategy::Phase phase) {
  fault_.BeginChange();
  operators_.BeginChange(phase);
  UseSchedule(program);
  if (recorder_ != nullptr) recorder_->Begin();
}

Status StepRunner::EndChange() {
  fault_.EndChange();
  return comm::AgreeOnSuccess(*options_.parallel.group, fault_.status());
}

void StepRunner::UseSchedule(const Program& program) {
  schedule_ = program.schedule.get();
  while (events_.size() < schedule_->tasks.size()) events_.push_back(device_.CreateEvent());
}

void StepRunner::Begin(std::span<const SequenceStep> step, const Program& program,
                       StepOperators::Step of_step) {
  const ProgramKey& key = program.key;
  const strategy::Roles& roles = options_.parallel.roles;
  for (const SequenceStep& sequence : step) {
    CHECK(sequence.group >= 0 && sequence.group < roles.num_groups(), "group {} of {}",
          sequence.group, roles.num_groups());
  }
  const int num_frames = key.pipeline.micro_batches;
  CHECK(num_frames <= std::ssize(memory_.frames), "{} micro-batches of {}", num_frames,
        memory_.frames.size());
  of_step.frames = {memory_.frames.data(), static_cast<size_t>(num_frames)};
  of_step.largest_suffices = key.largest_suffices;
  of_step.keeps_routing = recorder_ == nullptr && operators_.MayKeepRouting(key.pipeline);
  if (key.loads_decode) of_step.moves_to = strategy::Phase::kDecode;
  encodes_ = key.encoder;
  fault_.BeginStep();
  UseSchedule(program);
  BeginFrames(step, program, of_step);
  operators_.Begin(of_step, step, key.paging);
}

void StepRunner::BeginFrames(std::span<const SequenceStep> step, const Program& program,
                             const StepOperators::Step& of_step) {
  const ProgramKey& key = program.key;
  const int rank = options_.parallel.rank();
  // A rank with experts alone has no sequences.
  constexpr int kNoGroup = -1;
  const auto& attention = options_.parallel.roles.of(rank).attention;
  const int group = attention ? attention->group : kNoGroup;
  CHECK(CountRows(step, group) <= options_.max_step_tokens, "{} tokens in a step of at most {}",
        CountRows(step, group), options_.max_step_tokens);
  device::StepStatistics& statistics = stream().statistics();
  statistics = {};
  const auto num_frames = static_cast<int>(of_step.frames.size());
  for (int i = 0; i < num_frames; ++i) {
    device::Frame& frame = *of_step.frames[i];
    std::vector<SequenceStep> sequences = CutStep(step, group, i, num_frames);
    if (memory_.spilled != nullptr) {
      memory_.spilled->Begin(sequences);
      CHECK(key.spilled_kv && key.spilled_kv->parts == memory_.spilled->num_parts(),
            "a step of {} parts", memory_.spilled->num_parts());
    }
    frame.Begin(std::move(sequences));
    frame.expert_rows.Use(options_.parallel.RolesIn(key.phase).SeenFrom(rank), key.pipeline,
                          key.paging ? key.paging->chunks : 1);
    // Where weights are lent there, the host says when they come.
    frame.is_seen_at_end_alone = of_step.keeps_routing && num_frames == 1 && !encodes_ &&
                                 !watches_rows_ && memory_.spilled == nullptr &&
                                 weights_.lends_on_device() == weights::DeviceLoans::kNone;
    stream().Begin(frame);
    statistics.logits_rows += std::ssize(frame.rows.wanted());
  }
  for (const SequenceStep& sequence : step) statistics.tokens += std::ssize(sequence.tokens);
  if (recorder_ == nullptr) return;
  recorder_->Begin();
  for (int i = 0; attention && i < num_frames; ++i) {
    RecordRows(*of_step.frames[i], operators_.stack(encodes_), *attention, rank,
               num_frames > 1 ? i : -1, *recorder_);
  }
}

Status StepRunner::BeforeTask(const Task& task) const {
  const auto& before_task = options_.parallel.experiment.before_task;
  return before_task ? before_task(task) : Status();
}

void StepRunner::Compute(const Task& task) {
  bool is_done = false;  // asked once: an exchange may fail meanwhile, on another thread
  if (!fault_.has_failed()) {
    Status done = BeforeTask(task);
    if (done) done = operators_.Run(task);
    if (!done) fault_.Fail(task, done.error());
    is_done = done.ok();
  }
  stream().Record(EventOf(task));
  if (!is_done) return operators_.Skip(task);
  if (recorder_ != nullptr) {
    RecordTask(memory_.FrameOf(task), task, options_.parallel.roles.num_ranks(), *recorder_);
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
  if (!fault_.has_failed()) {
    // The other ranks are in the exchange, too, and wait.
    if (const Status fine = BeforeTask(task); !fine) fault_.Fail(task, fine.error());
  }
  if (recorder_ == nullptr) return operators_.Start(task);
  const comm::Group& group = *options_.parallel.group;
  const uint64_t before = group.sent_bytes();
  std::unique_ptr<comm::Exchange> exchange = operators_.Start(task);
  // Of experts only the first round has been sent by now.
  const bool moves = task.kind == schedule::TaskKind::kMoveExperts;
  recorder_->SetSent(task, moves ? operators_.MovedBytes(task) : group.sent_bytes() - before);
  return exchange;
}

Status StepRunner::RunOnLane(const Task& task, hardware::ThreadPool*) {
  using enum schedule::TaskKind;
  if (task.kind != kReadKv && task.kind != kWriteKv) return operators_.RunOnLane(task);
  if (fault_.has_failed()) return {};
  Status done = BeforeTask(task);
  if (done) done = operators_.RunOnLane(task);
  if (!done) fault_.Fail(task, done.error());
  return {};
}

Status StepRunner::End() {
  operators_.AwaitStream();
  Status mine = fault_.status();
  if (mine) mine = stream().status();
  // Behind an encoder's last exchange, keys and values of the decoder's layers are made.
  const bool agrees =
      options_.parallel.roles.num_ranks() > 1 && (encodes_ || fault_.AnyHasFailed());
  // The head's rank alone works behind the last exchange, and its step is the one that is answered.
  CHECK(mine.ok() || agrees || options_.parallel.rank() == 0, "no rank was told: {}",
        mine.error().message);
  return agrees ? comm::AgreeOnSuccess(*options_.parallel.group, mine) : mine;
}

void StepRunner::LookAtRows(const Task& task) {
  // Logits are the caller's matter.
  if (task.layer < 0 && task.kind != schedule::TaskKind::kEmbed) return;
  operators_.AwaitStream();
  if (stream().FetchAllFinite(memory_.FrameOf(task))) return;
  not_finite_ =
      TaskAt{std::max(0, task.layer), task.encoder, std::string(schedule::Name(task.kind))};
}

}  // namespace convene::runtime
