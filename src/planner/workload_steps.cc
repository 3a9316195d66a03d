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

std::vector<int64_t> RowsByGroup(const StepSequences& groups) {
  std::vector<int64_t> rows;
  for (const auto& group : groups) {
    rows.push_back(0);
    for (const SequenceRows& sequence : group) rows.back() += sequence.num_tokens;
  }
  return rows;
}

}  // namespace

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

std::vector<TypicalStep> PrefillSteps(const std::vector<RequestLengths>& sequences,
                                      const strategy::Roles& roles, int step_tokens) {
  const auto num_groups = static_cast<size_t>(roles.num_groups());
  std::vector<std::vector<int>> prompts(num_groups);
  std::vector<int64_t> tokens(num_groups, 0);
  for (const RequestLengths& sequence : sequences) {
    const size_t group =
        std::min_element(tokens.begin(), tokens.end()) - tokens.begin();  // of several the first
    prompts[group].push_back(sequence.prompt_tokens);
    tokens[group] += sequence.prompt_tokens;
  }
  std::vector<StepSequences> steps;
  for (size_t group = 0; group < num_groups; ++group) {
    const auto cut = CutPrompts(prompts[group], roles, step_tokens);
    if (cut.size() > steps.size()) steps.resize(cut.size(), StepSequences(num_groups));
    for (size_t step = 0; step < cut.size(); ++step) steps[step][group] = cut[step];
  }
  std::map<std::vector<int64_t>, std::vector<size_t>> by_rows;
  for (size_t step = 0; step < steps.size(); ++step)
    by_rows[RowsByGroup(steps[step])].push_back(step);
  std::vector<TypicalStep> typical;
  for (auto& [rows, alike] : by_rows) {
    const auto fewer = [&](size_t a, size_t b) {
      return KeysBefore(steps[a]) < KeysBefore(steps[b]);
    };
    const auto [fewest, most] = std::minmax_element(alike.begin(), alike.end(), fewer);
    const double least_keys = KeysBefore(steps[*fewest]);
    const double range = KeysBefore(steps[*most]) - least_keys;
    double of_most = 0;
    for (const size_t step : alike) {
      if (range > 0) of_most += (KeysBefore(steps[step]) - least_keys) / range;
    }
    const double of_fewest = static_cast<double>(alike.size()) - of_most;
    typical.push_back({.groups = steps[*fewest], .count = of_fewest});
    if (of_most > 0) typical.push_back({.groups = steps[*most], .count = of_most});
  }
  return typical;
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

}  // namespace convene::planner
