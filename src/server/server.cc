#include "server/server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "base/start_thread.h"
#include "openai/api_error.h"
#include "server/about.h"
#include "server/access.h"
#include "server/engine_loop.h"
#include "server/http_server.h"
#include "server/job_queue.h"
#include "server/metrics.h"
#include "server/pending_requests.h"
#include "server/replanner.h"
#include "server/response_writer.h"
#include "server/routes.h"
#include "server/step_watcher.h"

namespace convene::server {
namespace {

using openai::ApiError;

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
        queue_(options.max_queue) {}
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
  PendingOptions OfPending() const {
    return {.max_queue = options_.max_queue,
            .request_timeout = options_.request_timeout,
            .has_several_keys = options_.api_keys.size() > 1,
            .logs_prompts = options_.logs_prompts,
            .max_body_bytes = options_.limits.max_body_bytes};
  }
  // Of a model that answers, once there is one.
  void HandlePost(Route route, HttpRequest request, std::shared_ptr<Responder> responder);
  void HandleGet(Route route, const RequestHead& head, Responder& responder);
  void AnnouncePlan(const NewPlan& plan);
  void LogPlanStays(const LoadShape& shape, const convene::Error& why) const;
  void OnSignal(const CaughtSignal& caught);
  void EndWithJob(const RankJob& job);
  void OnLoaded();
  void Drain();
  void EndAccepted();

  const ServerOptions options_;
  const Access access_;
  const RequestLog log_;
  JobQueue queue_;                    // any thread
  Metrics metrics_;                   // any thread
  StepWatcher watcher_;               // any thread
  std::optional<ServedModel> model_;  // set before is_ready_, then constant
  bool is_ready_ = false;
  bool is_draining_ = false;
  int num_connections_ = 0;
  int64_t num_cut_ = 0;  // requests that the end came before, but for choices that the engine had

  const ResponseWriter responses_{access_, metrics_, log_};
  PendingRequests requests_{OfPending(), access_, responses_, log_, queue_, metrics_};
  std::unique_ptr<HttpServer> http_;
  std::jthread http_thread_;
};

Server::Impl::~Impl() {
  requests_.StopReading();
  if (http_) http_->Stop();
  if (http_thread_.joinable()) http_thread_.join();
  // Connections that end with them or with the server look for their requests here.
  const auto pending = requests_.TakeAll();
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
  if (const Status started = requests_.Start(*http_); !started) return started;
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
    const Status started = watcher_.Start(model_->weights, model_->num_threads, model_->int8_kv);
    if (!started) return started;
  }
  http_->Post([this] { OnLoaded(); });
  EngineLoop loop(engine, queue_, metrics_, model_->max_sequences,
                  [this](std::vector<JobEvent> events) {
                    http_->Post([this, events = std::move(events)]() mutable {
                      requests_.TakeEvents(std::move(events));
                    });
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
  requests_.StopReading();
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

Response Server::Impl::ProtocolError(const RequestHead& head, int status,
                                     const std::string& message) {
  const char* type = status >= 500 ? "service_unavailable_error" : "invalid_request_error";
  return responses_.Refuse(head, {.status = status, .message = message, .type = type});
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
  Response response = responses_.Refuse(head, *error);
  if (error->status == 405) response.headers.emplace_back("Allow", MethodsOf(*entry));
  return response;
}

void Server::Impl::Handle(HttpRequest request, std::shared_ptr<Responder> responder) {
  const Route route = FindRoute(request.head.path)->route;  // Refuse has found it
  switch (route) {
    case Route::kChat:
    case Route::kCompletions:
    case Route::kResponses:
    case Route::kTokenize:
    case Route::kDetokenize:
      return HandlePost(route, std::move(request), std::move(responder));
    case Route::kEmbeddings:
      return responder->Respond(responses_.Refuse(
          request.head,
          openai::InvalidRequest("this model generates text and was not trained to embed it; "
                                 "an encoder's states are what `convene encode` writes")));
    default:
      return HandleGet(route, request.head, *responder);
  }
}

void Server::Impl::HandlePost(Route route, HttpRequest request,
                              std::shared_ptr<Responder> responder) {
  if (!is_ready_) return responder->Respond(responses_.Refuse(request.head, NotLoaded()));
  if (route == Route::kTokenize || route == Route::kDetokenize) {
    return requests_.HandleTokens(std::move(request), route == Route::kTokenize,
                                  std::move(responder));
  }
  const Api api = route == Route::kChat          ? Api::kChat
                  : route == Route::kCompletions ? Api::kCompletions
                                                 : Api::kResponses;
  requests_.HandleGeneration(std::move(request), api, std::move(responder));
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
    return responder.Respond(responses_.Refuse(head, *error));
  }
  responses_.Respond(head, responder, std::get<Response>(std::move(answer)));
}

void Server::Impl::OnLoaded() {
  is_ready_ = true;
  requests_.Use(*model_);
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
                               {"requests", fmt::to_string(requests_.size())},
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
              {"requests", fmt::to_string(requests_.size())},
              {"timeout_s", fmt::format("{:g}", std::chrono::duration<double>(wait).count())}});
  if (!is_draining_ && !is_broken) {
    is_draining_ = true;
    http_->Drain();
    requests_.Drain();
  }
  http_->After(wait, [this, &job, is_broken] {
    requests_.EndAll(is_broken ? RankLost() : ShuttingDown());
    http_->After(kJobFlushTime / 2, job.end);
  });
}

void Server::Impl::Drain() {
  http_->Drain();
  requests_.Drain();
  http_->After(options_.shutdown_timeout, [this] { EndAccepted(); });
}

// Tells all accepted requests that the server does not wait for them any more.
void Server::Impl::EndAccepted() {
  queue_.Abort();
  num_cut_ += requests_.RefuseUnprepared(ShuttingDown());
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
