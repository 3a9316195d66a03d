// The solver of FinDEP (Pan et al., 2025, Algorithm 1): how many sequences a micro-batch of a step
// with disaggregated experts has, how many micro-batches and chunks there are, and in which order
// attention and shared experts run. Its input are lines (disaggregated_pipeline.h); which ranks do
// what is disaggregated_roles.h.
#pragma once

#include <optional>
#include <vector>

#include "planner/disaggregated_pipeline.h"
#include "strategy/step.h"

namespace convene::planner {

struct DisaggregatedQuestion {
  DisaggregatedLines lines = {};
  int attention_ranks = 1;
  // Of each attention rank: sequences that fit its memory, and no more than have arrived.
  int max_sequences = 1;
  double rows_per_sequence = 1;  // tokens of each in the step
  int most_micro_batches = strategy::kMostMicroBatches;
  int most_chunks = strategy::kMostChunks;
  // Asked for, of ProposeStep alone: no other number is tried.
  std::optional<int> micro_batches = {};
  std::optional<int> chunks = {};
};

struct DisaggregatedChoice {
  DisaggregatedPipeline pipeline = {};
  double sequences = 0;        // m_a: of a micro-batch on each attention rank
  double seconds = 0;          // of the layers with experts
  double rows_per_second = 0;  // of all attention ranks together
};

// Tokens that an expert has in each chunk (m_e): attention ranks x m_a x rows x top-k over chunks
// and experts.
double RowsOfExpert(const DisaggregatedQuestion& question, const DisaggregatedChoice& choice,
                    int top_k, int num_experts);

// The paper's walk. Rows per second rise with m_a and with r1 (Theorems 1 to 3), so only the pairs
// count of which neither can grow: m_a goes down from the most, r1 is the largest that fits, and a
// pair with the r1 of the one before is left out. For each order r2 is found by a convex search:
// the time is convex between the places where another of A2E, experts and E2A becomes the longest
// (the paper's Theorem 4 overlooks these), so each stretch is searched by halving. The best of each
// order is what RunLanes says. Precondition: all that question holds is at least 1.
DisaggregatedChoice SolveDisaggregated(const DisaggregatedQuestion& question);

// What the walk meets: of each pair of m_a and r1 the best r2 and order, the most rows per second
// first. For those who price these few by more than lines. Precondition as SolveDisaggregated's.
std::vector<DisaggregatedChoice> ProposeDisaggregated(const DisaggregatedQuestion& question);

// Baselines. PPPipe (MegaScale-Infer): r1 as it is best, no chunks, the shared expert part of
// attention. Naive: no pipelining at all.
DisaggregatedChoice SolvePingPong(const DisaggregatedQuestion& question);
DisaggregatedChoice SolveNaive(const DisaggregatedQuestion& question);

// All m_a, r1, r2 and orders by RunLanes; for tests and for reporting the gap.
DisaggregatedChoice SolveByBruteForce(const DisaggregatedQuestion& question);

// Of a step that has arrived, all of which is computed: `rows` of each attention rank go through in
// r1 micro-batches of as many rows. The fewest seconds by closed form, which takes microseconds; of
// the question's max_sequences nothing is used. The same question gives the same answer, bit by
// bit, on every machine: nothing but sums, products, quotients and comparisons is in it.
DisaggregatedChoice SolveStep(const DisaggregatedQuestion& question, double rows);

// The best r2 and order of such a step for each r1, the fewest seconds first. A step of fewer rows
// than the micro-batches that were asked for stays whole, as the runtime has it.
std::vector<DisaggregatedChoice> ProposeStep(const DisaggregatedQuestion& question, double rows);

// The best r2 for `pipeline` with so many rows in a micro-batch, by closed form. Chunks have at
// least one row.
int BestChunks(const DisaggregatedLines& lines, DisaggregatedPipeline pipeline, double rows,
               int most_chunks);

}  // namespace convene::planner
