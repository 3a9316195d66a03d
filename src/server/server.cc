#include "server/server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <map>
#include <random>
#include <span>
#include <string_view>
#include <utility>

#include "base/start_thread.h"
#include "openai/api_error.h"
#include "server/about.h"
#include "server/access.h"
#include "server/engine_loop.h"
#include "server/exchange.h"
#include "server/http_server.h"
#include "server/job_queue.h"
#include "server/metrics.h"
#include "server/preparer.h"
#include "server/replanner.h"
#include "server/request_line.h"
#include "server/routes.h"
#include "server/step_watcher.h"

namespace convene::server {
namespace {

using openai::ApiError;

constexpr std::chrono::seconds kKeepAliveInterval{15};
constexpr std::chrono::seconds kSilenceBeforeBegin{2};  // of a stream
constexpr std::chrono::seconds kKeepAlivePeriod{1};     // in which silence is looked at
// After --shutdown-timeout, for clients to take what they were told.
constexpr std::chrono::seconds kFlushTime{5};
// The same of a job that is about to be killed.
constexpr std::chrono::milliseconds kJobFlushTime{500};
constexpr int kSignalStatus = 128;

}  // namespace

// All members but those named otherwise belong to the HTTP server's thread.
class Server::Impl : public Handler {
 public:
  explicit Impl(const ServerOptions& options)
      : options_(options),
        access_(options.api_keys, options.cors_origins),
        log_(options.log_level),
        queue_(options.max_queue),
        first_seed_((uint64_t{std::random_device()()} << 32) | std::random_device()()),
        preparer_(options.max_queue, MaxPreparedBytes()) {}
  ~Impl() override;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status Start();
  std::string url() const { return http_->url(); }
  Status Serve(engine::Engine& engine, ServedModel model);
  bool WantsStep() { return watcher_.Wants(); }
  void SeeStep(const runtime::RecordedStep& step) { watcher_.See(step); }

  std::optional<Response> Refuse(const RequestHead& head) override;
  void Handle(HttpRequest request, std::shared_ptr<Responder> responder) override;
  Response ProtocolError(const RequestHead& head, int status, const std::string& message) override;
  void CountConnections(int count) override {
    num_connections_ = count;
    metrics_.SetConnections(count);
  }

 private:
  // A request that was accepted, for text or tokens, from its arrival to its end.
  struct Pending {
    RequestHead head;
    bool is_for_text = false;
    std::string client;
    Clock::time_point arrival;
    std::shared_ptr<Responder> responder;
    std::string prompt_text = {};
    std::unique_ptr<Exchange> exchange = {};  // of one for text, once it is prepared
  };

  size_t MaxPreparedBytes() const {
    return Preparer::kLargestBodies * options_.limits.max_body_bytes;
  }
  Response Error(const RequestHead& head, const ApiError& error);
  void Respond(const RequestHead& head, Responder& responder, Response response);
  void HandleGet(Route route, const RequestHead& head, Responder& responder);
  JobId Accept(const RequestHead& head, bool is_for_text, std::shared_ptr<Responder> responder);
  std::optional<Pending> TakePending(JobId id);
  // Has `read` called on a thread of the preparer's, or refuses the request.
  void Prepare(JobId id, std::string body, std::function<void(const std::string& body)> read);
  void HandleTokens(HttpRequest request, bool is_tokenize, std::shared_ptr<Responder> responder);
  void HandleGeneration(HttpRequest request, Api api, std::shared_ptr<Responder> responder);
  void TakePrepared(JobId id, std::variant<PreparedRequest, ApiError> prepared);
  void RefusePending(JobId id, const ApiError& error);
  void EndPending(JobId id, const ApiError& error);
  void TakeEvents(std::vector<JobEvent> events);
  void ClientGone(JobId id);
  void LogEnd(const Pending& pending);
  void LogGone(const Pending& pending);
  void AnnouncePlan(const NewPlan& plan);
  void LogPlanStays(const LoadShape& shape, const convene::Error& why) const;
  void KeepAlive();
  void OnSignal(const CaughtSignal& caught);
  void EndWithJob(const RankJob& job);
  void OnLoaded();
  void Drain();
  void CloseQueueOncePrepared();
  void EndAccepted();
  void TellAll(const ApiError& error);

