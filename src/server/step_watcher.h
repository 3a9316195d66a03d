// What the server tells of the engine's steps besides their time: how busy lanes were, what ranks
// sent each other, what experts got, and of one step every so often what was predicted of it beside
// what was measured. It changes nothing about steps; those of docs/seeing.md are the same.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "drawing/trace.h"
#include "evaluate/step_watch.h"
#include "runtime/recorded_step.h"
#include "schedule/schedule.h"

namespace convene::server {

class StepWatcher {
 public:
  using Clock = std::chrono::steady_clock;

  StepWatcher() = default;
  ~StepWatcher() { Stop(); }
  StepWatcher(const StepWatcher&) = delete;
  StepWatcher& operator=(const StepWatcher&) = delete;

  // Whose steps they are, as evaluate::StepWatch has it, and the thread that predicts them.
  Status Start(std::string weights, int num_threads, bool int8_kv);
  void Stop();

  // On the engine's thread, before a step: whether it is to be recorded, so that See will get it.
  // Some steps a second are enough for what is told of them, and gathering what ranks know of one
  // takes a part of a millisecond, which small steps would feel.
  bool Wants();
  // On the engine's thread, after each step that was recorded.
  void See(const runtime::RecordedStep& step);

  // Any thread may ask from here on. Metrics as Prometheus reads them.
  void AppendTo(std::string& text, std::string_view labels) const;
  // {"step": ..., "experts": ...} of docs/serving.md; "step" is null before the first one.
  std::string LastStepJson() const;
  // Its first layers as a picture (drawing/gantt.h); empty before the first step.
  std::string LastStepSvg() const;

 private:
  // Of all steps of a kind that were compared.
  struct Compared {
    int64_t num_steps = 0;
    double measured_s = 0;
    double predicted_s = 0;
  };
  using ExpertTokens = std::vector<std::vector<int64_t>>;  // by layer

  void Run();
  void Compare(const runtime::RecordedStep& step);
  void CountExperts(const runtime::RecordedStep& step);
  ExpertTokens RecentExpertTokens() const;

  // The engine thread's alone.
  Clock::time_point last_wanted_ = {};

  // The watching thread's alone.
  evaluate::StepWatch watch_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopped_ = false;
  std::optional<runtime::RecordedStep> latest_;  // that the thread has not looked at yet
  double total_s_ = 0;
  // By rank and lane: seconds in which a task ran.
  std::map<std::pair<int, schedule::LaneKind>, double> busy_s_;
  int64_t sent_bytes_ = 0;
  // Of the time since `window_start_`, and of the time before that.
  std::array<ExpertTokens, 2> expert_tokens_;
  Clock::time_point window_start_ = Clock::now();
  std::map<std::string, Compared, std::less<>> compared_;  // by kind of step
  std::shared_ptr<const drawing::TracedStep> last_;
  std::string last_kind_;
  double last_end_s_ = 0;  // on the monotonic clock

  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace convene::server
