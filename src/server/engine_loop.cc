#include "server/engine_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace convene::server {
namespace {

Error DeadlinePassed() {
  return Unavailable(
      "the request took longer than the server allows (--request-timeout), and was ended");
}

}  // namespace

EngineLoop::EngineLoop(engine::Engine& engine, JobQueue& queue, Metrics& metrics, int max_sequences,
                       EventSink sink)
    : engine_(engine),
      queue_(queue),
      metrics_(metrics),
      max_sequences_(max_sequences),
      sink_(std::move(sink)) {}

int64_t EngineLoop::Run() {
  const Error shut_down =
      Unavailable("the server shuts down, and the request was ended before its answer was");
  int64_t num_aborted = 0;
  for (;;) {
    const Work work = TakeWork();
    EndExpired();
    for (const Job& job : work.aborted) {
      num_aborted += std::ssize(job.requests);
      FailAll(job, shut_down);
    }
    if (work.is_aborted) {
      while (!taken_.empty()) {
        const auto& [id, taken] = *taken_.begin();
        num_aborted += taken.num_choices - taken.num_ended;
        EndJob(id, shut_down);
      }
    }
    if (engine_.num_requests() > 0) Step();
    if (!events_.empty()) sink_(std::exchange(events_, {}));
    if (engine_.num_requests() == 0) {
      Measure(0);
      if (work.is_closed) return num_aborted;
    }
  }
}

Work EngineLoop::TakeWork() {
  const EngineRules rules = {
      .has_room = [&](const engine::Request& request) { return engine_.HasRoomFor(request); },
      .may_overtake =
          [&](const engine::Request& request) { return engine_.IsReadBesideLong(request); }};
  for (;;) {
    const int room = max_sequences_ - engine_.num_requests();
    const bool is_idle = engine_.num_requests() == 0 && events_.empty();
    Work work = queue_.Take(room, is_idle, rules);
    for (const JobId id : work.cancelled) Forget(id);
    for (const Job& job : work.expired) FailAll(job, DeadlinePassed());
    if (!work.choice) return work;
    Submit(*std::move(work.choice));
  }
}

void EngineLoop::Step() {
  if (replanner_ != nullptr) {
    if (const std::optional<NewPlan> plan = replanner_->TakeNew()) {
      plan->use();
      announce_(*plan);
    }
  }
  const int num_running = engine_.num_requests() - engine_.num_waiting();
  const Clock::time_point start = Clock::now();
  std::vector<engine::Update> updates = engine_.Step();
  const std::chrono::duration<double> elapsed = Clock::now() - start;
  if (replanner_ != nullptr) {
    const auto num_ended = std::ranges::count_if(
        updates, [](const engine::Update& update) { return update.finish || update.error; });
    const auto num_reports = std::ranges::count_if(
        updates, [](const engine::Update& update) { return update.progress.has_value(); });
    replanner_->AddStep(num_running, std::ssize(updates) - num_reports, num_ended);
  }
  TakeUpdates(std::move(updates));
  Measure(elapsed.count());
}

void EngineLoop::Submit(JobChoice choice) {
  Taken& taken = taken_[choice.job];
  taken.client = std::move(choice.client);
  taken.deadline = choice.deadline;
  taken.num_choices = choice.num_choices;
  taken.is_submitted.resize(choice.num_choices);
  taken.is_submitted[choice.idx] = true;
  if (replanner_ != nullptr) replanner_->AddPrompt(std::ssize(choice.request.prompt));
  const Result<engine::RequestId> submitted = engine_.Submit(std::move(choice.request));
  if (!submitted) {
    ++taken.num_ended;
    Fail(choice.job, choice.idx, submitted.error());
    queue_.PromptComputed(choice.job, choice.idx);
    return ForgetEnded(choice.job);
  }
  taken.running.push_back(*submitted);
  running_[*submitted] = {.job = choice.job, .choice_idx = choice.idx};
}