  const ServerOptions options_;
  const Access access_;
  const RequestLog log_;
  JobQueue queue_;                    // any thread
  Metrics metrics_;                   // any thread
  StepWatcher watcher_;               // any thread
  std::optional<ServedModel> model_;  // set before is_ready_, then constant
  bool is_ready_ = false;
  bool is_draining_ = false;
  uint64_t first_seed_;
  JobId last_job_ = 0;
  std::map<JobId, Pending> pending_;
  int num_connections_ = 0;
  int64_t num_cut_ = 0;  // requests that the end came before, but for choices that the engine had

  std::unique_ptr<HttpServer> http_;
  Preparer preparer_;
  std::jthread http_thread_;
};

Server::Impl::~Impl() {
  preparer_.Stop();
  if (http_) http_->Stop();
  if (http_thread_.joinable()) http_thread_.join();
  // Connections that end with them or with the server look for their requests here.
  const std::map<JobId, Pending> pending = std::exchange(pending_, {});
  http_.reset();
}

Status Server::Impl::Start() {
  Result<std::unique_ptr<HttpServer>> http =
      HttpServer::Listen(options_.host, options_.port, options_.limits, *this);
  if (!http) return http.error();
  http_ = *std::move(http);
  const Status caught =
      http_->CatchSignals([this](const CaughtSignal& signal) { OnSignal(signal); });
  if (!caught) return caught;
  if (const Status started = preparer_.Start(); !started) return started;
  http_->After(kKeepAlivePeriod, [this] { KeepAlive(); });
  Result<std::jthread> thread =
      StartThread("the thread of the HTTP server", [this] { http_->Run(); });
  if (!thread) return thread.error();
  http_thread_ = *std::move(thread);
  return {};
}

// On the engine's thread.
Status Server::Impl::Serve(engine::Engine& engine, ServedModel model) {
  model_.emplace(std::move(model));
  model_->created = static_cast<int64_t>(std::time(nullptr));
  if (model_->watches_steps) {
    const Status started = watcher_.Start(model_->weights, model_->num_threads);
    if (!started) return started;
  }
  http_->Post([this] { OnLoaded(); });
  EngineLoop loop(
      engine, queue_, metrics_, model_->max_sequences, [this](std::vector<JobEvent> events) {
        http_->Post(
            [this, events = std::move(events)]() mutable { TakeEvents(std::move(events)); });
      });
  std::optional<Replanner> replanner;
  if (model_->find_plan && options_.epoch.count() > 0) {
    replanner.emplace(
        model_->find_plan,
        [this](const LoadShape& shape, const convene::Error& why) { LogPlanStays(shape, why); },
        options_.epoch, model_->planned_for);
    if (const Status started = replanner->Start(); !started) return started;
    loop.ReplanWith(*replanner, [this](const NewPlan& plan) { AnnouncePlan(plan); });
  }
  const int64_t num_aborted = loop.Run();
  // The last responses are on their way to the HTTP thread, or wait for slow clients.
  http_thread_.join();
  preparer_.Stop();
  const int64_t num_early = num_aborted + num_cut_;
  log_.Write(LogLevel::kInfo, {{"event", "stopped"}, {"ended_early", fmt::to_string(num_early)}});
  if (num_early == 0) return {};
  return Unavailable(fmt::format(
      "{} answers were ended before they were complete, because --shutdown-timeout had passed",
      num_early));
}

// On the engine's thread. Requests that come from now on are told of the new plan.
void Server::Impl::AnnouncePlan(const NewPlan& plan) {
  log_.Write(LogLevel::kInfo,
             {{"event", "plan"}, {"fingerprint", plan.fingerprint}, {"words", plan.words}});
  http_->Post([this, fingerprint = plan.fingerprint, plan_json = plan.plan_json] {
    model_->fingerprint = fingerprint;
    model_->plan_json = plan_json;
  });
}

// On the replanner's thread.
void Server::Impl::LogPlanStays(const LoadShape& shape, const convene::Error& why) const {
  log_.Write(LogLevel::kInfo, {{"event", "plan_stays"},
                               {"prompt_tokens", fmt::format("{:.0f}", shape.prompt_tokens)},
                               {"generated_tokens", fmt::format("{:.0f}", shape.gen_tokens)},
                               {"sequences", fmt::format("{:.1f}", shape.num_running)},
                               {"why", why.message}});
}

Response Server::Impl::Error(const RequestHead& head, const ApiError& error) {
  Response response = ErrorResponse(error);
  for (auto& header : access_.CorsHeaders(head)) response.headers.push_back(std::move(header));
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  metrics_.Responded(error.status);
  // Who asks whether the server is there does so again and again.
  const RouteEntry* entry = FindRoute(head.path);
  const bool is_probe = entry != nullptr && entry->route == Route::kHealth;
  log_.Write(is_probe              ? LogLevel::kDebug
             : error.status >= 500 ? LogLevel::kWarning
                                   : LogLevel::kInfo,
             {{"event", "refused"},
              {"client", head.client},
              {"path", head.path},
              {"status", fmt::to_string(error.status)},
              {"error", error.message}});
  return response;
}

Response Server::Impl::ProtocolError(const RequestHead& head, int status,
                                     const std::string& message) {
  const char* type = status >= 500 ? "service_unavailable_error" : "invalid_request_error";
  return Error(head, {.status = status, .message = message, .type = type});
}

void Server::Impl::Respond(const RequestHead& head, Responder& responder, Response response) {
  for (auto& header : access_.CorsHeaders(head)) response.headers.push_back(std::move(header));
  metrics_.Responded(response.status);
  log_.Write(LogLevel::kDebug, {{"event", "response"},
                                {"client", head.client},
                                {"path", head.path},
                                {"status", fmt::to_string(response.status)}});
  responder.Respond(response);
}

std::optional<Response> Server::Impl::Refuse(const RequestHead& head) {
  const RouteEntry* entry = FindRoute(head.path);
  if (entry != nullptr && head.method == "OPTIONS") {
    // A browser asks what a page of another origin may do.
    Response response{.status = 204,
                      .content_type = "",
                      .headers = access_.PreflightHeaders(head, entry->is_post ? "POST" : "GET")};
    response.headers.emplace_back("Allow", MethodsOf(*entry));
    metrics_.Responded(response.status);
    return response;
  }
  const std::optional<ApiError> error = RefusalOf(head, entry, access_.ClientOf(head).has_value());
  if (!error) return std::nullopt;
  Response response = Error(head, *error);
  if (error->status == 405) response.headers.emplace_back("Allow", MethodsOf(*entry));
  return response;
}

void Server::Impl::Handle(HttpRequest request, std::shared_ptr<Responder> responder) {
  const Route route = FindRoute(request.head.path)->route;  // Refuse has found it
  switch (route) {
    case Route::kChat:
      return HandleGeneration(std::move(request), Api::kChat, std::move(responder));
    case Route::kCompletions:
      return HandleGeneration(std::move(request), Api::kCompletions, std::move(responder));
    case Route::kResponses:
      return HandleGeneration(std::move(request), Api::kResponses, std::move(responder));
    case Route::kTokenize:
    case Route::kDetokenize:
      return HandleTokens(std::move(request), route == Route::kTokenize, std::move(responder));
    case Route::kEmbeddings:
      return responder->Respond(
          Error(request.head,
                openai::InvalidRequest("this model generates text and was not trained to embed it; "
                                       "an encoder's states are what `convene encode` writes")));
    default:
      return HandleGet(route, request.head, *responder);
  }
}

void Server::Impl::HandleGet(Route route, const RequestHead& head, Responder& responder) {
  auto answer = AnswerAbout(route, {.model_name = options_.model_name,
                                    .model = is_ready_ ? &*model_ : nullptr,
                                    .metrics = metrics_,
                                    .watcher = watcher_,
                                    .num_queued = queue_.num_waiting(),
                                    .is_draining = is_draining_,
                                    .asked_model = NameIn(head.path, *FindRoute(head.path))});
  if (const auto* error = std::get_if<ApiError>(&answer)) {
    return responder.Respond(Error(head, *error));
  }
  Respond(head, responder, std::get<Response>(std::move(answer)));
}

JobId Server::Impl::Accept(const RequestHead& head, bool is_for_text,
                           std::shared_ptr<Responder> responder) {
  const JobId id = ++last_job_;
  responder->WhenGone([this, id] { ClientGone(id); });
  pending_[id] = {.head = head,
                  .is_for_text = is_for_text,
                  .client = access_.ClientOf(head).value_or(""),
                  .arrival = Clock::now(),
                  .responder = std::move(responder)};
  log_.Write(LogLevel::kDebug,
             {{"event", "accepted"}, {"client", head.client}, {"path", head.path}});
  return id;
}

// Nothing: the client has gone, or was told that the server ends.
std::optional<Server::Impl::Pending> Server::Impl::TakePending(JobId id) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return std::nullopt;
  std::optional<Pending> pending = std::move(found->second);
  pending_.erase(found);
  CloseQueueOncePrepared();
  return pending;
}

