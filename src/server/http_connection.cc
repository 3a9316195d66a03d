#include "server/http_connection.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <ctime>
#include <utility>

#include "base/version.h"

namespace convene::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using std::chrono::seconds;

// What a client may send ahead while its request is answered.
constexpr size_t kMaxAheadBytes = size_t{64} << 10;
constexpr size_t kReadBytes = size_t{4} << 10;
constexpr size_t kBufferBytes = kMaxAheadBytes + kReadBytes;
constexpr size_t kBodyPieceBytes = size_t{64} << 10;  // that is read of a body at once, at most
// How long a client may go on sending what will not be read, so that it sees the response.
constexpr seconds kLingerTime{2};
constexpr const char* kShutsDown = "the server shuts down";
constexpr int kTryAgainS = 1;  // of what there may be room for soon

std::string TextOf(boost::beast::string_view view) { return {view.data(), view.size()}; }

// Of a target as clients send it, "/health?x", or as they send it to proxies, which every server is
// to understand, "http://host:8080/health" (RFC 9112, section 3.2.2).
std::string PathOf(std::string target) {
  const std::string scheme = "http://";
  if (boost::beast::iequals(target.substr(0, scheme.size()), scheme)) {
    const size_t path = target.find('/', scheme.size());
    target = path == std::string::npos ? "/" : target.substr(path);
  }
  return target.substr(0, target.find('?'));
}

// What is wrong with a request whose addressee or whose end another server on the way may see
// elsewhere (RFC 9112, sections 3.2, 6.1 and 6.3); null: nothing.
template <typename Request>
const char* FaultOf(const Request& request) {
  const auto count = request.count(http::field::host);
  if (count > 1 || (count == 0 && request.version() >= 11)) return "a request must have one Host";
  const auto num_codings = request.count(http::field::transfer_encoding);
  if (num_codings == 0) return nullptr;
  if (request.version() < 11) return "HTTP/1.0 has no Transfer-Encoding";
  const bool is_chunked =
      num_codings == 1 && boost::beast::iequals(request[http::field::transfer_encoding], "chunked");
  return is_chunked ? nullptr : "Transfer-Encoding must be chunked, and nothing else";
}

// A piece of a body in chunked transfer coding (RFC 9112, section 7.1).
std::string Chunk(const std::string& data) {
  return fmt::format("{:x}\r\n{}\r\n", data.size(), data);
}

}  // namespace

HttpConnection::HttpConnection(asio::ip::tcp::socket socket, SharedHttp& shared)
    : socket_(std::move(socket)),
      shared_(shared),
      read_timer_(socket_.get_executor()),
      write_timer_(socket_.get_executor()),
      buffer_(std::max(kBufferBytes, shared.limits.max_header_bytes)) {
  ErrorCode ignored;
  const auto peer = socket_.remote_endpoint(ignored);
  if (!ignored) client_ = peer.address().to_string(ignored);
  // Tokens are small and must not wait for each other.
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

HttpConnection::~HttpConnection() { Close(); }

void HttpConnection::Start() { WaitForRequest(); }

void HttpConnection::StartRefusing(int status, const std::string& message) {
  head_.client = client_;
  Reject(status, message, kTryAgainS);
}

void HttpConnection::Drain() {
  keeps_alive_ = false;
  if (is_answering_ || is_lingering_) return;
  if (!parser_) return Close();
  // The read of a request that is not whole ends, and OnHeader or OnBody tells the client.
  ErrorCode ignored;
  socket_.cancel(ignored);
}

void HttpConnection::Close() {
  if (is_closed_) return;
  is_closed_ = true;
  ReleaseBody();
  ClearDeadline(read_timer_);
  ClearDeadline(write_timer_);
  ErrorCode ignored;
  socket_.close(ignored);
  unsent_.clear();
  if (auto gone = std::exchange(gone_, nullptr)) gone();
  shared_.closed(this);
}

// The operation under way fails when the time is over, because the socket is closed.
void HttpConnection::SetDeadline(asio::steady_timer& timer,
                                 std::chrono::steady_clock::duration duration) {
  timer.expires_after(duration);
  timer.async_wait([self = shared_from_this(), &timer](ErrorCode error) {
    // A wait that was over before its deadline was moved still comes here.
    if (!error && timer.expiry() <= std::chrono::steady_clock::now()) self->Close();
  });
}

// Of a body, or a piece of a response.
seconds HttpConnection::TimeFor(size_t bytes) const {
  return shared_.limits.client_timeout + seconds(static_cast<int64_t>(bytes >> 16));
}

void HttpConnection::ClearDeadline(asio::steady_timer& timer) {
  timer.expires_at(std::chrono::steady_clock::time_point::max());
}

void HttpConnection::WaitForRequest() {
  if (shared_.is_draining) return Close();
  if (buffer_.size() > 0) return ReadHeader();
  SetDeadline(read_timer_, shared_.limits.idle_timeout);
  socket_.async_wait(asio::ip::tcp::socket::wait_read,
                     [self = shared_from_this()](ErrorCode error) {
                       if (error || self->is_closed_) return self->Close();
                       self->ReadHeader();
                     });
}

void HttpConnection::ReadHeader() {
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(shared_.limits.max_header_bytes));
  parser_->body_limit(shared_.limits.max_body_bytes);
  SetDeadline(read_timer_, shared_.limits.header_timeout);
  http::async_read_header(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](ErrorCode error, size_t) { self->OnHeader(error); });
}

