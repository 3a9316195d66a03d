#include "server/http_server.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/eventually_test.h"

namespace convene::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// /size: how large the body was; /hold: nothing, until the client goes or AnswerHeld; /flood: a
// stream of more than anybody reads; /large: more than a socket takes at once.
class TestHandler : public Handler {
 public:
  static constexpr int kFloodPieces = 4096;
  static constexpr size_t kPieceBytes = size_t{64} << 10;
  static constexpr size_t kLargeBytes = size_t{32} << 20;

  std::optional<Response> Refuse(const RequestHead& head) override {
    if (head.path != "/refused") return std::nullopt;
    return Response{.status = 404, .body = "refused"};
  }
  void Handle(HttpRequest request, std::shared_ptr<Responder> responder) override {
    if (request.head.path == "/size") {
      return responder->Respond({.body = fmt::to_string(request.body.size())});
    }
    if (request.head.path == "/large") {
      return responder->Respond({.body = std::string(kLargeBytes, 'x')});
    }
    responder->WhenGone([this] { ++num_gone; });
    if (request.head.path == "/flood") {
      responder->BeginStream({.content_type = "text/plain"});
      const std::string piece(kPieceBytes, 'x');
      for (int i = 0; i < kFloodPieces; ++i) responder->Send(piece);
    }
    held_.push_back(std::move(responder));
    num_held = static_cast<int>(held_.size());
  }
  void AnswerHeld() {
    for (const auto& responder : held_) responder->Respond({.body = "held"});
  }
  Response ProtocolError(const RequestHead& head, int status, const std::string& message) override {
    return {.status = status, .body = message, .headers = {{"X-Path", head.path}}};
  }
  void CountConnections(int count) override { num_connections = count; }

  std::atomic<int> num_held = 0;
  std::atomic<int> num_gone = 0;
  std::atomic<int> num_connections = 0;

 private:
  std::vector<std::shared_ptr<Responder>> held_;
};

class TestServer {
 public:
  explicit TestServer(const HttpLimits& limits) {
    auto server = HttpServer::Listen("127.0.0.1", 0, limits, handler);
    CHECK(server.ok(), "{}", server.error().message);
    server_ = *std::move(server);
    thread_ = std::jthread([this] {
      server_->Run();
      has_ended_ = true;
    });
  }
  ~TestServer() {
    server_->Stop();
    thread_.join();
  }
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  int port() const { return server_->port(); }
  bool has_ended() const { return has_ended_; }
  void Drain() {
    server_->Post([this] { server_->Drain(); });
  }
  void AnswerHeld() {
    server_->Post([this] { handler.AnswerHeld(); });
  }

  TestHandler handler;

 private:
  std::unique_ptr<HttpServer> server_;
  std::atomic<bool> has_ended_ = false;
  std::jthread thread_;
};

class Client {
 public:
  explicit Client(const TestServer& server) : socket_(context_) {
    socket_.connect({asio::ip::address_v4::loopback(), static_cast<uint16_t>(server.port())});
  }
  // False: the server has closed the connection.
  bool Send(std::string_view text) {
    ErrorCode error;
    asio::write(socket_, asio::buffer(text.data(), text.size()), error);
    return !error;
  }
  // All that comes until the server closes.
  std::string ReadToEnd() {
    std::string text;
    ErrorCode error;
    asio::read(socket_, asio::dynamic_buffer(text), error);
    return text;
  }
  std::string ReadSome() {
    std::string text(1024, '\0');
    ErrorCode error;
    text.resize(socket_.read_some(asio::buffer(text), error));
    return text;
  }
  void CloseSending() { socket_.shutdown(tcp::socket::shutdown_send); }

 private:
  asio::io_context context_;
  tcp::socket socket_;
};

std::string Post(std::string_view path, size_t length, std::string_view body) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}", path, length,
                     body);
}

TEST(HttpServer, EndsWhoIsSlowWithAHeaderABodyOrARequest) {
  using std::chrono::seconds;
  TestServer server(
      {.header_timeout = seconds(1), .idle_timeout = seconds(1), .client_timeout = seconds(1)});
  Client header(server);
  Client body(server);
  Client idle(server);
  Client half(server);
  EXPECT_TRUE(body.Send(Post("/size", 100, "0123456789")));
  EXPECT_TRUE(half.Send("GET /size HTT"));
  half.CloseSending();
  EXPECT_EQ(half.ReadToEnd(), "");
  // A byte now and then does not help.
  EXPECT_TRUE(header.Send("GET /"));
  bool is_open = true;
  for (int i = 0; i < 100 && is_open; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    is_open = header.Send("a");
  }
  EXPECT_FALSE(is_open);
  EXPECT_EQ(body.ReadToEnd(), "");
  EXPECT_EQ(idle.ReadToEnd(), "");
  EXPECT_TRUE(Eventually([&] { return server.handler.num_connections == 0; }));
}

