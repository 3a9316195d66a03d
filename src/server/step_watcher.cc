#include "server/step_watcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/start_thread.h"
#include "drawing/gantt.h"
#include "drawing/select_layers.h"
#include "drawing/step_figures.h"
#include "server/prometheus.h"

namespace convene::server {
namespace {

using nlohmann::ordered_json;
using runtime::RecordedStep;

// As often as the page looks: predicting takes longer than a small model's step, on a core that the
// engine may want.
constexpr std::chrono::milliseconds kTimeBetweenPredictions{1000};
constexpr std::chrono::milliseconds kTimeBetweenRecords{50};
constexpr std::chrono::seconds kExpertWindow{60};
constexpr int kGanttWidth = 1100;
constexpr size_t kMostDrawnTasks = 500;  // more are thinner than a pixel

std::string KindOf(const RecordedStep& step) {
  if (step.changes_to) return "move";
  if (step.encoder) return "encode";
  return step.num_tokens > step.num_sequences ? "prefill" : "decode";
}

void AddTo(std::vector<std::vector<int64_t>>& sums,
           const std::vector<std::vector<int64_t>>& counts) {
  sums.resize(std::max(sums.size(), counts.size()));
  for (size_t layer = 0; layer < counts.size(); ++layer) {
    sums[layer].resize(std::max(sums[layer].size(), counts[layer].size()));
    for (size_t i = 0; i < counts[layer].size(); ++i) sums[layer][i] += counts[layer][i];
  }
}

// How many tokens the busiest of a layer's experts had, as a multiple of the mean; 0: nobody any.
double BalanceOf(const std::vector<int64_t>& tokens) {
  const int64_t total = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  if (total == 0) return 0;
  return static_cast<double>(std::ranges::max(tokens)) * static_cast<double>(tokens.size()) /
         static_cast<double>(total);
}

double BusySeconds(const schedule::Schedule& schedule, const schedule::Timeline& timeline,
                   const schedule::Lane& lane) {
  double busy = 0;
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    if (schedule.tasks[id].lane == lane) busy += timeline.tasks[id].seconds();
  }
  return busy;
}

// Null where there is no timeline.
ordered_json IdleJson(const schedule::Schedule& schedule, const schedule::Timeline& timeline,
                      const schedule::Lane& lane) {
  const double seconds = timeline.seconds();
  if (timeline.tasks.empty() || seconds <= 0) return nullptr;
  return std::clamp(1 - BusySeconds(schedule, timeline, lane) / seconds, 0.0, 1.0);
}

ordered_json LanesJson(const drawing::TracedStep& step) {
  ordered_json lanes = ordered_json::array();
  for (int rank = 0; rank < step.schedule.num_ranks; ++rank) {
    for (int kind = 0; kind < schedule::kNumLaneKinds; ++kind) {
      const schedule::Lane lane = {rank, static_cast<schedule::LaneKind>(kind)};
      const bool is_used = std::ranges::any_of(step.schedule.tasks,
                                               [&](const auto& task) { return task.lane == lane; });
      if (!is_used) continue;
      lanes.push_back({{"rank", rank},
                       {"lane", Name(lane.kind)},
                       {"idle_share", IdleJson(step.schedule, step.measured, lane)},
                       {"predicted_idle_share", IdleJson(step.schedule, step.predicted, lane)}});
    }
  }
  return lanes;
}

ordered_json StepJson(const drawing::TracedStep& step, const std::string& kind, double age_s) {
  const drawing::StepFigures figures = FiguresOf(step);
  ordered_json json = {{"name", step.name},      {"kind", kind},
                       {"age_s", age_s},         {"measured_s", figures.seconds},
                       {"predicted_s", nullptr}, {"predicted_by", step.predicted_by}};
  if (!step.predicted.tasks.empty()) json["predicted_s"] = figures.predicted_seconds;
  json["wire_bytes"] = static_cast<int64_t>(figures.sent_bytes);
  json["lanes"] = LanesJson(step);
  json["tasks"] = ordered_json::array();
  for (const drawing::SectionFigures& section : figures.sections) {
    ordered_json task = {{"kind", Name(section.kind)},
                         {"measured_s", section.seconds},
                         {"waiting_s", section.waiting_seconds},
                         {"predicted_s", nullptr},
                         {"wire_bytes", static_cast<int64_t>(section.sent_bytes)}};
    if (!step.predicted.tasks.empty()) task["predicted_s"] = section.predicted_seconds;
    json["tasks"].push_back(std::move(task));
  }
  json["expert_tokens"] = step.expert_tokens;
  return json;
}

// With as many of the first layers as a picture can show.
drawing::TracedStep Drawable(const drawing::TracedStep& step) {
  const int num_layers = drawing::NumLayers(step.schedule);
  const size_t num_tasks = step.schedule.tasks.size();
  if (num_tasks <= kMostDrawnTasks || num_layers < 2) return step;
  const auto shown = std::max<int>(
      1, static_cast<int>(static_cast<size_t>(num_layers) * kMostDrawnTasks / num_tasks));
  drawing::TracedStep part = drawing::SelectLayers(step, 0, shown - 1);
  part.name += fmt::format("; the first {} of {} layers", shown, num_layers);
  return part;
}

}  // namespace