void HttpConnection::OnHeader(ErrorCode error) {
  if (is_closed_) return;
  head_ = HeadOf();  // now: a body in chunks may bring more fields, which count for nothing
  if (shared_.is_draining) return Reject(503, kShutsDown);
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return Reject(431, fmt::format("the request's header is larger than {} bytes",
                                   shared_.limits.max_header_bytes));
  }
  if (error == http::error::body_limit) {
    return Reject(413, fmt::format("the request's body is larger than {} bytes (--max-body)",
                                   shared_.limits.max_body_bytes));
  }
  if (error.category() == http::make_error_code(http::error::bad_method).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message) {
    return Reject(400, fmt::format("this is not HTTP/1.1: {}", error.message()));
  }
  if (error) return Close();
  const auto& request = parser_->get();
  keeps_alive_ = request.keep_alive() && !shared_.is_draining;
  is_http_1_0_ = request.version() < 11;
  is_head_request_ = request.method() == http::verb::head;
  if (const char* fault = FaultOf(request)) return Reject(400, fault);
  if (const auto refused = shared_.handler->Refuse(head_)) return RejectWith(*refused);
  const std::string encoding = TextOf(request[http::field::content_encoding]);
  if (!encoding.empty() && !boost::beast::iequals(encoding, "identity")) {
    return Reject(415, "bodies must be sent as they are, without Content-Encoding");
  }
  // What is said of its length takes no room from others, but what surely has none need not come.
  const auto length = parser_->content_length();
  if (length && !HasRoomForBody(static_cast<size_t>(*length))) return RejectForBodies();
  if (boost::beast::iequals(request[http::field::expect], "100-continue")) {
    Write("HTTP/1.1 100 Continue\r\n\r\n");
  }
  ReadBody();
}

RequestHead HttpConnection::HeadOf() const {
  const auto& request = parser_->get();
  RequestHead head;
  head.method = TextOf(request.method_string());
  head.path = PathOf(TextOf(request.target()));
  head.authorization = TextOf(request[http::field::authorization]);
  head.content_type = TextOf(request[http::field::content_type]);
  head.origin = TextOf(request[http::field::origin]);
  head.client = client_;
  return head;
}

bool HttpConnection::HasRoomForBody(size_t bytes) const {
  if (bytes <= shared_.limits.small_body_bytes) return true;
  return shared_.body_bytes - counted_bytes_ + bytes <= shared_.limits.max_bodies_bytes;
}

// So much of the body has come. False: there is no room for it beside those of other requests.
bool HttpConnection::CountBody(size_t bytes) {
  if (!HasRoomForBody(bytes)) return false;
  const size_t counted = bytes > shared_.limits.small_body_bytes ? bytes : 0;
  shared_.body_bytes += counted - counted_bytes_;
  counted_bytes_ = counted;
  return true;
}

void HttpConnection::ReleaseBody() { shared_.body_bytes -= std::exchange(counted_bytes_, 0); }

void HttpConnection::RejectForBodies() {
  Reject(503,
         fmt::format("the bodies of requests that are being read or wait would have more than {} "
                     "bytes together (the limit is twice --max-body, at least 256 MiB): try again, "
                     "or send at most {} bytes, which pass in any case",
                     shared_.limits.max_bodies_bytes, shared_.limits.small_body_bytes),
         kTryAgainS);
}

// A body in chunks may be surrounded by words that nobody wants. Those of one chunk and the fields
// behind the last one are bounded by the buffer, all chunks' together here.
void HttpConnection::BoundChunkExtensions() {
  extension_bytes_ = 0;
  on_chunk_ = [this](std::uint64_t, boost::beast::string_view extensions, ErrorCode& error) {
    extension_bytes_ += extensions.size();
    if (extension_bytes_ > shared_.limits.max_header_bytes) error = http::error::buffer_overflow;
  };
  parser_->on_chunk_header(on_chunk_);
}

