#include "cli/bench_workload.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "engine/scheduler.h"

namespace convene::cli {

using engine::Scheduler;
using runtime::SequenceStep;

int64_t BenchWorkload::BlocksFor(const WorkloadShape& shape) {
  return int64_t{shape.batch} * Scheduler::BlocksFor(shape.prompt_tokens + shape.gen_tokens);
}

BenchWorkload::BenchWorkload(engine::LoadedModel& model, const WorkloadShape& shape, uint64_t seed)
    : model_(model), shape_(shape) {
  CHECK(BlocksFor(shape) <= model.num_kv_blocks(), "{} blocks of {}", BlocksFor(shape),
        model.num_kv_blocks());
  const int length = shape.prompt_tokens + shape.gen_tokens;
  std::mt19937_64 random(seed);
  int32_t next_block = 0;
  for (int i = 0; i < shape.batch; ++i) {
    auto& tokens = tokens_.emplace_back(static_cast<size_t>(length));
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(random() % static_cast<uint64_t>(model.spec().vocab_size));
    }
    auto& blocks = blocks_.emplace_back(static_cast<size_t>(Scheduler::BlocksFor(length)));
    for (int32_t& block : blocks) block = next_block++;
  }
}

Work BenchWorkload::Prefill() {
  Work total;
  std::vector<SequenceStep> step;
  int budget = model_.max_step_tokens();
  const auto run = [&] {
    const Work work = RunStep(step);
    total.seconds += work.seconds;
    total.flops += work.flops;
    total.bytes += work.bytes;
    total.tokens += work.tokens;
    step.clear();
    budget = model_.max_step_tokens();
  };
  for (int sequence_idx = 0; sequence_idx < shape_.batch; ++sequence_idx) {
    for (int position = 0; position < shape_.prompt_tokens;) {
      const int count = std::min(budget, shape_.prompt_tokens - position);
      step.push_back(StepOf(sequence_idx, position, count));
      position += count;
      step.back().first_logits_token = position == shape_.prompt_tokens ? count - 1 : count;
      budget -= count;
      if (budget == 0) run();
    }
  }
  if (!step.empty()) run();
  return total;
}

std::vector<Work> BenchWorkload::Decode() {
  std::vector<Work> steps;
  for (int i = 0; i < shape_.gen_tokens; ++i) {
    std::vector<SequenceStep> step;
    for (int sequence_idx = 0; sequence_idx < shape_.batch; ++sequence_idx) {
      step.push_back(StepOf(sequence_idx, shape_.prompt_tokens + i, 1));
    }
    steps.push_back(RunStep(step));
  }
  return steps;
}

Work BenchWorkload::RunStep(const std::vector<SequenceStep>& step) {
  const auto start = std::chrono::steady_clock::now();
  model_.transformer().Forward(step, [](int, int, std::span<const float>) {});
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const runtime::StepStatistics& statistics = model_.transformer().statistics();
  return {.seconds = elapsed.count(),
          .flops = statistics.flops,
          .bytes = static_cast<double>(statistics.weight_bytes + statistics.kv_bytes),
          .tokens = statistics.tokens};
}

SequenceStep BenchWorkload::StepOf(int sequence_idx, int first_position, int num_tokens) const {
  const auto i = static_cast<size_t>(sequence_idx);
  return {
      .tokens = std::span<const int32_t>(tokens_[i])
                    .subspan(static_cast<size_t>(first_position), static_cast<size_t>(num_tokens)),
      .first_position = first_position,
      .blocks = blocks_[i],
      .prompt_length = shape_.prompt_tokens,
      .first_logits_token = 0,
  };
}

}  // namespace convene::cli
