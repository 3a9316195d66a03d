#include "client/load_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/quote.h"

namespace convene::client {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;

constexpr std::array<std::string_view, 48> kWords = {
    "the",  "of",   "and",  "to",    "in",    "that", "he",   "was", "it",    "his",
    "with", "is",   "as",   "had",   "for",   "you",  "at",   "her", "not",   "be",
    "on",   "but",  "have", "him",   "she",   "from", "this", "all", "which", "by",
    "they", "were", "so",   "said",  "one",   "me",   "what", "we",  "would", "there",
    "no",   "out",  "when", "their", "could", "up",   "been", "man"};

// What servers say of a request that they refuse is a line or two.
constexpr size_t kMaxRefusalBytes = 4096;
// An event is a token with its frame; a server that never ends one would fill the memory.
constexpr size_t kMaxEventBytes = size_t{1} << 20;

// 0 where a server writes something else, such as null.
int64_t CountIn(const nlohmann::json& usage, const char* name) {
  const auto found = usage.find(name);
  const bool is_count = found != usage.end() && found->is_number_integer();
  return is_count ? found->get<int64_t>() : 0;
}

}  // namespace

std::string LoadPrompt(const LoadOptions& options, int client_idx, int request_idx) {
  std::seed_seq mixed = {options.seed & 0xffffffffu, options.seed >> 32, uint64_t(options.load_idx),
                         uint64_t(client_idx), uint64_t(request_idx)};
  std::mt19937_64 random(mixed);
  std::string prompt;
  for (int i = 0; i < options.prompt_words; ++i) {
    if (i > 0) prompt += ' ';
    prompt += kWords[random() % kWords.size()];
  }
  return prompt;
}

LoadClient::LoadClient(boost::asio::io_context& context, const LoadOptions& options,
                       const Endpoints& endpoints, Clock::time_point start, int client_idx,
                       LoadRecord& record)
    : options_(options),
      endpoints_(endpoints),
      start_(start),
      client_idx_(client_idx),
      record_(record),
      stream_(context) {}

void LoadClient::NextRequest() {
  if (num_begun_ == options_.requests_per_client) {
    if (is_connected_) stream_.close();
    // The first client that has nothing more to stream ends the time in which all do.
    record_.all_stream_to_s = std::min(record_.all_stream_to_s, request_.last_s);
    return;
  }
  const nlohmann::ordered_json body = {{"model", options_.model},
                                       {"prompt", LoadPrompt(options_, client_idx_, num_begun_)},
                                       {"max_tokens", options_.gen_tokens},
                                       {"temperature", 1},
                                       {"seed", client_idx_},
                                       {"ignore_eos", true},
                                       {"stream", true},
                                       {"stream_options", {{"include_usage", true}}}};
  ++num_begun_;
  message_ = {};
  message_.method(http::verb::post);
  message_.target(options_.url.base + "/v1/completions");
  message_.version(11);
  message_.set(http::field::host, options_.url.authority());
  message_.set(http::field::content_type, "application/json");
  message_.set(http::field::accept, "text/event-stream");
  if (!options_.api_key.empty()) {
    message_.set(http::field::authorization, "Bearer " + options_.api_key);
  }
  message_.keep_alive(!options_.reconnects);
  message_.body() = body.dump();
  message_.prepare_payload();
  request_ = {.start_s = Now(), .first_s = {}};
  events_ = {};
  refusal_.clear();
  has_done_ = false;
  if (is_connected_) return Send();
  Connect();
}

void LoadClient::Connect() {
  buffer_.clear();
  stream_.expires_after(options_.timeout);
  stream_.async_connect(endpoints_, [this](ErrorCode error, const auto&) {
    if (error) return EndWith(fmt::format("cannot connect: {}", error.message()));
    is_connected_ = true;
    ErrorCode ignored;
    stream_.socket().set_option(boost::asio::ip::tcp::no_delay(true), ignored);
    Send();
  });
}

void LoadClient::Send() {
  stream_.expires_after(options_.timeout);
  http::async_write(stream_, message_, [this](ErrorCode error, size_t) {
    if (error) return EndWith(fmt::format("cannot send: {}", error.message()));
    ReadHead();
  });
}

void LoadClient::ReadHead() {
  parser_.emplace();
  parser_->body_limit(std::numeric_limits<uint64_t>::max());
  parser_->eager(true);
  http::async_read_header(stream_, buffer_, *parser_, [this](ErrorCode error, size_t) {
    if (error) return EndWith(fmt::format("no response came: {}", error.message()));
    TakeBody();
  });
}

