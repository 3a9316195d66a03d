#include "client/run_load.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <string>
#include <thread>
#include <utility>

namespace convene::client {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using ::testing::HasSubstr;

// Answers one request, whatever it is, with a body, and ends.
class OneAnswer {
 public:
  explicit OneAnswer(std::string body)
      : acceptor_(context_, {asio::ip::address_v4::loopback(), 0}),
        url_{.host = "127.0.0.1",
             .port = fmt::to_string(acceptor_.local_endpoint().port()),
             .base = {}},
        thread_([this, body = std::move(body)] { Answer(body); }) {}

  const ServerUrl& url() const { return url_; }

 private:
  void Answer(const std::string& body) {
    boost::system::error_code error;
    tcp::socket socket(context_);
    acceptor_.accept(socket, error);
    boost::beast::flat_buffer buffer;
    http::request<http::string_body> request;
    http::read(socket, buffer, request, error);
    const std::string text = fmt::format(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
    asio::write(socket, asio::buffer(text), error);
  }

  asio::io_context context_;
  tcp::acceptor acceptor_;
  ServerUrl url_;
  std::jthread thread_;
};

std::string ModelNameOf(const std::string& answer) {
  const OneAnswer server(answer);
  const Result<std::string> name = AskModelName(server.url(), "");
  return name ? *name : "error: " + name.error().message;
}

TEST(RunLoad, TellsAServerWithoutModelFromOneThatSaysSomethingElse) {
  EXPECT_EQ(ModelNameOf(R"({"data": [{"id": "m"}, {"id": "n"}]})"), "m");
  EXPECT_THAT(ModelNameOf(R"({"object": "list", "data": []})"),
              HasSubstr("error: the server has no model yet"));
  for (const char* answer : {"", "[]", "{}", R"({"data": {}})", R"({"data": [3]})"}) {
    EXPECT_THAT(ModelNameOf(answer), HasSubstr("is no list of models")) << answer;
  }
}

// The only request's record, of a stream with one piece and that usage.
RequestRecord RecordOf(const std::string& usage) {
  const OneAnswer server(
      fmt::format("data: {{\"choices\": [{{\"text\": \"a\"}}]}}\n\n"
                  "data: {{\"choices\": [], \"usage\": {}}}\n\ndata: [DONE]\n\n",
                  usage));
  const Result<LoadRecord> record =
      RunLoad({.url = server.url(), .model = "m", .prompt_words = 3, .gen_tokens = 1});
  EXPECT_TRUE(record.ok());
  EXPECT_EQ(record->requests.size(), 1u);
  return record->requests.front();
}

TEST(RunLoad, CountsThatAreNoNumbersAreLeftOut) {
  const RequestRecord whole = RecordOf(R"({"prompt_tokens": 3, "completion_tokens": 1, )"
                                       R"("prompt_tokens_details": {"cached_tokens": 2}})");
  EXPECT_EQ(whole.error, "");
  EXPECT_EQ(whole.num_prompt_tokens, 3);
  EXPECT_EQ(whole.num_cached_tokens, 2);
  const RequestRecord odd = RecordOf(R"({"prompt_tokens": null, "completion_tokens": "many", )"
                                     R"("prompt_tokens_details": {"cached_tokens": [2]}})");
  EXPECT_EQ(odd.error, "");
  EXPECT_EQ(odd.num_prompt_tokens, 0);
  EXPECT_EQ(odd.num_tokens, 1);  // its pieces
  EXPECT_EQ(odd.num_cached_tokens, 0);
}

}  // namespace
}  // namespace convene::client
