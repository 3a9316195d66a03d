// Any bytes on a connection of the server, over a real socket: whatever comes back is whole
// responses, of which at most the last is cut short, and the server closes soon.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/check.h"
#include "server/http_server.h"

namespace {

namespace server = convene::server;

constexpr size_t kMaxBodyBytes = 4096;
constexpr int kMaxSeconds = 20;  // far beyond that, the server hangs

// /size and /stream are there; the bodies that it gets are bounded.
class FuzzedHandler : public server::Handler {
 public:
  std::optional<server::Response> Refuse(const server::RequestHead& head) override {
    if (head.path == "/size" || head.path == "/stream") return std::nullopt;
    return server::Response{.status = 404, .body = "nothing here"};
  }
  void Handle(server::HttpRequest request, std::shared_ptr<server::Responder> responder) override {
    CHECK(request.body.size() <= kMaxBodyBytes);
    if (request.head.path == "/size") {
      return responder->Respond({.body = std::to_string(request.body.size())});
    }
    responder->BeginStream({.content_type = "text/event-stream"});
    responder->Send("data: 1\n\n");
    responder->Send(std::string(request.body.size(), 'x'));
    responder->EndStream();
  }
  server::Response ProtocolError(const server::RequestHead&, int status,
                                 const std::string& message) override {
    CHECK(status == 400 || status == 413 || status == 415 || status == 431 || status == 503);
    CHECK(!message.empty());
    return {.status = status, .body = message};
  }
  void CountConnections(int count) override { CHECK(count >= 0); }
};

class FuzzedServer {
 public:
  FuzzedServer() {
    auto listening = server::HttpServer::Listen(
        "127.0.0.1", 0, {.max_header_bytes = 2048, .max_body_bytes = kMaxBodyBytes}, handler_);
    CHECK(listening.ok(), "{}", listening.error().message);
    server_ = *std::move(listening);
    thread_ = std::jthread([this] { server_->Run(); });
  }
  ~FuzzedServer() {
    server_->Stop();
    thread_.join();
  }
  FuzzedServer(const FuzzedServer&) = delete;
  FuzzedServer& operator=(const FuzzedServer&) = delete;
  int port() const { return server_->port(); }

  // Until the server's thread has done what there is to do, as far as a look at its queue and at
  // its sockets shows.
  void Settle() const {
    constexpr int kLooks = 3;
    for (int i = 0; i < kLooks; ++i) {
      std::promise<void> looked;
      server_->Post([&looked] { looked.set_value(); });
      looked.get_future().wait();
    }
  }

 private:
  FuzzedHandler handler_;
  std::unique_ptr<server::HttpServer> server_;
  std::jthread thread_;
};

// A socket that gives up reading after a while.
int OpenSocket() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(socket >= 0, "socket: error {}", errno);
  const timeval limit = {.tv_sec = kMaxSeconds, .tv_usec = 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return socket;
}

int ConnectTo(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  constexpr int kMostTries = 1000;
  for (int i = 0; i < kMostTries; ++i) {
    const int socket = OpenSocket();
    if (connect(socket, generic, sizeof address) == 0) return socket;
    const int error = errno;
    close(socket);
    // libFuzzer's clock interrupts; all ports of this end may be waiting out their last
    // connections.
    CHECK(error == EINTR || error == EADDRNOTAVAIL, "connect: error {}", error);
    if (error == EADDRNOTAVAIL) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(false, "no connection after {} tries", kMostTries);
}

void SendAll(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return;  // refused before all was sent
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

// Whether there may be more.
bool ReceiveSome(int socket, int flags, std::string& answers) {
  char buffer[4096];
  ssize_t count = 0;
  do {
    count = recv(socket, buffer, sizeof buffer, flags);
  } while (count < 0 && errno == EINTR);
  if (count > 0) answers.append(buffer, static_cast<size_t>(count));
  const bool has_waited = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  CHECK(!has_waited || flags == MSG_DONTWAIT, "the server does not close");
  return count > 0;
}

// All that comes back for `bytes`, until the server closes. A client that closes its side counts as
// gone, so that the server need not end a response: `is_hasty`, it does so at once.
std::string Answers(const FuzzedServer& server, std::string_view bytes, bool is_hasty) {
  const int socket = ConnectTo(server.port());
  std::string answers;
  SendAll(socket, bytes);
  if (!is_hasty) {
    do {
      server.Settle();
    } while (ReceiveSome(socket, MSG_DONTWAIT, answers));
  }
  shutdown(socket, SHUT_WR);
  while (ReceiveSome(socket, 0, answers)) {
  }
  close(socket);
  return answers;
}

// No response of FuzzedHandler has a carriage return in its data, so one that is within the length
// that was said shows that the length is wrong, also where the connection was closed before the
// end.
void CheckData(std::string_view data) {
  CHECK(data.find('\r') == std::string_view::npos, "more bytes are said than are sent");
}

// Takes the body of a response off `rest`; false: it is cut short.
bool TakeBody(std::string_view head, bool has_body, std::string_view& rest) {
  constexpr std::string_view kLength = "Content-Length: ";
  const size_t at = head.find(kLength);
  if (at != std::string_view::npos) {
    size_t length = 0;
    const char* begin = head.data() + at + kLength.size();
    CHECK(std::from_chars(begin, head.data() + head.size(), length).ec == std::errc());
    if (!has_body) return true;
    CheckData(rest.substr(0, length));
    if (rest.size() < length) return false;
    rest.remove_prefix(length);
    return true;
  }
  if (head.find("Transfer-Encoding: chunked") == std::string_view::npos) {
    CHECK(head.find("Connection: close") != std::string_view::npos, "a body without an end");
    rest = {};
    return true;
  }
  for (;;) {
    const size_t end = rest.find("\r\n");
    if (end == std::string_view::npos) return false;
    size_t length = 0;
    const auto parsed = std::from_chars(rest.data(), rest.data() + end, length, 16);
    CHECK(parsed.ec == std::errc() && parsed.ptr == rest.data() + end, "a chunk without a size");
    CheckData(rest.substr(end + 2, length));
    if (rest.size() < end + 4 + length) return false;
    CHECK(rest.substr(end + 2 + length, 2) == "\r\n", "a chunk that does not end");
    rest.remove_prefix(end + 4 + length);
    if (length == 0) return true;
  }
}

void CheckAnswers(std::string_view rest, bool may_be_head) {
  while (!rest.empty()) {
    constexpr std::string_view kVersion = "HTTP/1.1 ";
    if (rest.size() < kVersion.size() + 3) return;
    CHECK(rest.starts_with(kVersion), "no response");
    int status = 0;
    const char* begin = rest.data() + kVersion.size();
    CHECK(std::from_chars(begin, begin + 3, status).ptr == begin + 3);
    CHECK(status >= 100 && status < 600);
    const size_t end = rest.find("\r\n\r\n");
    if (end == std::string_view::npos) return;
    const std::string_view head = rest.substr(0, end + 2);
    rest.remove_prefix(end + 4);
    if (status == 100) continue;
    // Whether there is a body behind the head is known by the request.
    const bool has_body = !may_be_head || !(rest.empty() || rest.starts_with(kVersion));
    if (!TakeBody(head, has_body, rest)) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const FuzzedServer fuzzed;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const bool may_be_head = bytes.find("HEAD") != std::string_view::npos;
  const bool is_hasty = size > 0 && data[size - 1] % 4 == 0;
  CheckAnswers(Answers(fuzzed, bytes, is_hasty), may_be_head);
  return 0;
}