void LoadClient::ReadBody() {
  stream_.expires_after(options_.timeout);
  http::async_read_some(stream_, buffer_, *parser_, [this](ErrorCode error, size_t) {
    if (error == http::error::end_of_stream || error == http::error::partial_message ||
        error == boost::asio::error::connection_reset) {
      return EndWith("the connection was closed before the answer was whole");
    }
    if (error) return EndWith(fmt::format("the stream broke off: {}", error.message()));
    TakeBody();
  });
}

void LoadClient::TakeBody() {
  std::string& body = parser_->get().body();
  const bool is_stream = parser_->get().result() == http::status::ok;
  if (is_stream) {
    for (const std::string& data : events_.Push(body)) TakeEvent(data);
    if (events_.pending_bytes() > kMaxEventBytes) {
      return EndWith(fmt::format("an event has more than {} bytes", kMaxEventBytes));
    }
  } else if (refusal_.size() < kMaxRefusalBytes) {
    refusal_ += body;
  }
  body.clear();
  if (!parser_->is_done()) return ReadBody();
  if (!parser_->get().keep_alive() || options_.reconnects) {
    stream_.close();
    is_connected_ = false;
  }
  if (!is_stream) return EndWith(RefusalText());
  if (request_.error.empty() && !has_done_) request_.error = "the stream ended without [DONE]";
  // What the server counts; where it does not, several tokens may have come in one piece.
  if (request_.error.empty() && request_.num_tokens > 0 &&
      request_.num_tokens < options_.gen_tokens) {
    request_.error = fmt::format(
        "the answer ended after {} of {} tokens; where that is the server's context, take shorter "
        "prompts or answers",
        request_.num_tokens, options_.gen_tokens);
  }
  End();
}

void LoadClient::TakeEvent(const std::string& data) {
  if (data == "[DONE]") {
    has_done_ = true;
    return;
  }
  const nlohmann::json event = nlohmann::json::parse(data, nullptr, false);
  if (!event.is_object()) {
    request_.error = "an event is not JSON: " + Quote(data);
    return;
  }
  if (event.contains("error"))
    request_.error = "within the stream: " + Quote(event["error"].dump());
  if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
    request_.num_prompt_tokens = CountIn(*usage, "prompt_tokens");
    request_.num_tokens = CountIn(*usage, "completion_tokens");
    const auto details = usage->find("prompt_tokens_details");
    if (details != usage->end() && details->is_object()) {
      request_.num_cached_tokens = CountIn(*details, "cached_tokens");
    }
  }
  const auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array() || choices->empty()) return;
  const auto text = choices->front().find("text");
  if (text == choices->front().end() || !text->is_string()) return;
  if (!text->get_ref<const std::string&>().empty()) TakePiece();
}

void LoadClient::TakePiece() {
  const double now = Now();
  ++request_.num_pieces;
  record_.pieces.push_back({client_idx_, now});
  if (!request_.first_s) {
    request_.first_s = now;
  } else {
    record_.gaps_s.push_back(static_cast<float>(now - request_.last_s));
  }
  request_.last_s = now;
  if (std::exchange(has_streamed_, true)) return;
  ++record_.num_streamed;
  record_.all_stream_from_s = std::max(record_.all_stream_from_s, now);
}

std::string LoadClient::RefusalText() const {
  const auto body = nlohmann::json::parse(refusal_, nullptr, false);
  std::string why = refusal_;
  if (body.is_object() && body.contains("error") && body["error"].is_object()) {
    const auto message = body["error"].find("message");
    if (message != body["error"].end() && message->is_string()) why = message->get<std::string>();
  }
  return fmt::format("status {}: {}", parser_->get().result_int(), Quote(why));
}

void LoadClient::EndWith(std::string error) {
  const bool may_go_on = parser_ && parser_->is_done();
  if (!may_go_on) {
    stream_.close();
    is_connected_ = false;
  }
  request_.error = std::move(error);
  End();
}

void LoadClient::End() {
  parser_.reset();
  if (request_.num_tokens == 0) request_.num_tokens = request_.num_pieces;
  record_.requests.push_back(request_);
  // Not from within the handler that has found the end: a server that refuses at once would make
  // the stack as deep as there are requests.
  boost::asio::post(stream_.get_executor(), [this] { NextRequest(); });
}

}  // namespace convene::client