// The deadline of a body follows what has come of it.
TEST(HttpServer, ALengthThatIsOnlySaidBuysNoTime) {
  TestServer server({.client_timeout = std::chrono::seconds(1)});
  Client silent(server);
  EXPECT_TRUE(silent.Send(Post("/size", size_t{8} << 20, "0123456789")));
  Client pausing(server);
  EXPECT_TRUE(pausing.Send(Post("/size", size_t{8} << 20, std::string(size_t{7} << 20, 'x'))));
  EXPECT_TRUE(Eventually([&] { return server.handler.num_connections == 0; }));
}

TEST(HttpServer, ABodyThatComesOnMayTakeLonger) {
  TestServer server({.client_timeout = std::chrono::seconds(3)});
  const std::string piece(size_t{256} << 10, 'x');
  Client client(server);
  // Each pause is a tenth of the limit, so that a busy machine may draw it out; all together are
  // longer than the limit.
  constexpr int kPauses = 11;
  EXPECT_TRUE(client.Send(Post("/size", (1 + kPauses) * piece.size(), piece)));
  for (int i = 0; i < kPauses; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_TRUE(client.Send(piece));
  }
  EXPECT_THAT(client.ReadSome(), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("3145728")));
}

TEST(HttpServer, EndsAClientThatDoesNotTakeItsStream) {
  TestServer server({.max_unsent_bytes = size_t{1} << 20});
  Client client(server);
  EXPECT_TRUE(client.Send(Post("/flood", 0, "")));
  EXPECT_TRUE(Eventually([&] { return server.handler.num_gone == 1; }));
  const size_t num_bytes = client.ReadToEnd().size();
  EXPECT_LT(num_bytes, TestHandler::kFloodPieces * TestHandler::kPieceBytes);
}

TEST(HttpServer, LargeResponsesMayTakeLonger) {
  TestServer server({.client_timeout = std::chrono::seconds(1)});
  Client slow(server);
  EXPECT_TRUE(slow.Send(Post("/large", 0, "")));
  std::string large = slow.ReadSome();
  std::this_thread::sleep_for(std::chrono::milliseconds(1300));
  server.Drain();
  large += slow.ReadToEnd();
  EXPECT_GT(large.size(), TestHandler::kLargeBytes);
}

TEST(HttpServer, AClientThatClosesItsSideIsGone) {
  TestServer server({});
  Client client(server);
  EXPECT_TRUE(client.Send(Post("/hold", 2, "ab")));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(server.handler.num_gone, 0);
  client.CloseSending();
  EXPECT_EQ(client.ReadToEnd(), "");
  EXPECT_TRUE(Eventually([&] { return server.handler.num_gone == 1; }));
}

