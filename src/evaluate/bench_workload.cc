#include "evaluate/bench_workload.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "engine/scheduler.h"
#include "schedule/schedule.h"
#include "tensor/finite.h"

namespace convene::evaluate {

using device::SequenceStep;
using engine::Scheduler;

namespace {

// Of a step, without what was read before it began.
double LoadSeconds(const runtime::Transformer& transformer, double step_seconds) {
  double seconds = 0;
  const schedule::Schedule& schedule = transformer.schedule();
  for (size_t i = 0; i < schedule.tasks.size(); ++i) {
    if (schedule.tasks[i].lane.kind != schedule::LaneKind::kLoad) continue;
    const schedule::TaskTime& time = transformer.timeline().tasks[i];
    seconds += std::max(0.0, std::min(time.end, step_seconds) - std::max(0.0, time.start));
  }
  return seconds;
}

}  // namespace

int64_t BenchWorkload::BlocksFor(const model::ModelSpec& spec, const WorkloadShape& shape,
                                 int num_groups) {
  const int blocks =
      spec.has_encoder()
          ? Scheduler::BlocksFor(shape.prompt_tokens) + Scheduler::BlocksFor(1 + shape.gen_tokens)
          : Scheduler::BlocksFor(shape.prompt_tokens + shape.gen_tokens);
  return (int64_t{shape.batch} + num_groups - 1) / num_groups * blocks;
}

BenchWorkload::BenchWorkload(engine::LoadedModel& model, const WorkloadShape& shape, uint64_t seed)
    : model_(model), shape_(shape) {
  const int64_t num_blocks = BlocksFor(model.spec(), shape, model.num_groups());
  CHECK(num_blocks <= model.num_kv_blocks(), "{} blocks of {}", num_blocks, model.num_kv_blocks());
  std::mt19937_64 random(seed);
  std::vector<int32_t> next_block(static_cast<size_t>(model.num_groups()), 0);
  const auto add = [&](int group, int length, std::vector<std::vector<int32_t>>& all_tokens,
                       std::vector<std::vector<int32_t>>& all_blocks) {
    auto& tokens = all_tokens.emplace_back(static_cast<size_t>(length));
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(random() % static_cast<uint64_t>(model.spec().vocab_size));
    }
    auto& blocks = all_blocks.emplace_back(static_cast<size_t>(Scheduler::BlocksFor(length)));
    for (int32_t& block : blocks) block = next_block[static_cast<size_t>(group)]++;
  };
  for (int i = 0; i < shape.batch; ++i) {
    if (model.spec().has_encoder()) add(GroupOf(i), shape.prompt_tokens, inputs_, input_blocks_);
    add(GroupOf(i), first_decoded() + shape.gen_tokens, tokens_, blocks_);
  }
}

int BenchWorkload::first_decoded() const {
  return model_.spec().has_encoder() ? 1 : shape_.prompt_tokens;
}

Work& operator+=(Work& total, const Work& work) {
  total.seconds += work.seconds;
  total.flops += work.flops;
  total.bytes += work.bytes;
  total.tokens += work.tokens;
  total.expert_flops += work.expert_flops;
  total.expert_seconds += work.expert_seconds;
  total.load_seconds += work.load_seconds;
  return total;
}

Result<Work> BenchWorkload::Encode() {
  Work total;
  std::vector<device::EncoderInput> step;
  const int each = std::max(1, model_.max_step_tokens() / shape_.prompt_tokens);
  const auto most = static_cast<size_t>(each) * static_cast<size_t>(model_.num_groups());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    step.push_back({inputs_[i], input_blocks_[i], GroupOf(static_cast<int>(i))});
    if (step.size() < most && i + 1 < inputs_.size()) continue;
    const Result<Work> done = RunStep([&] { return model_.transformer().Encode(step, {}); });
    if (!done) return done;
    total += *done;
    step.clear();
  }
  return total;
}

