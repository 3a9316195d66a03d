// What it costs to execute and record a schedule: nanoseconds per task of the executor when tasks
// do nothing, and those of the two looks at the clock that recording a task takes.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "hardware/affinity.h"
#include "model/family.h"
#include "runtime/executor.h"
#include "strategy/step.h"

namespace convene {
namespace {

using schedule::LaneKind;
using schedule::Schedule;
using schedule::Task;
using schedule::TaskId;
using schedule::TaskKind;
using Clock = std::chrono::steady_clock;

constexpr int kRepeats = 101;
constexpr int kTasks = 1000;

class NoWork : public runtime::LaneWork {
 public:
  void Compute(const Task&) override {}
  std::unique_ptr<comm::Exchange> Start(const Task&) override { return nullptr; }
  Status RunOnLane(const Task&, hardware::ThreadPool*) override { return {}; }
};

// Median nanoseconds of `run`.
template <typename Function>
double Nanoseconds(const Function& run) {
  std::vector<double> all;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const Clock::time_point start = Clock::now();
    run();
    all.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count());
  }
  std::nth_element(all.begin(), all.begin() + kRepeats / 2, all.end());
  return all[kRepeats / 2];
}

double OfTwoClockReads() {
  Clock::duration sum = {};
  const double nanoseconds = Nanoseconds([&] {
    for (int i = 0; i < kTasks; ++i) {
      const Clock::time_point start = Clock::now();
      sum += Clock::now() - start;
    }
  });
  CHECK(sum.count() >= 0);  // used
  return nanoseconds / kTasks;
}

void Measure(std::string_view name, const Schedule& schedule) {
  const Result<std::vector<int>> cpus = hardware::CurrentAffinity();
  CHECK(cpus.ok() && Validate(schedule).ok());
  const runtime::RankProgram program(schedule, 0);
  runtime::Executor executor(/*background=*/true, {*cpus});
  NoWork work;
  const double nanoseconds = Nanoseconds([&] { CHECK(executor.Run(program, work).ok()); });
  const auto num_tasks = std::count_if(schedule.tasks.begin(), schedule.tasks.end(),
                                       [](const Task& task) { return task.lane.rank == 0; });
  fmt::print("{:44} {:5} tasks {:9.1f} us {:8.1f} ns/task\n", name, num_tasks, nanoseconds / 1e3,
             nanoseconds / static_cast<double>(num_tasks));
}

TaskId Add(Schedule& schedule, LaneKind lane, std::vector<TaskId> after) {
  schedule.tasks.push_back(
      {.kind = lane == LaneKind::kCompute ? TaskKind::kAttention : TaskKind::kLoadPage,
       .lane = {0, lane},
       .after = std::move(after)});
  return static_cast<TaskId>(schedule.tasks.size()) - 1;
}

Schedule ComputeOnly() {
  Schedule schedule;
  TaskId last = Add(schedule, LaneKind::kCompute, {});
  for (int i = 1; i < kTasks; ++i) last = Add(schedule, LaneKind::kCompute, {last});
  return schedule;
}

// One computation of `every` waits for the load before it, and that one for the computation before;
// 0: they have nothing to do with each other.
Schedule ComputeAndLoad(int every) {
  Schedule schedule;
  TaskId last = -1;
  for (int i = 0; i < kTasks / 2; ++i) {
    const bool meets = every > 0 && i % every == 0;
    const TaskId load = Add(schedule, LaneKind::kLoad,
                            meets && last >= 0 ? std::vector{last} : std::vector<TaskId>());
    last = Add(schedule, LaneKind::kCompute, meets ? std::vector{load} : std::vector<TaskId>());
  }
  return schedule;
}

// OLMoE 1B-7B.
Schedule OlmoeStep(const strategy::StepOptions& options) {
  const Result<model::ModelSpec> spec =
      model::ModelSpecFromConfig({{"model_type", "olmoe"},
                                  {"hidden_size", 2048},
                                  {"intermediate_size", 1024},
                                  {"num_hidden_layers", 16},
                                  {"num_attention_heads", 16},
                                  {"num_key_value_heads", 16},
                                  {"num_experts", 64},
                                  {"num_experts_per_tok", 8},
                                  {"norm_topk_prob", false},
                                  {"hidden_act", "silu"},
                                  {"max_position_embeddings", 4096},
                                  {"rms_norm_eps", 1e-5},
                                  {"rope_theta", 10000.0},
                                  {"tie_word_embeddings", false},
                                  {"vocab_size", 50304}});
  CHECK(spec.ok(), "{}", spec.error().message);
  return strategy::BuildStep(*spec, options);
}

}  // namespace
}  // namespace convene

int main() {
  using namespace convene;
  fmt::print("{:44} {:32.1f} ns\n", "two looks at the clock", OfTwoClockReads());
  Measure("compute", ComputeOnly());
  Measure("compute and load, independent", ComputeAndLoad(0));
  Measure("compute and load, 1 of 10 waits", ComputeAndLoad(10));
  Measure("compute and load, each waits for the other", ComputeAndLoad(1));
  Measure("a step of OLMoE's shape", OlmoeStep({}));
  Measure("of a rank of two, 16 chunks",
          OlmoeStep({.roles = strategy::Layout{.attention_dp = 2, .expert_ep = 2},
                     .pipeline = {.chunks = 16, .cut = strategy::ChunkCut::kExperts}}));
}
