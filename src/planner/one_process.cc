#include "planner/one_process.h"

#include <fmt/format.h>

#include <algorithm>

namespace convene::planner {
namespace {

// So many sequences over all groups in turn.
StepQuestion QuestionOf(const model::ModelSpec& spec, const strategy::StepOptions& options,
                        int count, const strategy::SequenceRows& sequence) {
  StepQuestion question{.spec = spec, .options = options};
  const int num_groups = options.roles.num_groups();
  question.groups.resize(static_cast<size_t>(num_groups));
  for (int i = 0; i < count; ++i) question.groups[i % num_groups].push_back(sequence);
  return question;
}

Result<ComparedStep> Compare(const OneProcessQuestion& question, int count,
                             const strategy::SequenceRows& sequence) {
  const Result<PredictedStep> ranks = PredictStep(
      QuestionOf(question.spec, question.options, count, sequence), MeasuredPricer(question.costs));
  if (!ranks) return ranks.error();
  const Result<PredictedStep> alone =
      PredictStep(QuestionOf(question.spec, {.bytes = question.options.bytes}, count, sequence),
                  MeasuredPricer(question.one_process));
  if (!alone) return alone.error();
  const auto interval = [](const PredictedStep& step, const cost::StepCosts& costs) {
    return cost::IntervalOf(OutlineOf(step), cost::WithUsualErrors(cost::ErrorsOf(costs)));
  };
  return ComparedStep{.ranks = ranks->seconds,
                      .one_process = alone->seconds,
                      .is_surely_faster = interval(*alone, question.one_process).high <
                                          interval(*ranks, question.costs).low};
}

}  // namespace

Result<OneProcess> CompareWithOneProcess(const OneProcessQuestion& question) {
  const int num_groups = question.options.roles.num_groups();
  const Result<ComparedStep> prefill =
      Compare(question, num_groups,
              {.num_tokens = question.prompt_tokens, .prompt_length = question.prompt_tokens});
  if (!prefill) return prefill.error();
  OneProcessQuestion decoding = question;
  // What costs time with few sequences gains nothing there, and steps below a limit are plain.
  decoding.options.pipeline = {};
  const Result<ComparedStep> decode = Compare(
      decoding, std::max(question.num_sequences, 1),
      {.first_position = question.context, .num_tokens = 1, .prompt_length = question.context});
  if (!decode) return decode.error();
  return OneProcess{.prefill = *prefill, .decode = *decode};
}

namespace {

const char* Advice(const OneProcess& compared) {
  if (compared.prefill.is_surely_faster && compared.decode.is_surely_faster) {
    return ": leave mpirun out";
  }
  if (compared.decode.is_surely_faster) return ": where most of it is decoding, leave mpirun out";
  if (compared.prefill.is_surely_faster) return ": where most of it is prompts, leave mpirun out";
  return ", within what errors leave open";
}

}  // namespace

std::string Describe(const OneProcess& compared, const OneProcessQuestion& question) {
  return fmt::format(
      "one process with {} threads would take {:.2f} x the time of a prompt's step and {:.2f} x "
      "that of decoding {} sequence{} (predicted){}",
      question.one_process.num_threads, 1 / compared.prefill.factor(), 1 / compared.decode.factor(),
      question.num_sequences, question.num_sequences == 1 ? "" : "s", Advice(compared));
}

}  // namespace convene::planner
