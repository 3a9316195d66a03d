// One of many streaming clients of a server that speaks OpenAI's API: it sends a completion, reads
// its events as they come, and then the next one. What it saw goes into a LoadRecord.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "client/event_stream.h"
#include "client/load_figures.h"
#include "client/server_url.h"

namespace convene::client {

struct LoadOptions {
  ServerUrl url;
  std::string model;         // as the server names it
  std::string api_key = {};  // empty: none is sent
  int num_clients = 1;
  int requests_per_client = 1;
  int prompt_words = 512;  // frequent English words, which most vocabularies have as a token each
  int gen_tokens = 64;
  uint64_t seed = 1;        // of the prompts
  int load_idx = 0;         // loads of one seed differ in all of their prompts, too
  bool reconnects = false;  // a connection for each request
  // Without a byte from the server a request has failed.
  std::chrono::seconds timeout{300};
};

class LoadClient {
 public:
  using Endpoints = boost::asio::ip::tcp::resolver::results_type;
  using Clock = std::chrono::steady_clock;

  // Keeps references; `record` belongs to all clients, which run on one thread.
  LoadClient(boost::asio::io_context& context, const LoadOptions& options,
             const Endpoints& endpoints, Clock::time_point start, int client_idx,
             LoadRecord& record);
  LoadClient(const LoadClient&) = delete;
  LoadClient& operator=(const LoadClient&) = delete;

  // It must live until the context has no more work.
  void Start() { NextRequest(); }

 private:
  using ErrorCode = boost::system::error_code;
  using Message = boost::beast::http::request<boost::beast::http::string_body>;
  using Parser = boost::beast::http::response_parser<boost::beast::http::string_body>;

  void NextRequest();
  void Connect();
  void Send();
  void ReadHead();
  void ReadBody();
  void TakeBody();
  void TakeEvent(const std::string& data);
  void TakePiece();
  void End();
  void EndWith(std::string error);
  std::string RefusalText() const;

  double Now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  const LoadOptions& options_;
  const Endpoints& endpoints_;
  const Clock::time_point start_;
  const int client_idx_;
  LoadRecord& record_;

  boost::beast::tcp_stream stream_;
  bool is_connected_ = false;
  boost::beast::flat_buffer buffer_;
  Message message_;
  std::optional<Parser> parser_;
  EventStream events_;
  std::string refusal_;  // the body of a response that is no stream
  bool has_done_ = false;
  int num_begun_ = 0;
  RequestRecord request_;
  bool has_streamed_ = false;
};

// The prompt of a client's request: options.prompt_words, the same for the same seed, load, client
// and request, and otherwise another one from its first words on: a server that keeps the
// beginnings of prompts has none of them.
std::string LoadPrompt(const LoadOptions& options, int client_idx, int request_idx);

}  // namespace convene::client