void HttpConnection::ReadBody() {
  BoundChunkExtensions();
  parser_->eager(true);
  body_begin_ = std::chrono::steady_clock::now();
  ParseBody();
}

// What has come of the body, and then what comes. (Beast's reads go on by themselves where a piece
// ends between two chunks, and nobody would see what came.) The deadline follows what has come:
// neither a length that was only said nor a beginning that was sent fast makes a client's rest as
// slow as it likes.
void HttpConnection::ParseBody() {
  ErrorCode error;
  while (!error && !parser_->is_done() && buffer_.size() > 0) {
    buffer_.consume(parser_->put(buffer_.data(), error));
  }
  if (error && error != http::error::need_more) return OnBody(error);
  const size_t num_come = parser_->get().body().size();
  if (!CountBody(num_come)) return RejectForBodies();
  if (parser_->is_done()) return OnBody({});
  const size_t room = std::min(kBodyPieceBytes, buffer_.max_size() - buffer_.size());
  if (room == 0) return OnBody(http::error::buffer_overflow);
  const std::chrono::steady_clock::duration pause = shared_.limits.client_timeout;
  const auto left = body_begin_ + TimeFor(num_come) - std::chrono::steady_clock::now();
  SetDeadline(read_timer_, std::min<std::chrono::steady_clock::duration>(left, pause));
  socket_.async_read_some(buffer_.prepare(room),
                          [self = shared_from_this()](ErrorCode failed, size_t num_bytes) {
                            self->OnPieceOfBody(failed, num_bytes);
                          });
}

void HttpConnection::OnPieceOfBody(ErrorCode error, size_t num_bytes) {
  if (is_closed_) return;
  if (error == asio::error::eof) error = http::error::partial_message;
  if (error || shared_.is_draining) return OnBody(error);
  buffer_.commit(num_bytes);
  ParseBody();
}

void HttpConnection::OnBody(ErrorCode error) {
  if (is_closed_) return;
  if (shared_.is_draining) return Reject(503, kShutsDown);
  if (error == http::error::body_limit) {
    return Reject(413, fmt::format("the request's body is larger than {} bytes (--max-body)",
                                   shared_.limits.max_body_bytes));
  }
  if (error == http::error::buffer_overflow) {
    return Reject(431,
                  "the body's chunks have too many extensions, or too many fields behind them");
  }
  if (error == http::error::end_of_stream || error == http::error::partial_message) return Close();
  if (error.category() == http::make_error_code(http::error::bad_method).category()) {
    return Reject(400, fmt::format("the request's body is malformed: {}", error.message()));
  }
  if (error) return Close();
  ClearDeadline(read_timer_);
  HttpRequest request{.head = std::move(head_), .body = std::move(parser_->get().body())};
  parser_.reset();
  // Until the response begins, something of its size waits with the request and stays counted.
  is_answering_ = true;
  shared_.handler->Handle(std::move(request), shared_from_this());
  if (is_answering_ && !ends_response_) WatchClient();
}

// What follows in the stream is not read as a request.
void HttpConnection::Reject(int status, const std::string& message, int retry_after_s) {
  keeps_alive_ = false;
  Response response = shared_.handler->ProtocolError(head_, status, message);
  if (retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", fmt::to_string(retry_after_s));
  }
  RejectWith(response);
}

// Nor here, unless it is a head without a body, as of a page that is not there.
void HttpConnection::RejectWith(const Response& response) {
  const bool has_body = !parser_ || !parser_->is_done();
  if (has_body) keeps_alive_ = false;
  parser_.reset();
  ReleaseBody();
  ClearDeadline(read_timer_);
  is_answering_ = true;
  Respond(response);
}

void HttpConnection::WhenGone(std::function<void()> gone) {
  if (is_closed_) {
    gone();
  } else {
    gone_ = std::move(gone);
  }
}

// A client that closes its side is gone, as for most servers: whether it would still read cannot be
// known. That it closes comes behind all that it has sent, so that all of it is read.
void HttpConnection::WatchClient() {
  if (is_watching_ || is_closed_) return;
  is_watching_ = true;
  socket_.async_read_some(buffer_.prepare(kReadBytes),
                          [self = shared_from_this()](ErrorCode error, size_t num_bytes) {
                            self->OnWatched(error, num_bytes);
                          });
}