void Server::Impl::Prepare(JobId id, std::string body,
                           std::function<void(const std::string& body)> read) {
  // std::function wants to be copied, and this is large.
  const auto shared = std::make_shared<const std::string>(std::move(body));
  preparer_.Push({.client = pending_[id].client,
                  .num_bytes = shared->size(),
                  .work = [shared, read = std::move(read)] { read(*shared); },
                  .refuse =
                      [this, id](Lack lack) {
                        RefusePending(id, lack == Lack::kBytes ? BodiesFull(MaxPreparedBytes())
                                                               : QueueFull(options_.max_queue));
                      }});
}

void Server::Impl::HandleTokens(HttpRequest request, bool is_tokenize,
                                std::shared_ptr<Responder> responder) {
  if (!is_ready_) return responder->Respond(Error(request.head, NotLoaded()));
  const JobId id = Accept(request.head, /*is_for_text=*/false, std::move(responder));
  Prepare(id, std::move(request.body), [this, id, is_tokenize](const std::string& body) {
    Response response = AnswerTokenRequest(*model_, body, is_tokenize);
    http_->Post([this, id, response = std::move(response)] {
      const std::optional<Pending> pending = TakePending(id);
      if (pending) Respond(pending->head, *pending->responder, response);
    });
  });
}

void Server::Impl::HandleGeneration(HttpRequest request, Api api,
                                    std::shared_ptr<Responder> responder) {
  if (!is_ready_) return responder->Respond(Error(request.head, NotLoaded()));
  const JobId id = Accept(request.head, /*is_for_text=*/true, std::move(responder));
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const uint64_t seed = first_seed_ + id * kGolden;
  Prepare(id, std::move(request.body), [this, id, seed, api](const std::string& body) {
    auto prepared = PrepareGeneration(*model_, body, api, seed, options_.logs_prompts);
    const auto shared = std::make_shared<decltype(prepared)>(std::move(prepared));
    http_->Post([this, id, shared] { TakePrepared(id, std::move(*shared)); });
  });
}

