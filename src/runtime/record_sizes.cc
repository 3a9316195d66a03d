#include "runtime/record_sizes.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "strategy/attention_sizes.h"

namespace convene::runtime {

using enum schedule::SizeKind;

namespace {

std::vector<strategy::SequenceRows> SequencesOf(const device::StepRows& rows,
                                                const strategy::AttentionRole& role) {
  std::vector<strategy::SequenceRows> sequences;
  for (const device::SequenceStep& sequence : rows.step()) {
    const int64_t num_tokens = std::ssize(sequence.tokens);
    sequences.push_back(
        {.first_position = sequence.first_position,
         .num_tokens = num_tokens,
         .num_wanted = std::max<int64_t>(0, num_tokens - sequence.first_logits_token),
         .is_expanded = role.Expands(sequence.prompt_length),
         .prompt_length = sequence.prompt_length,
         .input_length = sequence.encoder_length});
  }
  return sequences;
}

}  // namespace

void RecordRows(const device::Frame& frame, std::span<const device::Layer> layers,
                const strategy::AttentionRole& role, int rank, int micro_batch,
                StepRecorder& recorder) {
  const device::OwnRows own = frame.own();
  const auto wanted = std::ranges::count_if(frame.rows.wanted(), [&](int row) {
    return row >= own.first && row < own.first + own.count;
  });
  const auto set = [&](schedule::Size size, double value) {
    size.from = rank;
    size.micro_batch = micro_batch;
    recorder.Set(size, value);
  };
  set({.kind = kRows}, own.count);
  set({.kind = kWanted}, static_cast<double>(wanted));
  const std::vector<strategy::SequenceRows> sequences = SequencesOf(frame.rows, role);
  const auto set_attention = [&](std::initializer_list<schedule::SizeKind> kinds,
                                 const strategy::AttentionShape& shape, int layer) {
    for (const schedule::SizeKind kind : kinds) {
      for (const bool only_wanted : {false, true}) {
        set({.kind = kind, .layer = layer, .wanted = only_wanted},
            strategy::CountAttention(kind, only_wanted, shape, sequences));
      }
    }
  };
  // An encoder's tokens see their whole input.
  const bool causal = layers.empty() || layers.front().spec.attention.causal;
  set_attention({kTokens, kKeys, kCached, kExpandedTokens, kExpandedKeys, kExpandedCached,
                 kInputKeys, kInputCached},
                {.causal = causal}, -1);
  for (const device::Layer& layer : layers) {
    const int window = layer.spec.attention.window;
    if (window > 0) set_attention({kKeys, kCached}, {.window = window}, layer.index);
  }
}

void RecordTask(const device::Frame& frame, const schedule::Task& task, int num_ranks,
                StepRecorder& recorder) {
  const device::ExpertRows& rows = frame.expert_rows;
  const int rank = task.lane.rank;
  const auto set = [&](schedule::SizeKind kind, int chunk, int to, double value) {
    recorder.Set({kind, task.layer, chunk, rank, to, task.micro_batch}, value);
  };
  if (task.kind == schedule::TaskKind::kRoute) {
    for (int to = 0; to < num_ranks; ++to) {
      for (int chunk = 0; to != rank && chunk < rows.num_chunks(); ++chunk) {
        set(kSent, chunk, to, static_cast<double>(rows.sent_rows(to, chunk)));
      }
    }
  } else if (task.kind == schedule::TaskKind::kExperts) {
    const std::vector<int32_t>& first = rows.selected().first_slot;
    // Those of the shared expert are another task's.
    const size_t num_experts = first.size() - 1 - (frame.visits_shared ? 1 : 0);
    int experts = 0;
    for (size_t i = 0; i < num_experts; ++i) experts += first[i + 1] > first[i];
    set(kSlots, task.chunk, -1, first[num_experts] - first.front());
    set(kExperts, task.chunk, -1, experts);
  } else if (task.kind == schedule::TaskKind::kReduce) {
    for (int to = 0; to < num_ranks; ++to) {
      if (to == rank) continue;
      set(kReturned, task.chunk, to, static_cast<double>(rows.returned_rows(to, task.chunk)));
    }
  }
}

}  // namespace convene::runtime
