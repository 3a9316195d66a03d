// One connection of a client: reads its requests, one after the other, and writes the responses.
// What they mean is the handler's matter. Boost.Beast is used here and in http_server.cc alone.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/arriving_body.h"
#include "server/http.h"

namespace convene::server {

// What all connections of a server share. It outlives them.
struct SharedHttp {
  HttpLimits limits;
  Handler* handler = nullptr;
  size_t body_bytes = 0;     // of all requests, as HttpLimits::max_bodies_bytes counts them
  bool is_draining = false;  // connections close after their response
  std::function<void(class HttpConnection*)> closed;
};

// Held by its pending operations (hence shared), which end when the socket is closed. All calls are
// made on the server's thread.
class HttpConnection : public Responder, public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(boost::asio::ip::tcp::socket socket, SharedHttp& shared);
  ~HttpConnection() override;

  void Start();
  // Tells a client that it is not served, and closes.
  void StartRefusing(int status, const std::string& message);

  // Closes if no request is under way, otherwise after its response: the handler's to one that was
  // handed to it, else one that says that the server shuts down.
  void Drain();
  void Close();

  void Respond(const Response& response) override;
  void BeginStream(const Response& head) override;
  void Send(const std::string& data) override;
  void EndStream() override;
  void WhenGone(std::function<void()> gone) override;

 private:
  using ErrorCode = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<ArrivingBody>;

  void WaitForRequest();
  void ReadHeader();
  void OnHeader(ErrorCode error);
  void BoundChunkExtensions();
  void ReadBody();
  void ParseBody();
  void OnPieceOfBody(ErrorCode error, size_t num_bytes);
  void OnBody(ErrorCode error);
  void Reject(int status, const std::string& message, int retry_after_s = 0);
  void RejectForBodies();
  void RejectWith(const Response& response);
  RequestHead HeadOf() const;
  bool HasRoomForBody(size_t bytes) const;
  bool CountBody(size_t bytes);
  void ReleaseBody();

  void WatchClient();
  void OnWatched(ErrorCode error, size_t num_bytes);

  std::string HeadText(const Response& response, bool is_stream) const;
  void Write(std::string data);
  void WriteNext();
  void FinishResponse();
  void Linger();
  void DrainInput();

  void SetDeadline(boost::asio::steady_timer& timer, std::chrono::steady_clock::duration duration);
  std::chrono::seconds TimeFor(size_t bytes) const;
  static void ClearDeadline(boost::asio::steady_timer& timer);

  boost::asio::ip::tcp::socket socket_;
  SharedHttp& shared_;
  std::string client_;
  boost::asio::steady_timer read_timer_;
  boost::asio::steady_timer write_timer_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  RequestHead head_;  // of the request whose body is being read
  std::function<void(std::uint64_t, boost::beast::string_view, ErrorCode&)> on_chunk_;
  size_t extension_bytes_ = 0;
  size_t counted_bytes_ = 0;  // of shared_.body_bytes
  std::chrono::steady_clock::time_point body_begin_;

  bool is_closed_ = false;
  bool is_answering_ = false;  // from the body's end to the response's
  bool is_watching_ = false;   // a read that tells whether the client is there
  bool drops_input_ = false;   // too much was sent ahead
  bool is_lingering_ = false;  // all is sent; what still comes is not for us
  bool is_head_request_ = false;
  bool keeps_alive_ = false;
  bool is_chunked_ = false;
  bool is_http_1_0_ = false;
  bool ends_response_ = false;  // when all is written
  std::function<void()> gone_;

  std::string unsent_;
  std::string sending_;
};

}  // namespace convene::server
