#include "planner/workload_steps.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace convene::planner {
namespace {

using strategy::SequenceRows;

bool Expands(const strategy::Roles& roles, int prompt_tokens) {
  const auto& attention = roles.of(roles.RankOfPart(0, 0)).attention;
  return attention && attention->Expands(prompt_tokens);
}

// Of one group: its prompts one after the other, in steps that are full but for the last.
std::vector<std::vector<SequenceRows>> CutPrompts(const std::vector<int>& prompts,
                                                  const strategy::Roles& roles, int step_tokens) {
  std::vector<std::vector<SequenceRows>> steps;
  int room = 0;
  for (const int prompt : prompts) {
    for (int first = 0; first < prompt;) {
      if (room == 0) {
        steps.emplace_back();
        room = step_tokens;
      }
      const int tokens = std::min(room, prompt - first);
      steps.back().push_back({.first_position = first,
                              .num_tokens = tokens,
                              .num_wanted = first + tokens == prompt ? 1 : 0,
                              .is_expanded = Expands(roles, prompt),
                              .prompt_length = prompt});
      first += tokens;
      room -= tokens;
    }
  }
  return steps;
}

// Each row times the tokens before its sequence's rows in this step.
double KeysBefore(const StepSequences& groups) {
  double keys = 0;
  for (const auto& group : groups) {
    for (const SequenceRows& rows : group) {
      keys += static_cast<double>(rows.first_position) * static_cast<double>(rows.num_tokens);
    }
  }
  return keys;
}

// Of one group: whole inputs, as many as a step has room for.
std::vector<std::vector<SequenceRows>> CutInputs(const std::vector<int>& inputs, int step_tokens) {
  std::vector<std::vector<SequenceRows>> steps;
  int room = 0;
  for (const int input : inputs) {
    if (steps.empty() || input > room) {
      steps.emplace_back();
      room = step_tokens;
    }
    steps.back().push_back({.num_tokens = input, .num_wanted = 0, .prompt_length = input});
    room -= input;
  }
  return steps;
}

// The first token of the answers to some inputs.
StepSequences FirstTokens(const StepSequences& inputs) {
  StepSequences groups(inputs.size());
  for (size_t group = 0; group < inputs.size(); ++group) {
    for (const SequenceRows& input : inputs[group]) {
      groups[group].push_back({.prompt_length = 1, .input_length = input.num_tokens});
    }
  }
  return groups;
}

// By group of ranks the prompts of its sequences: each goes to the group with the fewest tokens so
// far.
std::vector<std::vector<int>> PromptsByGroup(const std::vector<RequestLengths>& sequences,
                                             const strategy::Roles& roles) {
  const auto num_groups = static_cast<size_t>(roles.num_groups());
  std::vector<std::vector<int>> prompts(num_groups);
  std::vector<int64_t> tokens(num_groups, 0);
  for (const RequestLengths& sequence : sequences) {
    const size_t group =
        std::min_element(tokens.begin(), tokens.end()) - tokens.begin();  // of several the first
    prompts[group].push_back(sequence.prompt_tokens);
    tokens[group] += sequence.prompt_tokens;
  }
  return prompts;
}

// A step has a part of each group, as long as it has any.
std::vector<StepSequences> JoinGroups(
    const std::vector<std::vector<std::vector<SequenceRows>>>& by_group) {
  std::vector<StepSequences> steps;
  for (size_t group = 0; group < by_group.size(); ++group) {
    const auto& cut = by_group[group];
    if (cut.size() > steps.size()) steps.resize(cut.size(), StepSequences(by_group.size()));
    for (size_t step = 0; step < cut.size(); ++step) steps[step][group] = cut[step];
  }
  return steps;
}

std::vector<int64_t> RowsByGroup(const StepSequences& groups) {
  std::vector<int64_t> rows;
  for (const auto& group : groups) {
    rows.push_back(0);
    for (const SequenceRows& sequence : group) rows.back() += sequence.num_tokens;
  }
  return rows;
}

}  // namespace

strategy::Pipeline InOnePiece(strategy::Pipeline pipeline) {
  pipeline.chunks = 1;
  pipeline.cuts.clear();
  pipeline.micro_batches = 1;
  return pipeline;
}

int64_t NumTokens(const StepSequences& groups) {
  int64_t tokens = 0;
  for (const int64_t rows : RowsByGroup(groups)) tokens += rows;
  return tokens;
}

strategy::StepLoad LoadOf(const StepSequences& groups) {
  strategy::StepLoadCounter counter(static_cast<int>(groups.size()));
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const SequenceRows& rows : groups[group]) {
      counter.Add(static_cast<int>(group), rows.first_position, rows.num_tokens);
    }
  }
  return counter.most();
}

