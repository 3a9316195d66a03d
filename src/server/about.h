// What the server says of itself: whether it is there, its model, its metrics, its plan, its steps,
// and the page that shows them. Requests for text are not here.
#pragma once

#include <cstddef>
#include <string>
#include <variant>

#include "openai/api_error.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/prepare.h"
#include "server/routes.h"
#include "server/step_watcher.h"

namespace convene::server {

inline constexpr int kRetryAfterS = 1;

// Why there is no answer yet, or no more, or not now.
openai::ApiError NotLoaded();
openai::ApiError ShuttingDown();
openai::ApiError RankLost();
openai::ApiError QueueFull(int max_queue);
openai::ApiError BodiesFull(size_t max_bytes);  // of those that wait to be read

struct ServerState {
  const std::string& model_name;
  const ServedModel* model = nullptr;  // null: it is being loaded
  const Metrics& metrics;
  const StepWatcher& watcher;
  int num_queued = 0;  // choices that the engine has not taken
  bool is_draining = false;
  std::string asked_model = {};  // by the path of kModel
};

// To GET. Precondition: the route is no POST's.
std::variant<Response, openai::ApiError> AnswerAbout(Route route, const ServerState& server);

}  // namespace convene::server