void Server::Impl::TakePrepared(JobId id, std::variant<PreparedRequest, ApiError> prepared) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;  // the client has gone
  if (const auto* error = std::get_if<ApiError>(&prepared)) return RefusePending(id, *error);
  Pending& pending = found->second;
  auto& request = std::get<PreparedRequest>(prepared);
  Job job{.id = id,
          .requests = std::move(request.choices),
          .client = pending.client,
          .priority = request.priority,
          .arrival = pending.arrival};
  // What one key's requests are worth to it is nothing to the others.
  const int64_t of_blocks = options_.api_keys.size() > 1 ? 0 : job.priority;
  for (engine::Request& choice : job.requests) choice.priority = of_blocks;
  if (options_.request_timeout.count() > 0) {
    job.deadline = pending.arrival + options_.request_timeout;
  }
  openai::AnswerHead head{.id = fmt::format("{}-{:x}-{}",
                                            request.body.is_response ? "resp"
                                            : request.body.is_chat   ? "chatcmpl"
                                                                     : "cmpl",
                                            first_seed_ & 0xffffffff, id),
                          .created = static_cast<int64_t>(std::time(nullptr)),
                          .model = model_->name,
                          .fingerprint = model_->fingerprint};
  pending.prompt_text = std::move(request.prompt_text);
  pending.exchange = std::make_unique<Exchange>(
      pending.responder, std::move(request.body), std::move(request.reading), std::move(head),
      request.prompt_sizes, access_.CorsHeaders(pending.head), pending.arrival, *model_->tokenizer,
      metrics_);
  const Pushed pushed = queue_.Push(std::move(job));
  if (pushed.admission == Admission::kFull) return RefusePending(id, QueueFull(options_.max_queue));
  if (pushed.admission == Admission::kClosed) return RefusePending(id, ShuttingDown());
  for (const JobId dropped : pushed.dropped)
    EndPending(dropped, QueueFull(options_.max_queue));  // it made room
  CloseQueueOncePrepared();
}