namespace {

// Of steps with one key the one with the least of a measure and the one with the most stand for
// all, so that its mean is right.
template <typename Key, typename Measure>
std::vector<TypicalStep> StandFor(const std::vector<StepSequences>& steps, Key key_of,
                                  Measure measure) {
  std::map<std::vector<int64_t>, std::vector<size_t>> by_key;
  for (size_t step = 0; step < steps.size(); ++step) by_key[key_of(steps[step])].push_back(step);
  std::vector<TypicalStep> typical;
  for (auto& [key, alike] : by_key) {
    const auto less = [&](size_t a, size_t b) { return measure(steps[a]) < measure(steps[b]); };
    const auto [least, most] = std::minmax_element(alike.begin(), alike.end(), less);
    const double of_least = measure(steps[*least]);
    const double range = measure(steps[*most]) - of_least;
    double like_most = 0;
    for (const size_t step : alike) {
      if (range > 0) like_most += (measure(steps[step]) - of_least) / range;
    }
    const double like_least = static_cast<double>(alike.size()) - like_most;
    typical.push_back({.groups = steps[*least], .count = like_least});
    if (like_most > 0) typical.push_back({.groups = steps[*most], .count = like_most});
  }
  return typical;
}

}  // namespace

std::vector<TypicalStep> PrefillSteps(const std::vector<RequestLengths>& sequences,
                                      const strategy::Roles& roles, int step_tokens) {
  std::vector<std::vector<std::vector<SequenceRows>>> by_group;
  for (const std::vector<int>& prompts : PromptsByGroup(sequences, roles)) {
    by_group.push_back(CutPrompts(prompts, roles, step_tokens));
  }
  return StandFor(JoinGroups(by_group), RowsByGroup, KeysBefore);
}

std::vector<TypicalStep> EncoderSteps(const std::vector<RequestLengths>& sequences,
                                      const strategy::Roles& roles, int step_tokens) {
  std::vector<std::vector<std::vector<SequenceRows>>> by_group;
  for (const std::vector<int>& inputs : PromptsByGroup(sequences, roles)) {
    by_group.push_back(CutInputs(inputs, step_tokens));
  }
  const auto inputs_by_group = [](const StepSequences& groups) {
    std::vector<int64_t> counts;
    for (const auto& group : groups) counts.push_back(std::ssize(group));
    return counts;
  };
  std::vector<TypicalStep> steps =
      StandFor(JoinGroups(by_group), inputs_by_group,
               [](const StepSequences& groups) { return static_cast<double>(NumTokens(groups)); });
  for (TypicalStep& step : steps) {
    step.inputs = std::move(step.groups);
    step.groups = FirstTokens(step.inputs);
  }
  return steps;
}

StepSequences DecodeStep(int batch, int context, int prompt_tokens, const strategy::Roles& roles) {
  StepSequences groups(static_cast<size_t>(roles.num_groups()));
  for (int i = 0; i < batch; ++i) {
    groups[i % roles.num_groups()].push_back({.first_position = context,
                                              .num_tokens = 1,
                                              .num_wanted = 1,
                                              .is_expanded = Expands(roles, prompt_tokens),
                                              .prompt_length = prompt_tokens});
  }
  return groups;
}

std::vector<TypicalStep> PrefillStepsOf(const model::ModelSpec& spec,
                                        const std::vector<RequestLengths>& sequences,
                                        const strategy::Roles& roles, int step_tokens) {
  return spec.has_encoder() ? EncoderSteps(sequences, roles, step_tokens)
                            : PrefillSteps(sequences, roles, step_tokens);
}

StepSequences DecodeStepOf(const model::ModelSpec& spec, const Workload& workload, int batch,
                           const strategy::Roles& roles) {
  return DecodeStepOf(spec, static_cast<int>(workload.mean_prompt_tokens()),
                      std::max(1, static_cast<int>(workload.mean_context())), batch, roles);
}

StepSequences DecodeStepOf(const model::ModelSpec& spec, int prompt_tokens, int context, int batch,
                           const strategy::Roles& roles) {
  if (!spec.has_encoder()) return DecodeStep(batch, context, prompt_tokens, roles);
  // The prompt is the encoder's: behind the decoder's token is the answer so far.
  StepSequences groups = DecodeStep(batch, std::max(1, context - prompt_tokens), 1, roles);
  for (auto& group : groups) {
    for (SequenceRows& rows : group) rows.input_length = prompt_tokens;
  }
  return groups;
}

}  // namespace convene::planner