void HttpConnection::OnWatched(ErrorCode error, size_t num_bytes) {
  is_watching_ = false;
  if (is_closed_) return;
  // FinishResponse ends the read where the next request has come already.
  if (error && error != asio::error::operation_aborted) return Close();
  if (is_lingering_) return DrainInput();
  buffer_.commit(num_bytes);
  if (!is_answering_) return WaitForRequest();
  // What was sent ahead is kept for the next request. If it is too much, the connection closes
  // after this response: clients are not to send anything behind a request like this before it is
  // answered (RFC 9112, section 9.3.2).
  if (buffer_.size() > kMaxAheadBytes) drops_input_ = true;
  if (drops_input_) {
    keeps_alive_ = false;
    buffer_.clear();
  }
  WatchClient();
}

std::string HttpConnection::HeadText(const Response& response, bool is_stream) const {
  const auto status = static_cast<http::status>(response.status);
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\nServer: convene/{}\r\nDate: {:%a, %d %b %Y %H:%M:%S} GMT\r\n",
                  response.status, TextOf(http::obsolete_reason(status)), kVersion,
                  fmt::gmtime(std::time(nullptr)));
  if (!response.content_type.empty()) {
    text += fmt::format("Content-Type: {}\r\n", response.content_type);
  }
  for (const auto& [name, value] : response.headers) {
    text += fmt::format("{}: {}\r\n", name, value);
  }
  if (!is_stream) {
    if (response.status != 204) text += fmt::format("Content-Length: {}\r\n", response.body.size());
  } else if (!is_http_1_0_) {
    text += "Transfer-Encoding: chunked\r\n";
  }
  const bool closes = !keeps_alive_ || (is_stream && is_http_1_0_);
  text += closes ? "Connection: close\r\n\r\n" : "Connection: keep-alive\r\n\r\n";
  return text;
}

void HttpConnection::Respond(const Response& response) {
  if (is_closed_ || !is_answering_) return;
  ReleaseBody();
  gone_ = nullptr;
  if (shared_.is_draining) keeps_alive_ = false;
  std::string text = HeadText(response, false);
  if (!is_head_request_) text += response.body;
  ends_response_ = true;
  Write(std::move(text));
}

void HttpConnection::BeginStream(const Response& head) {
  if (is_closed_ || !is_answering_) return;
  ReleaseBody();
  if (shared_.is_draining || is_http_1_0_) keeps_alive_ = false;
  is_chunked_ = !is_http_1_0_;
  Write(HeadText(head, true));
}

void HttpConnection::Send(const std::string& data) {
  if (is_closed_ || !is_answering_ || data.empty()) return;
  if (unsent_.size() > shared_.limits.max_unsent_bytes) return Close();
  Write(is_chunked_ ? Chunk(data) : data);
}

void HttpConnection::EndStream() {
  if (is_closed_ || !is_answering_) return;
  gone_ = nullptr;
  ends_response_ = true;
  Write(is_chunked_ ? "0\r\n\r\n" : "");
}

void HttpConnection::Write(std::string data) {
  unsent_ += data;
  if (sending_.empty()) WriteNext();
}

void HttpConnection::WriteNext() {
  if (unsent_.empty()) {
    if (ends_response_) FinishResponse();
    return;
  }
  sending_ = std::exchange(unsent_, {});
  SetDeadline(write_timer_, TimeFor(sending_.size()));
  asio::async_write(socket_, asio::buffer(sending_),
                    [self = shared_from_this()](ErrorCode error, size_t) {
                      ClearDeadline(self->write_timer_);
                      self->sending_.clear();
                      if (error) return self->Close();
                      if (!self->is_closed_) self->WriteNext();
                    });
}

void HttpConnection::FinishResponse() {
  is_answering_ = false;
  ends_response_ = false;
  is_chunked_ = false;
  if (!keeps_alive_ || shared_.is_draining) return Linger();
  if (!is_watching_) return WaitForRequest();
  // OnWatched goes on, at once where a whole request was sent ahead.
  SetDeadline(read_timer_, shared_.limits.idle_timeout);
  ErrorCode ignored;
  if (buffer_.size() > 0) socket_.cancel(ignored);
}

// Closing with input unread would reset the connection, and the client might lose the response.
void HttpConnection::Linger() {
  ErrorCode error;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, error);
  if (error || (is_watching_ && !drops_input_)) return Close();
  is_lingering_ = true;
  SetDeadline(read_timer_, kLingerTime);
  if (!is_watching_) DrainInput();  // else OnWatched does
}

void HttpConnection::DrainInput() {
  buffer_.clear();
  socket_.async_read_some(buffer_.prepare(kReadBytes),
                          [self = shared_from_this()](ErrorCode error, size_t) {
                            if (error || self->is_closed_) return self->Close();
                            self->DrainInput();
                          });
}

}  // namespace convene::server