// With an error that the engine does not know of. Precondition: it is prepared, or has gone.
void Server::Impl::EndPending(JobId id, const ApiError& error) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;
  found->second.exchange->Fail(error);
  // What is sent may find that the client has gone.
  if (const std::optional<Pending> pending = TakePending(id)) LogEnd(*pending);
}

void Server::Impl::RefusePending(JobId id, const ApiError& error) {
  const std::optional<Pending> pending = TakePending(id);
  if (pending) pending->responder->Respond(Error(pending->head, error));
}

void Server::Impl::TakeEvents(std::vector<JobEvent> events) {
  for (JobEvent& event : events) {
    const auto found = pending_.find(event.job);
    if (found == pending_.end()) continue;  // its client has gone
    const bool has_failed = event.update.error.has_value();
    const JobId id = event.job;
    const bool has_ended = found->second.exchange->Take(std::move(event));
    // What is sent may find that the client has gone.
    const auto still = pending_.find(id);
    if (still == pending_.end() || !has_ended) continue;
    if (has_failed) queue_.Cancel(id);  // the other choices
    LogEnd(still->second);
    pending_.erase(still);
  }
}

void Server::Impl::ClientGone(JobId id) {
  std::optional<Pending> pending = TakePending(id);
  if (!pending) return;
  queue_.Cancel(id);
  if (pending->exchange) {
    pending->exchange->Abandon();
    LogEnd(*pending);
  } else {
    LogGone(*pending);
  }
  // Not at once: the exchange may be sending, which has found this.
  http_->Post([gone = std::make_shared<Pending>(*std::move(pending))] {});
}

void Server::Impl::LogEnd(const Pending& pending) {
  const Exchange& exchange = *pending.exchange;
  const auto& error = exchange.error();
  if (exchange.Figures().finish != "abort") metrics_.Responded(error ? error->status : 200);
  log_.Write(error ? LogLevel::kWarning : LogLevel::kInfo,
             EndedRequest(pending.head, exchange, pending.prompt_text));
}

// Of a request whose client went before it was known what it says.
void Server::Impl::LogGone(const Pending& pending) {
  const std::chrono::duration<double> total = Clock::now() - pending.arrival;
  if (pending.is_for_text) metrics_.GoneUnread(total.count());
  log_.Write(LogLevel::kInfo, GoneRequest(pending.head, total.count()));
}

void Server::Impl::KeepAlive() {
  std::vector<JobId> ids;
  for (const auto& [id, pending] : pending_) {
    if (pending.exchange) ids.push_back(id);
  }
  for (const JobId id : ids) {
    const auto found = pending_.find(id);  // one that was sent to may have gone
    if (found == pending_.end()) continue;
    found->second.exchange->KeepAlive(kSilenceBeforeBegin, kKeepAliveInterval);
  }
  http_->After(kKeepAlivePeriod, [this] { KeepAlive(); });
}

