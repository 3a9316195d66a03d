// The server as a whole: what is at which path, who may ask, how it starts and ends. It listens
// from the beginning, and answers once it has a model.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "runtime/recorded_step.h"
#include "server/http.h"
#include "server/prepare.h"
#include "server/request_log.h"

namespace convene::server {

// The job of several ranks that computes the answers, whose launcher ends this process soon after
// it has sent SIGTERM.
struct RankJob {
  int launcher = 0;                       // its process, which sends the signal
  std::chrono::milliseconds patience{0};  // after which it kills
  std::function<bool()> is_broken = {};   // whether ranks have ended that steps need
  std::function<void()> end = {};         // ends this process with what is known of that
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;
  std::string model_name;
  std::vector<std::string> api_keys = {};      // none: everybody may ask
  std::vector<std::string> cors_origins = {};  // "*": all
  int max_queue = 256;                         // choices that wait for the engine
  std::chrono::seconds request_timeout{0};     // 0: none
  std::chrono::seconds shutdown_timeout{30};
  std::chrono::seconds epoch{60};   // after which the plan is looked at again; 0: never
  std::optional<RankJob> job = {};  // of several ranks, of which this one serves; none: it is alone
  LogLevel log_level = LogLevel::kInfo;
  bool logs_prompts = false;
  HttpLimits limits = {};
};

class Server {
 public:
  // Listens, on a thread of its own. From now on SIGTERM and SIGINT are the server's: before Serve
  // they end the process with status 0, since nothing was accepted; one that has peers, which would
  // wait for it, ends with them once Serve is called. Errors: the address cannot be listened at, no
  // thread can be started.
  static Result<std::unique_ptr<Server>> Start(const ServerOptions& options);
  ~Server();

  // Where it listens, as "http://127.0.0.1:8080".
  std::string url() const;

  // Answers requests with `engine`, whose steps run on the calling thread, until a signal asks for
  // the end and the requests that were accepted have ended. Error: some of them were ended because
  // `shutdown_timeout` had passed; their clients were told.
  Status Serve(engine::Engine& engine, ServedModel model);

  // What /v1/steps/last and the metrics tell of steps: of those that Serve runs on its thread
  // before which WantsStep was true, where the model's `watches_steps` says that this is called.
  bool WantsStep();
  void SeeStep(const runtime::RecordedStep& step);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace convene::server
