// The thread that owns the engine: takes jobs from the queue, runs steps, gives back what they did.
// It alone calls the engine; HTTP is not here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/job.h"
#include "server/job_queue.h"
#include "server/metrics.h"
#include "server/replanner.h"

namespace convene::server {

class EngineLoop {
 public:
  // Keeps references. `max_sequences`: choices that run at the same time.
  EngineLoop(engine::Engine& engine, JobQueue& queue, Metrics& metrics, int max_sequences,
             EventSink sink);

  // Has `replanner`, which must outlive it, look at the load, and uses the plans that it finds;
  // `announce` is called with each. Before Run.
  void ReplanWith(Replanner& replanner, std::function<void(const NewPlan&)> announce) {
    replanner_ = &replanner;
    announce_ = std::move(announce);
  }

  // Until the queue is closed and all jobs have ended. Returns how many choices were ended because
  // the queue was aborted. Each choice's last event has a finish or an error, unless its client
  // went away.
  int64_t Run();

 private:
  struct Running {
    JobId job;
    int choice_idx;
    bool has_begun = false;
  };
  struct Taken {
    std::string client;
    std::optional<Clock::time_point> deadline;
    std::vector<engine::RequestId> running;
    int num_choices = 0;
    std::vector<bool> is_submitted;  // by choice
    int num_ended = 0;
  };

  // Submits what there is room for, and says what else is to be done.
  Work TakeWork();
  void Submit(JobChoice choice);
  void FailAll(const Job& job, const Error& error);
  void Fail(JobId id, int choice_idx, const Error& error);
  void EndJob(JobId id, const Error& error);
  void Forget(JobId id);
  void EndExpired();
  void Step();
  void TakeUpdates(std::vector<engine::Update> updates);
  void ForgetEnded(JobId id);
  void Measure(double step_s);

  engine::Engine& engine_;
  JobQueue& queue_;
  Metrics& metrics_;
  int max_sequences_;
  EventSink sink_;
  Replanner* replanner_ = nullptr;  // null: the plan stays
  std::function<void(const NewPlan&)> announce_ = {};
  std::map<engine::RequestId, Running> running_;
  std::map<JobId, Taken> taken_;
  std::vector<JobEvent> events_;  // since the last call of sink_
};

}  // namespace convene::server
