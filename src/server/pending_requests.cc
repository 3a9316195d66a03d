#include "server/pending_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <random>
#include <utility>

#include "server/about.h"
#include "server/request_line.h"

namespace convene::server {
namespace {

using openai::ApiError;

constexpr std::chrono::seconds kKeepAliveInterval{15};
constexpr std::chrono::seconds kSilenceBeforeBegin{2};  // of a stream
constexpr std::chrono::seconds kKeepAlivePeriod{1};     // in which silence is looked at

}  // namespace

PendingRequests::PendingRequests(const PendingOptions& options, const Access& access,
                                 const ResponseWriter& responses, const RequestLog& log,
                                 JobQueue& queue, Metrics& metrics)
    : options_(options),
      access_(access),
      responses_(responses),
      log_(log),
      queue_(queue),
      metrics_(metrics),
      first_seed_((uint64_t{std::random_device()()} << 32) | std::random_device()()),
      preparer_(options.max_queue, MaxPreparedBytes()) {}

Status PendingRequests::Start(HttpServer& http) {
  http_ = &http;
  if (const Status started = preparer_.Start(); !started) return started;
  http_->After(kKeepAlivePeriod, [this] { KeepAlive(); });
  return {};
}

JobId PendingRequests::Accept(const RequestHead& head, bool is_for_text,
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

std::optional<PendingRequest> PendingRequests::Take(JobId id) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return std::nullopt;
  std::optional<PendingRequest> pending = std::move(found->second);
  pending_.erase(found);
  CloseQueueOncePrepared();
  return pending;
}

void PendingRequests::Prepare(JobId id, std::string body,
                              std::function<void(const std::string& body)> read) {
  // std::function wants to be copied, and this is large.
  const auto shared = std::make_shared<const std::string>(std::move(body));
  preparer_.Push({.client = pending_[id].client,
                  .num_bytes = shared->size(),
                  .work = [shared, read = std::move(read)] { read(*shared); },
                  .refuse =
                      [this, id](Lack lack) {
                        Refuse(id, lack == Lack::kBytes ? BodiesFull(MaxPreparedBytes())
                                                        : QueueFull(options_.max_queue));
                      }});
}

void PendingRequests::HandleTokens(HttpRequest request, bool is_tokenize,
                                   std::shared_ptr<Responder> responder) {
  const JobId id = Accept(request.head, /*is_for_text=*/false, std::move(responder));
  Prepare(id, std::move(request.body), [this, id, is_tokenize](const std::string& body) {
    Response response = AnswerTokenRequest(*model_, body, is_tokenize);
    http_->Post([this, id, response = std::move(response)] {
      const std::optional<PendingRequest> pending = Take(id);
      if (pending) responses_.Respond(pending->head, *pending->responder, response);
    });
  });
}

void PendingRequests::HandleGeneration(HttpRequest request, Api api,
                                       std::shared_ptr<Responder> responder) {
  const JobId id = Accept(request.head, /*is_for_text=*/true, std::move(responder));
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const uint64_t seed = first_seed_ + id * kGolden;
  Prepare(id, std::move(request.body), [this, id, seed, api](const std::string& body) {
    auto prepared = PrepareGeneration(*model_, body, api, seed, options_.logs_prompts);
    const auto shared = std::make_shared<decltype(prepared)>(std::move(prepared));
    http_->Post([this, id, shared] { TakePrepared(id, std::move(*shared)); });
  });
}

void PendingRequests::TakePrepared(JobId id, std::variant<PreparedRequest, ApiError> prepared) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;  // the client has gone
  if (const auto* error = std::get_if<ApiError>(&prepared)) return Refuse(id, *error);
  PendingRequest& pending = found->second;
  auto& request = std::get<PreparedRequest>(prepared);
  Job job{.id = id,
          .requests = std::move(request.choices),
          .client = pending.client,
          .priority = request.priority,
          .arrival = pending.arrival};
  // What one key's requests are worth to it is nothing to the others.
  const int64_t of_blocks = options_.has_several_keys ? 0 : job.priority;
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
  if (pushed.admission == Admission::kFull) return Refuse(id, QueueFull(options_.max_queue));
  if (pushed.admission == Admission::kClosed) return Refuse(id, ShuttingDown());
  for (const JobId dropped : pushed.dropped)
    End(dropped, QueueFull(options_.max_queue));  // it made room
  CloseQueueOncePrepared();
}

void PendingRequests::End(JobId id, const ApiError& error) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;
  found->second.exchange->Fail(error);
  // What is sent may find that the client has gone.
  if (const std::optional<PendingRequest> pending = Take(id)) LogEnd(*pending);
}

void PendingRequests::Refuse(JobId id, const ApiError& error) {
  const std::optional<PendingRequest> pending = Take(id);
  if (pending) pending->responder->Respond(responses_.Refuse(pending->head, error));
}

void PendingRequests::TakeEvents(std::vector<JobEvent> events) {
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

void PendingRequests::ClientGone(JobId id) {
  std::optional<PendingRequest> pending = Take(id);
  if (!pending) return;
  queue_.Cancel(id);
  if (pending->exchange) {
    pending->exchange->Abandon();
    LogEnd(*pending);
  } else {
    LogGone(*pending);
  }
  // Not at once: the exchange may be sending, which has found this.
  http_->Post([gone = std::make_shared<PendingRequest>(*std::move(pending))] {});
}

void PendingRequests::LogEnd(const PendingRequest& pending) {
  const Exchange& exchange = *pending.exchange;
  const auto& error = exchange.error();
  if (exchange.Figures().finish != "abort") metrics_.Responded(error ? error->status : 200);
  log_.Write(error ? LogLevel::kWarning : LogLevel::kInfo,
             EndedRequest(pending.head, exchange, pending.prompt_text));
}

// Of a request whose client went before it was known what it says.
void PendingRequests::LogGone(const PendingRequest& pending) {
  const std::chrono::duration<double> total = Clock::now() - pending.arrival;
  if (pending.is_for_text) metrics_.GoneUnread(total.count());
  log_.Write(LogLevel::kInfo, GoneRequest(pending.head, total.count()));
}

void PendingRequests::KeepAlive() {
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

void PendingRequests::EndAll(const ApiError& error) {
  std::vector<JobId> ids;
  for (const auto& [id, pending] : pending_) ids.push_back(id);
  for (const JobId id : ids) {
    const auto found = pending_.find(id);  // one that was told may have gone
    if (found == pending_.end()) continue;
    if (!found->second.exchange) {
      Refuse(id, error);
      continue;
    }
    End(id, error);
  }
}

// The engine's thread ends when its jobs have ended and no request can become another one.
void PendingRequests::CloseQueueOncePrepared() {
  const auto is_prepared = [](const auto& pending) { return pending.second.exchange != nullptr; };
  if (is_draining_ && std::ranges::all_of(pending_, is_prepared)) queue_.Close();
}

int64_t PendingRequests::RefuseUnprepared(const ApiError& error) {
  std::vector<JobId> unprepared;
  for (const auto& [id, pending] : pending_) {
    if (!pending.exchange) unprepared.push_back(id);
  }
  for (const JobId id : unprepared) Refuse(id, error);
  return std::ssize(unprepared);
}

void PendingRequests::Drain() {
  is_draining_ = true;
  CloseQueueOncePrepared();
}

}  // namespace convene::server