void EngineLoop::FailAll(const Job& job, const Error& error) {
  for (int i = 0; i < std::ssize(job.requests); ++i) Fail(job.id, i, error);
}

void EngineLoop::Fail(JobId id, int choice_idx, const Error& error) {
  JobEvent event = {.job = id, .choice_idx = choice_idx, .when = Clock::now()};
  event.update.error = error;
  events_.push_back(std::move(event));
}

// With an error for each choice that has not ended.
void EngineLoop::EndJob(JobId id, const Error& error) {
  const Taken& taken = taken_.at(id);
  for (const engine::RequestId request : taken.running) {
    const auto found = running_.find(request);
    if (found != running_.end()) Fail(id, found->second.choice_idx, error);
  }
  for (int i = 0; i < taken.num_choices; ++i) {
    if (!taken.is_submitted[i]) Fail(id, i, error);
  }
  Forget(id);
}

// Whatever still runs of it ends without an event.
void EngineLoop::Forget(JobId id) {
  const auto found = taken_.find(id);
  if (found == taken_.end()) return;
  for (const engine::RequestId request : found->second.running) {
    if (running_.erase(request) > 0) engine_.Cancel(request);
  }
  queue_.Finish(id, found->second.client);
  taken_.erase(found);
}

void EngineLoop::EndExpired() {
  const Clock::time_point now = Clock::now();
  std::vector<JobId> expired;
  for (const auto& [id, taken] : taken_) {
    if (taken.deadline && *taken.deadline <= now) expired.push_back(id);
  }
  for (const JobId id : expired) EndJob(id, DeadlinePassed());
}

void EngineLoop::TakeUpdates(std::vector<engine::Update> updates) {
  const Clock::time_point now = Clock::now();
  std::vector<JobId> ended;
  std::map<std::string, int64_t> num_tokens;  // of each client
  for (engine::Update& update : updates) {
    const auto found = running_.find(update.request);
    if (found == running_.end()) continue;
    Running& running = found->second;
    const JobId job = running.job;
    const bool is_last = update.finish || update.error;
    const bool has_token = !update.progress;
    if (is_last || (has_token && !running.has_begun)) {
      queue_.PromptComputed(job, running.choice_idx);
    }
    // The prompt and the first token were counted when the choice was taken.
    if (has_token) {
      num_tokens[taken_.at(job).client] += running.has_begun ? 1 : -update.num_reused_tokens;
    }
    events_.push_back({.job = job,
                       .choice_idx = running.choice_idx,
                       .update = std::move(update),
                       .when = now,
                       .is_first = has_token && !running.has_begun});
    if (has_token) running.has_begun = true;
    if (!is_last) continue;
    running_.erase(found);
    ended.push_back(job);
  }
  for (const auto& [client, count] : num_tokens) queue_.Charge(client, count);
  for (const JobId job : ended) {
    const auto found = taken_.find(job);
    if (found == taken_.end()) continue;
    ++found->second.num_ended;
    ForgetEnded(job);
  }
}

void EngineLoop::ForgetEnded(JobId id) {
  const auto found = taken_.find(id);
  if (found != taken_.end() && found->second.num_ended == found->second.num_choices) Forget(id);
}

void EngineLoop::Measure(double step_s) {
  EngineState state;
  state.num_waiting = engine_.num_waiting();
  state.num_running = engine_.num_requests() - state.num_waiting;
  state.num_kv_blocks = engine_.num_kv_blocks();
  state.num_held_kv_blocks = engine_.num_held_kv_blocks();
  state.num_preemptions = engine_.num_preemptions();
  if (const auto pages = engine_.page_statistics()) {
    state.pages = {
        .num_used = pages->num_used, .num_read = pages->num_read, .read_bytes = pages->read_bytes};
  }
  if (step_s > 0) {
    state.step_s = step_s;
    state.step_tokens = engine_.step_statistics().tokens;
  }
  metrics_.AfterStep(state);
}

}  // namespace convene::server
