#include "server/server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <map>
#include <random>
#include <span>
#include <string_view>
#include <utility>

#include "base/quote.h"
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
#include "server/routes.h"
#include "server/step_watcher.h"

namespace convene::server {
namespace {

using openai::ApiError;

constexpr std::chrono::seconds kKeepAliveInterval{15};
constexpr std::chrono::seconds kFlushTime{5};  // for clients to take the last of their responses
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
        preparer_(options.max_queue, Preparer::kLargestBodies * options.limits.max_body_bytes),
        first_seed_((uint64_t{std::random_device()()} << 32) | std::random_device()()) {}
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
  Response ProtocolError(int status, const std::string& message) override;
  void CountConnections(int count) override { metrics_.SetConnections(count); }

 private:
  // Of a request for text, from its arrival to its end.
  struct Pending {
    RequestHead head;
    std::string client;
    Clock::time_point arrival;
    std::shared_ptr<Responder> responder;
    std::string prompt_text = {};
    std::unique_ptr<Exchange> exchange = {};  // once it is prepared
  };

  Response Error(const RequestHead& head, const ApiError& error);
  void Respond(const RequestHead& head, Responder& responder, Response response);
  void HandleGet(Route route, const RequestHead& head, Responder& responder);
  void HandleTokens(HttpRequest request, bool is_tokenize, std::shared_ptr<Responder> responder);
  void HandleGeneration(HttpRequest request, Api api, std::shared_ptr<Responder> responder);
  void TakePrepared(JobId id, std::variant<PreparedRequest, ApiError> prepared);
  void RefusePending(JobId id, const ApiError& error);
  void DropQueued(JobId id);
  void TakeEvents(std::vector<JobEvent> events);
  void ClientGone(JobId id);
  void LogEnd(const Pending& pending);
  void AnnouncePlan(const NewPlan& plan);
  void LogPlanStays(const LoadShape& shape, const convene::Error& why) const;
  void KeepAlive();
  void OnSignal(int number);