Status StepWatcher::Start(std::string weights, int num_threads, bool int8_kv) {
  watch_.SetRun(std::move(weights), num_threads, "", int8_kv);
  watch_.PreferKeptCosts();
  Result<std::jthread> thread = StartThread("the thread that predicts steps", [this] { Run(); });
  if (!thread) return thread.error();
  thread_ = *std::move(thread);
  return {};
}

void StepWatcher::Stop() {
  {
    const std::scoped_lock lock(mutex_);
    is_stopped_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

bool StepWatcher::Wants() {
  const Clock::time_point now = Clock::now();
  if (now - last_wanted_ < kTimeBetweenRecords) return false;
  last_wanted_ = now;
  return true;
}

void StepWatcher::See(const RecordedStep& step) {
  const std::scoped_lock lock(mutex_);
  const schedule::Schedule& schedule = *step.schedule;
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    const schedule::Lane& lane = schedule.tasks[id].lane;
    busy_s_[{lane.rank, lane.kind}] += step.timeline.tasks[id].seconds();
  }
  total_s_ += step.timeline.seconds();
  sent_bytes_ += step.sent_before_bytes;
  for (const int64_t bytes : step.sent_bytes) sent_bytes_ += bytes;
  CountExperts(step);
  latest_ = step;
  changed_.notify_one();
}

void StepWatcher::CountExperts(const RecordedStep& step) {
  const Clock::time_point now = Clock::now();
  if (now - window_start_ >= kExpertWindow) {
    expert_tokens_[1] = std::exchange(expert_tokens_[0], {});
    window_start_ = now;
  }
  AddTo(expert_tokens_[0], step.expert_tokens);
}

StepWatcher::ExpertTokens StepWatcher::RecentExpertTokens() const {
  ExpertTokens tokens = expert_tokens_[1];
  AddTo(tokens, expert_tokens_[0]);
  return tokens;
}

void StepWatcher::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return latest_ || is_stopped_; });
    if (is_stopped_) return;
    const RecordedStep step = *std::exchange(latest_, std::nullopt);
    lock.unlock();
    Compare(step);
    lock.lock();
    changed_.wait_for(lock, kTimeBetweenPredictions, [&] { return is_stopped_; });
  }
}

