#include "client/run_load.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <limits>
#include <memory>
#include <vector>

#include "base/json.h"
#include "base/quote.h"

namespace convene::client {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr std::chrono::seconds kAskTimeout{30};

double CpuSeconds() {
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Result<tcp::resolver::results_type> Resolve(asio::io_context& context, const ServerUrl& url) {
  ErrorCode error;
  auto found = tcp::resolver(context).resolve(url.host, url.port, error);
  if (!error) return found;
  return Unavailable(fmt::format("{} is not known: {}", Quote(url.host), error.message()));
}

struct Answer {
  ErrorCode error;
  unsigned status = 0;
  std::string body;
};

// The timeouts of Beast's streams are of asynchronous operations alone.
Answer Get(asio::io_context& context, const tcp::resolver::results_type& endpoints,
           const http::request<http::empty_body>& request) {
  Answer answer;
  beast::tcp_stream stream(context);
  beast::flat_buffer buffer;
  http::response<http::string_body> response;
  stream.expires_after(kAskTimeout);
  stream.async_connect(endpoints, [&](ErrorCode failed, const auto&) {
    answer.error = failed;
    if (failed) return;
    http::async_write(stream, request, [&](ErrorCode unsent, size_t) {
      answer.error = unsent;
      if (unsent) return;
      http::async_read(stream, buffer, response,
                       [&](ErrorCode unread, size_t) { answer.error = unread; });
    });
  });
  context.run();
  answer.status = response.result_int();
  answer.body = response.body();
  return answer;
}

}  // namespace

Result<std::string> AskModelName(const ServerUrl& url, const std::string& api_key) {
  asio::io_context context{1};
  const auto endpoints = Resolve(context, url);
  if (!endpoints) return endpoints.error();
  http::request<http::empty_body> request{http::verb::get, url.base + "/v1/models", 11};
  request.set(http::field::host, url.authority());
  if (!api_key.empty()) request.set(http::field::authorization, "Bearer " + api_key);
  request.keep_alive(false);
  const Answer answer = Get(context, *endpoints, request);
  if (answer.error) {
    return Unavailable(
        fmt::format("no server answers at http://{}: {}; start one, or give the URL "
                    "of one that runs",
                    url.authority(), answer.error.message()));
  }
  if (answer.status != 200) {
    return Unavailable(fmt::format("the server answers {}/v1/models with status {}: {}", url.base,
                                   answer.status, Quote(answer.body)));
  }
  const auto models = ParseJson(answer.body);
  if (models && models->is_object() && models->contains("data") && (*models)["data"].is_array()) {
    if ((*models)["data"].empty()) {
      return Unavailable(fmt::format(
          "the server has no model yet ({}/v1/models lists none): try again when it has loaded it",
          url.base));
    }
    const auto& first = (*models)["data"].front();
    if (first.is_object() && first.contains("id") && first["id"].is_string()) {
      return first["id"].get<std::string>();
    }
  }
  return Unavailable(fmt::format(
      "what the server answers at {}/v1/models is no list of models; give --model-name", url.base));
}

Result<LoadRecord> RunLoad(const LoadOptions& options) {
  asio::io_context context{1};
  const auto endpoints = Resolve(context, options.url);
  if (!endpoints) return endpoints.error();
  LoadRecord record{.num_clients = options.num_clients,
                    .all_stream_to_s = std::numeric_limits<double>::infinity()};
  const double cpu_before = CpuSeconds();
  const LoadClient::Clock::time_point start = LoadClient::Clock::now();
  std::vector<std::unique_ptr<LoadClient>> clients;
  for (int i = 0; i < options.num_clients; ++i) {
    clients.push_back(std::make_unique<LoadClient>(context, options, *endpoints, start, i, record));
    clients.back()->Start();
  }
  context.run();
  record.total_s = std::chrono::duration<double>(LoadClient::Clock::now() - start).count();
  record.client_cpu_s = CpuSeconds() - cpu_before;
  return record;
}

}  // namespace convene::client