  const ServerOptions options_;
  const Access access_;
  const RequestLog log_;
  JobQueue queue_;                    // any thread
  Metrics metrics_;                   // any thread
  StepWatcher watcher_;               // any thread
  std::optional<ServedModel> model_;  // set before is_ready_, then constant
  std::atomic<bool> is_ready_ = false;
  bool is_draining_ = false;
  uint64_t first_seed_;
  JobId last_job_ = 0;
  std::map<JobId, Pending> pending_;

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
  http_->CatchSignals([this](int number) { OnSignal(number); });
  if (const Status started = preparer_.Start(); !started) return started;
  http_->After(kKeepAliveInterval / 3, [this] { KeepAlive(); });
  Result<std::jthread> thread =
      StartThread("the thread of the HTTP server", [this] { http_->Run(); });
  if (!thread) return thread.error();
  http_thread_ = *std::move(thread);
  return {};
}

// On the engine's thread.
Status Server::Impl::Serve(engine::Engine& engine, ServedModel model) {
  model_.emplace(std::move(model));
  if (model_->watches_steps) {
    const Status started = watcher_.Start(model_->weights, model_->num_threads);
    if (!started) return started;
  }
  is_ready_ = true;
  log_.Write(LogLevel::kInfo, {{"event", "ready"},
                               {"model", model_->name},
                               {"url", url()},
                               {"context", fmt::to_string(model_->context)},
                               {"fingerprint", model_->fingerprint}});
  EngineLoop loop(
      engine, queue_, metrics_, options_.max_sequences, [this](std::vector<JobEvent> events) {
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
  http_->Post([this] {
    http_->Drain([this] { http_->Stop(); });
    http_->After(kFlushTime, [this] { http_->Stop(); });
  });
  http_thread_.join();
  preparer_.Stop();
  log_.Write(LogLevel::kInfo, {{"event", "stopped"}, {"ended_early", fmt::to_string(num_aborted)}});
  if (num_aborted == 0) return {};
  return Unavailable(fmt::format(
      "{} answers were ended before they were complete, because --shutdown-timeout had passed",
      num_aborted));
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
  log_.Write(error.status >= 500 ? LogLevel::kWarning : LogLevel::kInfo,
             {{"event", "refused"},
              {"client", head.client},
              {"path", head.path},
              {"status", fmt::to_string(error.status)},
              {"error", error.message}});
  return response;
}

Response Server::Impl::ProtocolError(int status, const std::string& message) {
  return Error({}, {.status = status, .message = message, .type = "invalid_request_error"});
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
  if (entry == nullptr) {
    return Error(head, {.status = 404,
                        .message = fmt::format("there is nothing at {}", Quote(head.path)),
                        .type = "invalid_request_error",
                        .code = "unknown_url"});
  }
  if (head.method == "OPTIONS") {  // a browser asks what a page of another origin may do
    Response response{
        .status = 204, .content_type = "", .body = "", .headers = access_.CorsHeaders(head)};
    response.headers.emplace_back("Allow", entry->is_post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS");
    response.headers.emplace_back("Access-Control-Allow-Methods", entry->is_post ? "POST" : "GET");
    response.headers.emplace_back("Access-Control-Allow-Headers", "Authorization, Content-Type");
    response.headers.emplace_back("Access-Control-Max-Age", "600");
    metrics_.Responded(response.status);
    return response;
  }
  const bool is_get = head.method == "GET" || head.method == "HEAD";
  if (entry->is_post ? head.method != "POST" : !is_get) {
    Response response = Error(
        head, {.status = 405,
               .message = fmt::format("{} takes {}", head.path, entry->is_post ? "POST" : "GET"),
               .type = "invalid_request_error"});
    response.headers.emplace_back("Allow", entry->is_post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS");
    return response;
  }
  if (!NeedsNoKey(entry->route) && !access_.ClientOf(head)) {
    return Error(head, {.status = 401,
                        .message = "this server wants an API key: Authorization: Bearer KEY",
                        .type = "authentication_error",
                        .code = "invalid_api_key"});
  }
  // Pages of other origins can send other types without asking first.
  if (entry->is_post && !IsJson(head.content_type)) {
    return Error(head, {.status = 415,
                        .message = "the body must be JSON: Content-Type: application/json",
                        .type = "invalid_request_error"});
  }
  return std::nullopt;
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
                                    .is_draining = is_draining_});
  if (const auto* error = std::get_if<ApiError>(&answer)) {
    return responder.Respond(Error(head, *error));
  }
  Respond(head, responder, std::get<Response>(std::move(answer)));
}

void Server::Impl::HandleTokens(HttpRequest request, bool is_tokenize,
                                std::shared_ptr<Responder> responder) {
  if (!is_ready_) return responder->Respond(Error(request.head, NotLoaded()));
  // std::function wants to be copied, and this is large.
  const auto shared = std::make_shared<const HttpRequest>(std::move(request));
  preparer_.Push({.client = access_.ClientOf(shared->head).value_or(""),
                  .num_bytes = shared->body.size(),
                  .work =
                      [this, shared, is_tokenize, responder] {
                        Response response = AnswerTokenRequest(*model_, shared->body, is_tokenize);
                        http_->Post([this, shared, responder, response = std::move(response)] {
                          Respond(shared->head, *responder, response);
                        });
                      },
                  .refuse =
                      [this, shared, responder] {
                        responder->Respond(Error(shared->head, QueueFull(options_.max_queue)));
                      }});
}

void Server::Impl::HandleGeneration(HttpRequest request, Api api,
                                    std::shared_ptr<Responder> responder) {
  if (!is_ready_) return responder->Respond(Error(request.head, NotLoaded()));
  const JobId id = ++last_job_;
  responder->WhenGone([this, id] { ClientGone(id); });
  pending_[id] = {.head = request.head,
                  .client = access_.ClientOf(request.head).value_or(""),
                  .arrival = Clock::now(),
                  .responder = std::move(responder)};
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const uint64_t seed = first_seed_ + id * kGolden;
  const auto body = std::make_shared<const std::string>(std::move(request.body));
  preparer_.Push({.client = pending_[id].client,
                  .num_bytes = body->size(),
                  .work =
                      [this, id, seed, api, body] {
                        auto prepared =
                            PrepareGeneration(*model_, *body, api, seed, options_.logs_prompts);
                        const auto shared =
                            std::make_shared<decltype(prepared)>(std::move(prepared));
                        http_->Post([this, id, shared] { TakePrepared(id, std::move(*shared)); });
                      },
                  .refuse = [this, id] { RefusePending(id, QueueFull(options_.max_queue)); }});
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
  for (const JobId dropped : pushed.dropped) DropQueued(dropped);
}

// It made room for a request of a client with fewer.
void Server::Impl::DropQueued(JobId id) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;
  found->second.exchange->Fail(QueueFull(options_.max_queue));
  const auto still = pending_.find(id);  // what is sent may find that the client has gone
  if (still == pending_.end()) return;
  LogEnd(still->second);
  pending_.erase(still);
}

void Server::Impl::RefusePending(JobId id, const ApiError& error) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;  // the client has gone
  const Pending pending = std::move(found->second);
  pending_.erase(found);
  pending.responder->Respond(Error(pending.head, error));
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
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;
  queue_.Cancel(id);
  if (found->second.exchange) {
    found->second.exchange->Abandon();
    LogEnd(found->second);
  }
  // Not at once: the exchange may be sending, which has found this.
  auto gone = std::make_shared<Pending>(std::move(found->second));
  pending_.erase(found);
  http_->Post([gone] {});
}

void Server::Impl::LogEnd(const Pending& pending) {
  const Exchange& exchange = *pending.exchange;
  const RequestFigures figures = exchange.Figures();
  const int status = exchange.error() ? exchange.error()->status : 200;
  if (figures.finish != "abort") metrics_.Responded(status);
  LogFields fields = {{"event", "request"},
                      {"id", exchange.id()},
                      {"client", pending.head.client},
                      {"path", pending.head.path},
                      {"stream", exchange.streams() ? "true" : "false"},
                      {"status", figures.finish == "abort" ? "499" : fmt::to_string(status)},
                      {"finish", figures.finish},
                      {"prompt_tokens", fmt::to_string(figures.num_prompt_tokens)},
                      {"cached_tokens", fmt::to_string(figures.num_cached_tokens)},
                      {"completion_tokens", fmt::to_string(figures.num_generated_tokens)},
                      {"queue_s", fmt::format("{:.4f}", figures.queue_s)},
                      {"ttft_s", fmt::format("{:.4f}", figures.ttft_s)},
                      {"total_s", fmt::format("{:.4f}", figures.total_s)}};
  if (exchange.error()) fields.emplace_back("error", exchange.error()->message);
  if (!pending.prompt_text.empty()) fields.emplace_back("prompt", pending.prompt_text);
  log_.Write(exchange.error() ? LogLevel::kWarning : LogLevel::kInfo, fields);
}

void Server::Impl::KeepAlive() {
  std::vector<JobId> ids;
  for (const auto& [id, pending] : pending_) {
    if (pending.exchange) ids.push_back(id);
  }
  for (const JobId id : ids) {
    const auto found = pending_.find(id);  // one that was sent to may have gone
    if (found != pending_.end()) found->second.exchange->KeepAlive(kKeepAliveInterval);
  }
  http_->After(kKeepAliveInterval / 3, [this] { KeepAlive(); });
}

void Server::Impl::OnSignal(int number) {
  if (options_.on_signal) options_.on_signal();
  if (!is_ready_) ::_exit(0);  // nothing was accepted
  if (is_draining_) ::_exit(kSignalStatus + number);
  is_draining_ = true;
  log_.Write(LogLevel::kInfo, {{"event", "draining"},
                               {"requests", fmt::to_string(pending_.size())},
                               {"timeout_s", fmt::to_string(options_.shutdown_timeout.count())}});
  http_->Drain([] {});
  queue_.Close();
  http_->After(options_.shutdown_timeout, [this] { queue_.Abort(); });
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