TEST(HttpServer, EndsWhenAllHaveTakenTheirResponsesAndTellsWhoseRequestIsNotWhole) {
  TestServer server({});
  Client idle(server);
  Client header(server);
  Client body(server);
  Client held(server);
  Client slow(server);
  EXPECT_TRUE(header.Send("GET /size HTT"));
  EXPECT_TRUE(body.Send(Post("/size", 100, "0123456789")));
  EXPECT_TRUE(held.Send(Post("/hold", 0, "")));
  EXPECT_TRUE(slow.Send(Post("/large", 0, "")));
  std::string large = slow.ReadSome();
  ASSERT_TRUE(Eventually([&] { return server.handler.num_held == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  server.Drain();
  EXPECT_EQ(idle.ReadToEnd(), "");
  EXPECT_THAT(header.ReadToEnd(), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(body.ReadToEnd(), StartsWith("HTTP/1.1 503"));
  header.CloseSending();
  body.CloseSending();
  server.AnswerHeld();
  EXPECT_THAT(held.ReadToEnd(), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("held")));
  EXPECT_FALSE(server.has_ended());
  large += slow.ReadToEnd();
  EXPECT_GT(large.size(), TestHandler::kLargeBytes);
  EXPECT_TRUE(Eventually([&] { return server.has_ended(); }));
}

TEST(HttpServer, EndsWithConnectionsOpenWhileItDrains) {
  TestServer server({});
  Client held(server);
  EXPECT_TRUE(held.Send(Post("/hold", 0, "")));
  ASSERT_TRUE(Eventually([&] { return server.handler.num_held == 1; }));
  server.Drain();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(server.has_ended());
}

TEST(HttpServer, AClientThatHasSentMuchAheadIsGoneWhenItCloses) {
  constexpr size_t kMuch = size_t{32} << 20;  // more than waits in sockets
  TestServer server({});
  {
    Client closing(server);
    EXPECT_TRUE(closing.Send(Post("/hold", 0, "") + std::string(size_t{1} << 20, 'x')));
    ASSERT_TRUE(Eventually([&] { return server.handler.num_held == 1; }));
    EXPECT_EQ(server.handler.num_gone, 0);
  }
  EXPECT_TRUE(Eventually([&] { return server.handler.num_gone == 1; }));
  // What is too much is no request, and the response comes nevertheless.
  Client staying(server);
  EXPECT_TRUE(staying.Send(Post("/hold", 0, "")));
  ASSERT_TRUE(Eventually([&] { return server.handler.num_held == 2; }));
  EXPECT_TRUE(staying.Send(Post("/size", kMuch, std::string(kMuch, 'x'))));
  server.AnswerHeld();
  const std::string answer = staying.ReadToEnd();
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("held")));
  EXPECT_EQ(answer.rfind("HTTP/1.1"), 0u);
}

TEST(HttpServer, AnswersRequestsThatAreAnsweredAtOnceHoweverManyWereSentAhead) {
  TestServer server({});
  Client client(server);
  constexpr int kRequests = 4000;  // more than 64 KiB
  std::string requests;
  for (int i = 0; i < kRequests; ++i) requests += "GET /refused HTTP/1.1\r\nHost: x\r\n\r\n";
  EXPECT_TRUE(client.Send(requests + "GET /size HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  const std::string answers = client.ReadToEnd();
  int num_answers = 0;
  for (size_t at = answers.find("HTTP/1.1 "); at != std::string::npos; ++num_answers) {
    at = answers.find("HTTP/1.1 ", at + 1);
  }
  EXPECT_EQ(num_answers, kRequests + 1);
}

TEST(HttpServer, TakesSoManyConnectionsAndSaysSoToMore) {
  TestServer server({.max_connections = 2});
  Client one(server);
  Client two(server);
  ASSERT_TRUE(Eventually([&] { return server.handler.num_connections == 2; }));
  Client three(server);
  EXPECT_THAT(three.ReadToEnd(), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("Retry-After: 1"),
                                       HasSubstr("(2, --max-connections)")));
  EXPECT_TRUE(one.Send(Post("/size", 3, "abc")));
  EXPECT_THAT(one.ReadSome(), StartsWith("HTTP/1.1 200"));
}

// Whether a POST of so many bytes is answered; the server closes behind it.
bool IsAnswered(const TestServer& server, size_t num_bytes) {
  Client client(server);
  client.Send(fmt::format(
      "POST /size HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}",
      num_bytes, std::string(num_bytes, 'x')));
  return client.ReadToEnd().starts_with("HTTP/1.1 200");
}

TEST(HttpServer, BoundsTheBodiesOfAllClientsTogetherByWhatHasCome) {
  TestServer server({.max_body_bytes = 800, .max_bodies_bytes = 1000, .small_body_bytes = 100});
  // Lengths that are only said take no room, and nor do the beginnings of bodies.
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 5; ++i) {
    silent.push_back(std::make_unique<Client>(server));
    EXPECT_TRUE(silent.back()->Send(Post("/size", 600, "begun")));
  }
  ASSERT_TRUE(Eventually([&] { return server.handler.num_connections == 5; }));
  EXPECT_TRUE(IsAnswered(server, 600));

  Client one(server);
  EXPECT_TRUE(one.Send(Post("/size", 600, std::string(500, 'x'))));
  ASSERT_TRUE(Eventually([&] { return !IsAnswered(server, 600); }));
  Client two(server);
  EXPECT_TRUE(two.Send(Post("/size", 600, "begun")));
  EXPECT_THAT(two.ReadToEnd(), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("Retry-After: 1"),
                                     HasSubstr("1000 bytes"), HasSubstr("--max-body")));
  EXPECT_TRUE(IsAnswered(server, 100));
  Client large(server);
  EXPECT_TRUE(large.Send(Post("/size", 801, "begun")));
  const std::string refusal = large.ReadToEnd();
  EXPECT_THAT(refusal, StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(refusal, HasSubstr("\r\nX-Path: /"));  // the handler knows whose it was
  EXPECT_THAT(refusal, ContainsRegex("\r\nDate: [MTWFS][a-z][a-z], [0-9][0-9] [A-Z][a-z][a-z] "));
  // A body in chunks is refused when there is no room for more of it.
  Client chunked(server);
  EXPECT_TRUE(chunked.Send(
      fmt::format("POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
                  "258\r\n{}\r\n",
                  std::string(600, 'x'))));
  EXPECT_THAT(chunked.ReadToEnd(), StartsWith("HTTP/1.1 503"));
  EXPECT_TRUE(one.Send(std::string(100, 'x')));
  EXPECT_THAT(one.ReadSome(), HasSubstr("600"));
  EXPECT_TRUE(IsAnswered(server, 600));
}

TEST(HttpServer, BoundsWhatSurroundsTheChunksOfABody) {
  constexpr size_t kFlood = size_t{8} << 20;  // far more than is read of it
  TestServer server({.max_body_bytes = 8000});
  const std::string head = "POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  Client extension(server);
  extension.Send(head + "1;" + std::string(kFlood, 'a'));
  EXPECT_THAT(extension.ReadSome(), StartsWith("HTTP/1.1 431"));
  Client trailer(server);
  trailer.Send(head + "0\r\nA: " + std::string(kFlood, 'a'));
  EXPECT_THAT(trailer.ReadSome(), StartsWith("HTTP/1.1 431"));
  Client extensions(server);
  std::string chunks;
  for (int i = 0; i < 100; ++i) chunks += "1;" + std::string(1000, 'a') + "\r\nx\r\n";
  extensions.Send(head + chunks);
  EXPECT_THAT(extensions.ReadSome(), StartsWith("HTTP/1.1 431"));
  // What is usual is passed over.
  Client usual(server);
  EXPECT_TRUE(usual.Send(head + "3;a=b;c\r\nabc\r\n0;d\r\nX: y\r\n\r\n"));
  EXPECT_THAT(usual.ReadSome(), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\r\n\r\n3")));
}

TEST(HttpServer, RefusesBodiesThatAreEncoded) {
  TestServer server({});
  Client packed(server);
  EXPECT_TRUE(packed.Send(
      "POST /size HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"));
  EXPECT_THAT(packed.ReadToEnd(), StartsWith("HTTP/1.1 415"));
  Client plain(server);
  EXPECT_TRUE(
      plain.Send("POST /size HTTP/1.1\r\nHost: x\r\nContent-Encoding: identity\r\nContent-Length: "
                 "3\r\n\r\nabc"));
  EXPECT_THAT(plain.ReadSome(), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, RefusesRequestsWhoseEndOrAddresseeOthersMaySeeElsewhere) {
  TestServer server({});
  const std::string second = "GET /size HTTP/1.1\r\nHost: x\r\n\r\n";
  const auto answers = [&](std::string_view version, std::string_view fields) {
    Client client(server);
    EXPECT_TRUE(
        client.Send(fmt::format("POST /size HTTP/{}\r\n{}\r\n{}", version, fields, second)));
    return client.ReadToEnd();
  };
  for (const char* coding : {"xchunked", "identity", "gzip", "chunked, identity", "gzip, chunked",
                             "chunked;q=1", "chunked, chunked", ""}) {
    const std::string answer =
        answers("1.1", fmt::format("Host: x\r\nTransfer-Encoding: {}\r\n", coding));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400")) << coding;
    EXPECT_EQ(answer.rfind("HTTP/1.1"), 0u) << coding;  // and what follows is no request
  }
  EXPECT_THAT(answers("1.0", "Transfer-Encoding: chunked\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(answers("1.1", ""), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(answers("1.1", "Host: x\r\nHost: y\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(answers("1.0", ""), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, UnderstandsTargetsAsProxiesGetThem) {
  TestServer server({});
  Client client(server);
  EXPECT_TRUE(client.Send(
      "POST HTTP://any:1/size?x=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"));
  EXPECT_THAT(client.ReadSome(), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, AnswersWhatWasSentAheadInItsOrder) {
  TestServer server({});
  Client client(server);
  std::string requests;
  constexpr int kRequests = 200;
  for (int i = 0; i < kRequests; ++i) {
    const std::string body(static_cast<size_t>(i), 'b');
    requests +=
        i % 10 == 3 ? "GET /refused HTTP/1.1\r\nHost: x\r\n\r\n" : Post("/size", body.size(), body);
  }
  requests += "GET /size HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  EXPECT_TRUE(client.Send(requests));
  const std::string answers = client.ReadToEnd();
  size_t at = 0;
  for (int i = 0; i < kRequests; ++i) {
    const std::string body = i % 10 == 3 ? "refused" : fmt::to_string(i);
    at = answers.find("\r\n\r\n" + body, at);
    ASSERT_NE(at, std::string::npos) << i;
    at += 4 + body.size();
  }
}

}  // namespace
}  // namespace convene::server
