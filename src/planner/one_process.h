// Whether one process with the threads of all ranks of a host would be faster than the ranks are:
// ranks on one host read attention's weights and the head once each, and wait for each other.
// Pure.
#pragma once

#include <string>

#include "planner/predict_step.h"

namespace convene::planner {

struct OneProcessQuestion {
  const model::ModelSpec& spec;
  strategy::StepOptions options = {};  // of the ranks
  const cost::StepCosts& costs;        // likewise
  const cost::StepCosts& one_process;  // of one process with all their threads
  int prompt_tokens = 512;             // of each group of ranks
  int num_sequences = 1;               // that decode together
  int context = 512;                   // tokens before each of these
};

// Seconds of a step on the ranks, and in one process.
struct ComparedStep {
  double ranks = 0;
  double one_process = 0;
  // Their intervals do not meet, and that of one process is the shorter one. What nobody measured
  // has the usual errors.
  bool is_surely_faster = false;

  double factor() const { return ranks / one_process; }
};

struct OneProcess {
  ComparedStep prefill;
  ComparedStep decode;

  bool is_worth_a_word() const { return prefill.is_surely_faster || decode.is_surely_faster; }
};

// Error: a kind of task whose cost was not measured.
Result<OneProcess> CompareWithOneProcess(const OneProcessQuestion& question);

// "one process with 2 threads would take 0.95 x the time of a prompt's step and 0.55 x that of
// decoding 2 sequences (predicted): leave mpirun out"
std::string Describe(const OneProcess& compared, const OneProcessQuestion& question);

}  // namespace convene::planner