// Each group fills its own part of a step.
Result<Work> BenchWorkload::Prefill() {
  if (model_.spec().has_encoder()) return Encode();
  if (const Status moved = MoveExperts(strategy::Phase::kPrefill); !moved) return moved.error();
  Work total;
  const int num_groups = model_.num_groups();
  std::vector<int> position(static_cast<size_t>(shape_.batch), 0);
  for (;;) {
    std::vector<SequenceStep> step;
    std::vector<int> budget(static_cast<size_t>(num_groups), model_.max_step_tokens());
    for (int i = 0; i < shape_.batch; ++i) {
      int& first = position[static_cast<size_t>(i)];
      int& left = budget[static_cast<size_t>(GroupOf(i))];
      const int count = std::min(left, shape_.prompt_tokens - first);
      if (count == 0) continue;
      step.push_back(StepOf(i, first, count));
      first += count;
      step.back().first_logits_token = first == shape_.prompt_tokens ? count - 1 : count;
      left -= count;
    }
    if (step.empty()) return total;
    const Result<Work> done = Forward(step);
    if (!done) return done;
    total += *done;
  }
}

Status BenchWorkload::MoveExperts(strategy::Phase phase) {
  if (!model_.plan().changes_layout()) return {};
  return model_.transformer().ChangePhase(phase);
}

Result<std::vector<Work>> BenchWorkload::Decode() {
  if (const Status moved = MoveExperts(strategy::Phase::kDecode); !moved) return moved.error();
  std::vector<Work> steps;
  for (int i = 0; i < shape_.gen_tokens; ++i) {
    std::vector<SequenceStep> step;
    for (int sequence_idx = 0; sequence_idx < shape_.batch; ++sequence_idx) {
      step.push_back(StepOf(sequence_idx, first_decoded() + i, 1));
    }
    const Result<Work> done = Forward(step);
    if (!done) return done.error();
    steps.push_back(*done);
  }
  return steps;
}

Result<Work> BenchWorkload::Forward(std::span<const SequenceStep> step) {
  return RunStep([&] {
    // Of one sequence after the other: looking at all of them takes the host longer than a GPU
    // needs for some models' steps, and is no part of these.
    const auto looked_at = static_cast<int>(num_steps_++ % shape_.batch);
    return model_.transformer().Forward(
        step, [&](int sequence_idx, int, const runtime::Logits& logits) {
          if (sequence_idx != looked_at) return;
          const bool finite =
              logits.is_largest_alone() ? logits.largest() >= 0 : tensor::AllFinite(logits);
          met_not_finite_ = met_not_finite_ || !finite;
        });
  });
}

template <typename F>
Result<Work> BenchWorkload::RunStep(F&& run) {
  const auto start = std::chrono::steady_clock::now();
  const Status done = run();
  if (!done) return done.error();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const device::StepStatistics& statistics = model_.transformer().statistics();
  return Work{.seconds = elapsed.count(),
              .flops = statistics.flops,
              .bytes = static_cast<double>(statistics.weight_bytes + statistics.kv_bytes),
              .tokens = statistics.tokens,
              .expert_flops = statistics.expert_flops,
              .expert_seconds = statistics.expert_seconds,
              .load_seconds = LoadSeconds(model_.transformer(), elapsed.count())};
}

SequenceStep BenchWorkload::StepOf(int sequence_idx, int first_position, int num_tokens) const {
  const auto i = static_cast<size_t>(sequence_idx);
  SequenceStep step = {
      .tokens = std::span<const int32_t>(tokens_[i])
                    .subspan(static_cast<size_t>(first_position), static_cast<size_t>(num_tokens)),
      .first_position = first_position,
      .blocks = blocks_[i],
      .prompt_length = first_decoded(),
      .first_logits_token = 0,
      .largest_suffices = true,  // as of a greedy answer
      .group = GroupOf(sequence_idx),
  };
  if (!inputs_.empty()) {
    step.encoder_blocks = input_blocks_[i];
    step.encoder_length = shape_.prompt_tokens;
  }
  return step;
}

}  // namespace convene::evaluate
