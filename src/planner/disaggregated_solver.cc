#include "planner/disaggregated_solver.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"

namespace convene::planner {
namespace {

using strategy::AttentionOrder;

// Without shared experts both are the same.
std::vector<AttentionOrder> OrdersOf(const DisaggregatedLines& lines) {
  if (!lines.has_shared()) return {AttentionOrder::kAsas};
  return {AttentionOrder::kAsas, AttentionOrder::kAass};
}

// Numbers of chunks at which two of a chunk's tasks take as long, in order, and the ends.
std::vector<int> StretchesOf(const DisaggregatedLines& lines, double rows, int most) {
  std::vector<int> ends = {1, most};
  const std::array tasks = {lines.dispatch, lines.experts, lines.combine};
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Line& a = tasks[i];
    const Line& b = tasks[(i + 1) % tasks.size()];
    const double crossing = (b.per_row - a.per_row) * rows / (a.once - b.once);
    if (crossing > 1 && crossing < most) ends.push_back(static_cast<int>(crossing));
  }
  std::sort(ends.begin(), ends.end());
  return ends;
}

// The smallest value of a function that falls and then rises.
template <class Function>
int ConvexMinimum(int low, int high, const Function& function) {
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (function(middle) <= function(middle + 1)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

using SecondsOf = double (*)(const DisaggregatedLines&, const DisaggregatedPipeline&, double rows);

double TimelineSeconds(const DisaggregatedLines& lines, const DisaggregatedPipeline& pipeline,
                       double rows) {
  return RunLanes(lines, pipeline, rows).seconds;
}

DisaggregatedChoice Judge(const DisaggregatedQuestion& question,
                          const DisaggregatedPipeline& pipeline, double sequences,
                          SecondsOf seconds_of = TimelineSeconds) {
  const double rows = sequences * question.rows_per_sequence;
  DisaggregatedChoice choice{.pipeline = pipeline, .sequences = sequences};
  choice.seconds = seconds_of(question.lines, pipeline, rows);
  choice.rows_per_second =
      pipeline.micro_batches * rows * question.attention_ranks / choice.seconds;
  return choice;
}

void Keep(DisaggregatedChoice candidate, DisaggregatedChoice& best) {
  if (candidate.rows_per_second > best.rows_per_second) best = candidate;
}

// The best chunks and order with so many micro-batches of so many sequences.
DisaggregatedChoice BestOf(const DisaggregatedQuestion& question, int micro_batches,
                           double sequences, SecondsOf seconds_of) {
  DisaggregatedChoice best;
  for (const AttentionOrder order : OrdersOf(question.lines)) {
    DisaggregatedPipeline pipeline{.micro_batches = micro_batches, .order = order};
    pipeline.chunks =
        question.chunks.has_value()
            ? *question.chunks
            : BestChunks(question.lines, pipeline, sequences * question.rows_per_sequence,
                         question.most_chunks);
    Keep(Judge(question, pipeline, sequences, seconds_of), best);
  }
  return best;
}

void SortByRate(std::vector<DisaggregatedChoice>& choices) {
  std::stable_sort(choices.begin(), choices.end(),
                   [](const DisaggregatedChoice& a, const DisaggregatedChoice& b) {
                     return a.rows_per_second > b.rows_per_second;
                   });
}

// Calls `visit(m_a, r1)` for the pairs of which neither can grow.
template <class Visit>
void WalkFrontier(const DisaggregatedQuestion& question, const Visit& visit) {
  int last = 0;
  for (int sequences = question.max_sequences; sequences >= 1; --sequences) {
    const int r1 = std::min(question.max_sequences / sequences, question.most_micro_batches);
    if (std::exchange(last, r1) == r1) continue;
    visit(sequences, r1);
  }
}

}  // namespace

double RowsOfExpert(const DisaggregatedQuestion& question, const DisaggregatedChoice& choice,
                    int top_k, int num_experts) {
  return question.attention_ranks * choice.sequences * question.rows_per_sequence * top_k /
         (static_cast<double>(choice.pipeline.chunks) * num_experts);
}

int BestChunks(const DisaggregatedLines& lines, DisaggregatedPipeline pipeline, double rows,
               int most_chunks) {
  const int most = std::clamp(static_cast<int>(rows), 1, most_chunks);
  const auto seconds = [&](int chunks) {
    pipeline.chunks = chunks;
    return ClosedFormSeconds(lines, pipeline, rows);
  };
  const std::vector<int> ends = StretchesOf(lines, rows, most);
  int best = 1;
  double least = seconds(1);
  for (size_t i = 0; i + 1 < ends.size(); ++i) {
    // A crossing lies between two numbers, the second of which begins a stretch.
    const int low = i == 0 ? ends[i] : std::min(ends[i] + 1, ends[i + 1]);
    const int found = ConvexMinimum(low, ends[i + 1], seconds);
    const double there = seconds(found);
    if (there < least) {
      least = there;
      best = found;
    }
  }
  return best;
}

std::vector<DisaggregatedChoice> ProposeDisaggregated(const DisaggregatedQuestion& question) {
  CHECK(question.max_sequences >= 1 && question.attention_ranks >= 1 &&
        question.rows_per_sequence >= 1);
  std::vector<DisaggregatedChoice> choices;
  WalkFrontier(question, [&](int sequences, int micro_batches) {
    choices.push_back(BestOf(question, micro_batches, sequences, TimelineSeconds));
  });
  SortByRate(choices);
  return choices;
}

DisaggregatedChoice SolveDisaggregated(const DisaggregatedQuestion& question) {
  return ProposeDisaggregated(question).front();
}

DisaggregatedChoice SolvePingPong(const DisaggregatedQuestion& question) {
  DisaggregatedChoice best;
  WalkFrontier(question, [&](int sequences, int micro_batches) {
    const DisaggregatedPipeline pipeline{.micro_batches = micro_batches,
                                         .dispatch_after_shared = true};
    Keep(Judge(question, pipeline, sequences), best);
  });
  return best;
}

DisaggregatedChoice SolveNaive(const DisaggregatedQuestion& question) {
  return Judge(question, {.dispatch_after_shared = true}, question.max_sequences);
}

DisaggregatedChoice SolveByBruteForce(const DisaggregatedQuestion& question) {
  DisaggregatedChoice best;
  for (int sequences = 1; sequences <= question.max_sequences; ++sequences) {
    const int most_chunks = std::clamp(static_cast<int>(sequences * question.rows_per_sequence), 1,
                                       question.most_chunks);
    const int most = std::min(question.max_sequences / sequences, question.most_micro_batches);
    for (int r1 = 1; r1 <= most; ++r1) {
      for (int chunks = 1; chunks <= most_chunks; ++chunks) {
        for (const AttentionOrder order : OrdersOf(question.lines)) {
          Keep(Judge(question, {.micro_batches = r1, .chunks = chunks, .order = order}, sequences),
               best);
        }
      }
    }
  }
  return best;
}

std::vector<DisaggregatedChoice> ProposeStep(const DisaggregatedQuestion& question, double rows) {
  int least = 1;
  int most = std::clamp(static_cast<int>(rows), 1, question.most_micro_batches);
  if (question.micro_batches) {
    least = most = rows < *question.micro_batches ? 1 : *question.micro_batches;
  }
  std::vector<DisaggregatedChoice> choices;
  for (int micro_batches = least; micro_batches <= most; ++micro_batches) {
    choices.push_back(BestOf(question, micro_batches,
                             rows / micro_batches / question.rows_per_sequence, ClosedFormSeconds));
  }
  SortByRate(choices);
  return choices;
}

DisaggregatedChoice SolveStep(const DisaggregatedQuestion& question, double rows) {
  return ProposeStep(question, rows).front();
}

}  // namespace convene::planner
