#include "cli/bench_workload.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "engine/scheduler.h"

namespace convene::cli {

using engine::Scheduler;
using runtime::SequenceStep;

int64_t BenchWorkload::BlocksFor(const model::ModelSpec& spec, const WorkloadShape& shape) {
  const int blocks =
      spec.has_encoder()
          ? Scheduler::BlocksFor(shape.prompt_tokens) + Scheduler::BlocksFor(1 + shape.gen_tokens)
          : Scheduler::BlocksFor(shape.prompt_tokens + shape.gen_tokens);
  return int64_t{shape.batch} * blocks;
}

BenchWorkload::BenchWorkload(engine::LoadedModel& model, const WorkloadShape& shape, uint64_t seed)
    : model_(model), shape_(shape) {
  CHECK(BlocksFor(model.spec(), shape) <= model.num_kv_blocks(), "{} blocks of {}",
        BlocksFor(model.spec(), shape), model.num_kv_blocks());
  std::mt19937_64 random(seed);
  int32_t next_block = 0;
  const auto add = [&](int length, std::vector<std::vector<int32_t>>& all_tokens,
                       std::vector<std::vector<int32_t>>& all_blocks) {
    auto& tokens = all_tokens.emplace_back(static_cast<size_t>(length));
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(random() % static_cast<uint64_t>(model.spec().vocab_size));
    }
    auto& blocks = all_blocks.emplace_back(static_cast<size_t>(Scheduler::BlocksFor(length)));
    for (int32_t& block : blocks) block = next_block++;
  };
  for (int i = 0; i < shape.batch; ++i) {
    if (model.spec().has_encoder()) add(shape.prompt_tokens, inputs_, input_blocks_);
    add(first_decoded() + shape.gen_tokens, tokens_, blocks_);
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
  return total;
}

Work BenchWorkload::Encode() {
  Work total;
  std::vector<runtime::EncoderInput> step;
  const auto run = [&] { total += RunStep([&] { model_.transformer().Encode(step, {}); }); };
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (std::ssize(step) + 1 > model_.max_step_tokens() / shape_.prompt_tokens && !step.empty()) {
      run();
      step.clear();
    }
    step.push_back({inputs_[i], input_blocks_[i]});
  }
  run();
  return total;
}

Work BenchWorkload::Prefill() {
  if (model_.spec().has_encoder()) return Encode();
  Work total;
  std::vector<SequenceStep> step;
  int budget = model_.max_step_tokens();
  const auto run = [&] {
    total += RunStep(
        [&] { model_.transformer().Forward(step, [](int, int, std::span<const float>) {}); });
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
      step.push_back(StepOf(sequence_idx, first_decoded() + i, 1));
    }
    steps.push_back(RunStep(
        [&] { model_.transformer().Forward(step, [](int, int, std::span<const float>) {}); }));
  }
  return steps;
}

template <typename F>
Work BenchWorkload::RunStep(F&& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const runtime::StepStatistics& statistics = model_.transformer().statistics();
  return {.seconds = elapsed.count(),
          .flops = statistics.flops,
          .bytes = static_cast<double>(statistics.weight_bytes + statistics.kv_bytes),
          .tokens = statistics.tokens,
          .expert_flops = statistics.expert_flops,
          .expert_seconds = statistics.expert_seconds};
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
  };
  if (!inputs_.empty()) {
    step.encoder_blocks = input_blocks_[i];
    step.encoder_length = shape_.prompt_tokens;
  }
  return step;
}

}  // namespace convene::cli
