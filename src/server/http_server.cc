#include "server/http_server.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

#include "server/http_connection.h"

namespace convene::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr auto kPauseAfterFailure = std::chrono::milliseconds(100);  // of accept

}  // namespace

struct HttpServer::State {
  SharedHttp shared;  // outlives the connections, which the context's operations hold
  std::unordered_set<HttpConnection*> connections;
  std::string host;
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard{context.get_executor()};
  tcp::acceptor acceptor{context};
  CaughtSignals signals;
  asio::posix::stream_descriptor signals_end{context};
  asio::steady_timer accept_timer{context};

  ~State() {
    ForEach(&HttpConnection::Close);
    if (signals_end.is_open()) signals_end.release();  // it is the signals'
  }
  Status Open(const tcp::endpoint& endpoint);
  void Accept();
  void OnAccepted(tcp::socket socket);
  void OnClosed(HttpConnection* connection);
  void ForEach(void (HttpConnection::*act)());
  void WaitForSignal(const std::function<void(const CaughtSignal&)>& handle);
};

Status HttpServer::State::Open(const tcp::endpoint& endpoint) {
  ErrorCode error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) return {};
  return Unavailable(fmt::format(
      "cannot listen at {} port {}: {}; give another --port or --host, or end the program that "
      "listens there",
      host, endpoint.port(), error.message()));
}

void HttpServer::State::Accept() {
  acceptor.async_accept([this](ErrorCode error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) OnAccepted(std::move(socket));
    if (!acceptor.is_open()) return;
    if (!error) return Accept();
    // No descriptor, say: those of other connections will be closed.
    accept_timer.expires_after(kPauseAfterFailure);
    accept_timer.async_wait([this](ErrorCode aborted) {
      if (!aborted && acceptor.is_open()) Accept();
    });
  });
}

void HttpServer::State::OnAccepted(tcp::socket socket) {
  const auto connection = std::make_shared<HttpConnection>(std::move(socket), shared);
  const bool is_too_many = std::ssize(connections) >= shared.limits.max_connections;
  connections.insert(connection.get());
  shared.handler->CountConnections(static_cast<int>(connections.size()));
  if (!is_too_many) return connection->Start();
  connection->StartRefusing(
      503, fmt::format("the server has as many connections as it takes ({}, --max-connections); "
                       "close those that you do not need, or try again",
                       shared.limits.max_connections));
}

void HttpServer::State::OnClosed(HttpConnection* connection) {
  connections.erase(connection);
  shared.handler->CountConnections(static_cast<int>(connections.size()));
  if (shared.is_draining && connections.empty()) context.stop();
}

void HttpServer::State::ForEach(void (HttpConnection::*act)()) {
  const std::vector<HttpConnection*> now(connections.begin(), connections.end());
  for (HttpConnection* connection : now) {
    // One may have gone with the one before it.
    if (connections.contains(connection)) (connection->*act)();
  }
}

void HttpServer::State::WaitForSignal(const std::function<void(const CaughtSignal&)>& handle) {
  signals_end.async_wait(asio::posix::stream_descriptor::wait_read,
                         [this, handle](ErrorCode error) {
                           if (error) return;
                           while (const std::optional<CaughtSignal> caught = signals.Take())
                             handle(*caught);
                           WaitForSignal(handle);
                         });
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(const std::string& host, int port,
                                                       const HttpLimits& limits, Handler& handler) {
  auto state = std::make_unique<State>();
  state->host = host;
  state->shared.limits = limits;
  state->shared.handler = &handler;
  state->shared.closed = [state = state.get()](HttpConnection* connection) {
    state->OnClosed(connection);
  };
  ErrorCode error;
  tcp::resolver resolver(state->context);
  const auto found =
      resolver.resolve(host, fmt::to_string(port), tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return Error{fmt::format("--host {} is no address of this machine: {}", host,
                             error ? error.message() : "nothing found")};
  }
  if (const Status opened = state->Open(found.begin()->endpoint()); !opened) {
    return opened.error();
  }
  state->Accept();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

int HttpServer::port() const {
  ErrorCode ignored;
  return state_->acceptor.local_endpoint(ignored).port();
}

std::string HttpServer::url() const {
  const bool is_ipv6 = state_->host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", is_ipv6 ? "[" : "", state_->host, is_ipv6 ? "]" : "",
                     port());
}

void HttpServer::Run() { state_->context.run(); }

void HttpServer::Post(std::function<void()> work) { asio::post(state_->context, std::move(work)); }

void HttpServer::Stop() { state_->context.stop(); }

void HttpServer::After(std::chrono::steady_clock::duration delay, std::function<void()> work) {
  const auto timer = std::make_shared<asio::steady_timer>(state_->context, delay);
  timer->async_wait([timer, work = std::move(work)](ErrorCode error) {
    if (!error) work();
  });
}

Status HttpServer::CatchSignals(std::function<void(const CaughtSignal&)> handle) {
  if (Status caught = state_->signals.Catch(); !caught) return caught;
  state_->signals_end.assign(state_->signals.descriptor());
  state_->WaitForSignal(handle);
  return {};
}

void HttpServer::Drain() {
  ErrorCode ignored;
  state_->acceptor.close(ignored);
  state_->accept_timer.cancel(ignored);
  state_->shared.is_draining = true;
  if (state_->connections.empty()) return Stop();
  state_->ForEach(&HttpConnection::Drain);
}

int64_t RaiseOpenFiles() {
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  constexpr rlim_t kMany = 1 << 20;  // where there is no limit
  return static_cast<int64_t>(std::min(limit.rlim_cur, kMany));
}

}  // namespace convene::server
