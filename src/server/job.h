// A request for text on its way through the engine, and what comes back of it. HTTP and JSON are
// not here.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"

namespace convene::server {

using Clock = std::chrono::steady_clock;
using JobId = uint64_t;

// All choices of one HTTP request.
struct Job {
  JobId id = 0;
  std::vector<engine::Request> requests = {};  // of each choice; not empty
  std::string client = {};                     // whose share of the engine it takes: its API key
  int64_t priority = 0;                        // lower ones first
  Clock::time_point arrival = Clock::now();
  std::optional<Clock::time_point> deadline = {};
};

// One choice of a job, on its way into the engine.
struct JobChoice {
  JobId job = 0;
  int idx = 0;
  int num_choices = 1;  // of the job
  engine::Request request = {};
  std::string client = {};
  std::optional<Clock::time_point> deadline = {};
};

// What one step, or the end of the server, did for one choice.
struct JobEvent {
  JobId job = 0;
  int choice_idx = 0;
  engine::Update update = {};
  Clock::time_point when = {};  // the end of the step
  bool is_first = false;        // of the choice's tokens
};

// Called by the engine's thread after every step, with the events in their order.
using EventSink = std::function<void(std::vector<JobEvent> events)>;

}  // namespace convene::server
