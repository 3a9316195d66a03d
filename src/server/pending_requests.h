// The requests that were accepted, for text or tokens, from their arrival to their end: their
// bodies are read on threads of their own, text becomes a job of the queue, and what the engine
// does for it goes to the request's exchange (exchange.h). Who may ask, and when the server starts
// and ends, is server.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "openai/api_error.h"
#include "server/access.h"
#include "server/exchange.h"
#include "server/http.h"
#include "server/http_server.h"
#include "server/job.h"
#include "server/job_queue.h"
#include "server/metrics.h"
#include "server/prepare.h"
#include "server/preparer.h"
#include "server/request_log.h"
#include "server/response_writer.h"

namespace convene::server {

// From its arrival to its end.
struct PendingRequest {
  RequestHead head;
  bool is_for_text = false;
  std::string client;
  Clock::time_point arrival;
  std::shared_ptr<Responder> responder;
  std::string prompt_text = {};
  std::unique_ptr<Exchange> exchange = {};  // of one for text, once it is prepared
};

struct PendingOptions {
  int max_queue = 0;                        // choices that wait for the engine
  std::chrono::seconds request_timeout{0};  // 0: none
  bool has_several_keys = false;
  bool logs_prompts = false;
  size_t max_body_bytes = 0;
};

// All members but those named otherwise are called on the HTTP server's thread.
class PendingRequests {
 public:
  // Keeps references to all but `options`.
  PendingRequests(const PendingOptions& options, const Access& access,
                  const ResponseWriter& responses, const RequestLog& log, JobQueue& queue,
                  Metrics& metrics);
  PendingRequests(const PendingRequests&) = delete;
  PendingRequests& operator=(const PendingRequests&) = delete;

  // Starts the threads that read bodies; on any thread, before `http`, which is kept, runs. Error:
  // the system refuses one.
  Status Start(HttpServer& http);
  // Bodies are read no more, and what waits is dropped; on any thread.
  void StopReading() { preparer_.Stop(); }
  // What is left when the HTTP server's thread has ended. Who ends it finds nothing here.
  std::map<JobId, PendingRequest> TakeAll() { return std::exchange(pending_, {}); }

  // The model that answers; before any request is handed over.
  void Use(const ServedModel& model) { model_ = &model; }

  // Each leads to one response. Of generation: what the engine says of the request's job comes
  // through TakeEvents.
  void HandleTokens(HttpRequest request, bool is_tokenize, std::shared_ptr<Responder> responder);
  void HandleGeneration(HttpRequest request, Api api, std::shared_ptr<Responder> responder);
  void TakeEvents(std::vector<JobEvent> events);

  // No more will come: the queue is closed once no request can become another job.
  void Drain();
  // Ends all with the error, whatever the engine is at.
  void EndAll(const openai::ApiError& error);
  // Those that the engine does not know of; returns how many they were.
  int64_t RefuseUnprepared(const openai::ApiError& error);

  size_t size() const { return pending_.size(); }

 private:
  size_t MaxPreparedBytes() const { return Preparer::kLargestBodies * options_.max_body_bytes; }
  JobId Accept(const RequestHead& head, bool is_for_text, std::shared_ptr<Responder> responder);
  // Nothing: the client has gone, or was told that the server ends.
  std::optional<PendingRequest> Take(JobId id);
  // Has `read` called on a thread of the preparer's, or refuses the request.
  void Prepare(JobId id, std::string body, std::function<void(const std::string& body)> read);
  void TakePrepared(JobId id, std::variant<PreparedRequest, openai::ApiError> prepared);
  // One that is not prepared; and one that is, or has gone, with an error that the engine does not
  // know of.
  void Refuse(JobId id, const openai::ApiError& error);
  void End(JobId id, const openai::ApiError& error);
  void ClientGone(JobId id);
  void KeepAlive();
  void LogEnd(const PendingRequest& pending);
  void LogGone(const PendingRequest& pending);
  void CloseQueueOncePrepared();

  const PendingOptions options_;
  const Access& access_;
  const ResponseWriter& responses_;
  const RequestLog& log_;
  JobQueue& queue_;   // any thread
  Metrics& metrics_;  // any thread
  HttpServer* http_ = nullptr;
  const ServedModel* model_ = nullptr;
  bool is_draining_ = false;
  uint64_t first_seed_;
  JobId last_job_ = 0;
  std::map<JobId, PendingRequest> pending_;
  Preparer preparer_;
};

}  // namespace convene::server