void Server::Impl::OnLoaded() {
  is_ready_ = true;
  if (is_draining_) return Drain();
  log_.Write(LogLevel::kInfo, {{"event", "ready"},
                               {"model", model_->name},
                               {"url", url()},
                               {"context", fmt::to_string(model_->context)},
                               {"fingerprint", model_->fingerprint}});
}

void Server::Impl::OnSignal(const CaughtSignal& caught) {
  const std::optional<RankJob>& job = options_.job;
  if (job && caught.number == SIGTERM && caught.sender == job->launcher) return EndWithJob(*job);
  if (is_draining_) ::_exit(kSignalStatus + caught.number);
  if (!is_ready_ && !job) ::_exit(0);  // nothing was accepted
  is_draining_ = true;
  log_.Write(LogLevel::kInfo, {{"event", "draining"},
                               {"requests", fmt::to_string(pending_.size())},
                               {"timeout_s", fmt::to_string(options_.shutdown_timeout.count())}});
  if (is_ready_) Drain();
}

// Who launched the ranks ends them, because somebody told it to or because one has ended. Steps may
// take longer than it waits, or never end, so that requests are told without the engine.
void Server::Impl::EndWithJob(const RankJob& job) {
  if (!is_ready_) return job.end();  // nothing was accepted
  const bool is_broken = job.is_broken();
  const auto left = std::max(job.patience - kJobFlushTime, std::chrono::milliseconds(0));
  const auto wait = is_broken
                        ? std::chrono::milliseconds(0)
                        : std::min<std::chrono::milliseconds>(left, options_.shutdown_timeout);
  log_.Write(LogLevel::kInfo,
             {{"event", is_broken ? "rank_lost" : "draining"},
              {"requests", fmt::to_string(pending_.size())},
              {"timeout_s", fmt::format("{:g}", std::chrono::duration<double>(wait).count())}});
  if (!is_draining_ && !is_broken) {
    is_draining_ = true;
    http_->Drain();
    CloseQueueOncePrepared();
  }
  http_->After(wait, [this, &job, is_broken] {
    TellAll(is_broken ? RankLost() : ShuttingDown());
    http_->After(kJobFlushTime / 2, job.end);
  });
}

// Ends all accepted requests with the error, whatever the engine is at.
void Server::Impl::TellAll(const ApiError& error) {
  std::vector<JobId> ids;
  for (const auto& [id, pending] : pending_) ids.push_back(id);
  for (const JobId id : ids) {
    const auto found = pending_.find(id);  // one that was told may have gone
    if (found == pending_.end()) continue;
    if (!found->second.exchange) {
      RefusePending(id, error);
      continue;
    }
    EndPending(id, error);
  }
}

void Server::Impl::Drain() {
  http_->Drain();
  CloseQueueOncePrepared();
  http_->After(options_.shutdown_timeout, [this] { EndAccepted(); });
}

// The engine's thread ends when its jobs have ended and no request can become another one.
void Server::Impl::CloseQueueOncePrepared() {
  const auto is_prepared = [](const auto& pending) { return pending.second.exchange != nullptr; };
  if (is_draining_ && std::ranges::all_of(pending_, is_prepared)) queue_.Close();
}

// Tells all accepted requests that the server does not wait for them any more.
void Server::Impl::EndAccepted() {
  queue_.Abort();
  std::vector<JobId> unprepared;
  for (const auto& [id, pending] : pending_) {
    if (!pending.exchange) unprepared.push_back(id);
  }
  num_cut_ += std::ssize(unprepared);
  for (const JobId id : unprepared) RefusePending(id, ShuttingDown());
  http_->After(kFlushTime, [this] {
    num_cut_ += num_connections_;
    http_->Stop();
  });
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  if (const Status started = impl->Start(); !started) return started.error();
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

std::string Server::url() const { return impl_->url(); }

bool Server::WantsStep() { return impl_->WantsStep(); }

void Server::SeeStep(const runtime::RecordedStep& step) { impl_->SeeStep(step); }

Status Server::Serve(engine::Engine& engine, ServedModel model) {
  return impl_->Serve(engine, std::move(model));
}

}  // namespace convene::server
