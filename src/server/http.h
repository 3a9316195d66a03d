// HTTP as the server's handlers see it: requests, responses, streams of events. The protocol itself
// is http_connection.cc and http_server.cc, the only sources that know Boost.Beast.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace convene::server {

struct RequestHead {
  std::string method = {};
  std::string path = {};  // without the query
  std::string authorization = {};
  std::string content_type = {};
  std::string origin = {};
  std::string client = {};  // address of the peer
};

struct HttpRequest {
  RequestHead head;
  std::string body;
};

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  Headers headers = {};
};

// Where the response to one request goes. All calls are made on the thread of the HTTP server;
// calls after the client has gone, or after the end, do nothing.
class Responder {
 public:
  virtual ~Responder() = default;

  // A whole response.
  virtual void Respond(const Response& response) = 0;

  // A response that comes in pieces: its head, then its body, then its end.
  virtual void BeginStream(const Response& head) = 0;
  virtual void Send(const std::string& data) = 0;
  virtual void EndStream() = 0;

  // `gone` is called once if the client closes the connection, or does not take what it is sent,
  // before the response has ended.
  virtual void WhenGone(std::function<void()> gone) = 0;
};

class Handler {
 public:
  virtual ~Handler() = default;

  // Before the body of a request is read: a response if it will not be read.
  virtual std::optional<Response> Refuse(const RequestHead& head) = 0;

  // Must lead to one response. Not called while the server closes.
  virtual void Handle(HttpRequest request, std::shared_ptr<Responder> responder) = 0;

  // An error of the protocol as a response; `status` 400, 413, 415, 431 or 503. `head`: what was
  // read of it.
  virtual Response ProtocolError(const RequestHead& head, int status,
                                 const std::string& message) = 0;

  // A connection was opened or closed.
  virtual void CountConnections(int count) = 0;
};

struct HttpLimits {
  size_t max_header_bytes = size_t{16} << 10;
  size_t max_body_bytes = size_t{8} << 20;
  // Of all requests that are being read or wait for the beginning of their response: what has come
  // of bodies that are larger than small ones, which pass in any case.
  size_t max_bodies_bytes = size_t{256} << 20;
  size_t small_body_bytes = size_t{64} << 10;
  size_t max_unsent_bytes = size_t{4} << 20;  // of a stream whose client does not read
  int max_connections = 4096;
  std::chrono::seconds header_timeout{10};  // from the first byte of a request
  std::chrono::seconds idle_timeout{75};    // of a connection without request
  // Of a body and of what is sent, which may take a second besides for every 64 KiB, of a body for
  // those that have come; and of a pause within a body.
  std::chrono::seconds client_timeout{30};
};

}  // namespace convene::server