void StepWatcher::Compare(const RecordedStep& step) {
  watch_.See(step, /*keeps_steps=*/true);
  auto traced = std::make_shared<const drawing::TracedStep>(watch_.TraceOf(step));
  const std::scoped_lock lock(mutex_);
  last_kind_ = KindOf(step);
  last_end_s_ = step.start + step.timeline.seconds();
  last_ = std::move(traced);
  if (last_->predicted.tasks.empty()) return;
  Compared& compared = compared_[last_kind_];
  ++compared.num_steps;
  compared.measured_s += last_->measured.seconds();
  compared.predicted_s += last_->predicted.seconds();
}

void StepWatcher::AppendTo(std::string& text, std::string_view labels) const {
  const std::scoped_lock lock(mutex_);
  const auto of_kinds = [&](std::string_view name, std::string_view help, auto Compared::*member) {
    AppendHead(text, name, help, "counter");
    for (const char* kind : {"prefill", "decode", "encode", "move"}) {
      const auto found = compared_.find(kind);
      if (found == compared_.end() && std::string_view(kind) != "prefill" &&
          std::string_view(kind) != "decode") {
        continue;
      }
      AppendValue(text, name, fmt::format("{},kind=\"{}\"", labels, kind),
                  found == compared_.end() ? Compared().*member : found->second.*member);
    }
  };
  of_kinds("convene:compared_steps_total", "Steps of which a prediction was made beside.",
           &Compared::num_steps);
  of_kinds("convene:compared_step_predicted_seconds_total",
           "Time that was predicted of the steps that were compared.", &Compared::predicted_s);
  of_kinds("convene:compared_step_measured_seconds_total",
           "Time that the steps that were compared took.", &Compared::measured_s);
  AppendNumber(text, "convene:step_tasks_seconds_total",
               "Time of the steps that were recorded from their first task to their last.",
               "counter", labels, total_s_);
  AppendHead(text, "convene:lane_idle_seconds_total",
             "Of that, the time in which no task of the lane ran.", "counter");
  const auto of_lanes = [&](std::string_view name, auto value_of) {
    for (const auto& [lane, busy_s] : busy_s_) {
      AppendValue(text, name,
                  fmt::format("{},rank=\"{}\",lane=\"{}\"", labels, lane.first, Name(lane.second)),
                  value_of(std::max(0.0, total_s_ - busy_s)));
    }
  };
  of_lanes("convene:lane_idle_seconds_total", [](double idle_s) { return idle_s; });
  AppendHead(text, "convene:lane_idle_ratio", "The same as a share, since the server began.",
             "gauge");
  of_lanes("convene:lane_idle_ratio",
           [&](double idle_s) { return total_s_ > 0 ? idle_s / total_s_ : 0.0; });
  AppendNumber(text, "convene:wire_bytes_total", "Bytes that ranks sent each other.", "counter",
               labels, sent_bytes_);
  AppendHead(
      text, "convene:expert_balance_ratio",
      "Tokens of a layer's busiest expert over the mean of its experts, in the last minutes.",
      "gauge");
  const ExpertTokens tokens = RecentExpertTokens();
  for (size_t layer = 0; layer < tokens.size(); ++layer) {
    if (tokens[layer].empty()) continue;  // a layer without experts
    AppendValue(text, "convene:expert_balance_ratio", fmt::format("{},layer=\"{}\"", labels, layer),
                BalanceOf(tokens[layer]));
  }
}

std::string StepWatcher::LastStepJson() const {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<const drawing::TracedStep> last = last_;
  const std::string kind = last_kind_;
  const std::chrono::duration<double> now = Clock::now().time_since_epoch();
  const double age_s = std::max(0.0, now.count() - last_end_s_);
  ordered_json json = {{"step", nullptr}, {"experts", {{"tokens", RecentExpertTokens()}}}};
  lock.unlock();
  if (last) json["step"] = StepJson(*last, kind, age_s);
  return json.dump() + "\n";
}

std::string StepWatcher::LastStepSvg() const {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<const drawing::TracedStep> last = last_;
  lock.unlock();
  return last ? drawing::GanttSvg(Drawable(*last), kGanttWidth) : "";
}

}  // namespace convene::server
