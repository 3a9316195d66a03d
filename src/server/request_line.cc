#include "server/request_line.h"

#include <fmt/format.h>

namespace convene::server {
namespace {

constexpr const char* kClientGone = "499";  // as nginx has it

}  // namespace

LogFields EndedRequest(const RequestHead& head, const Exchange& exchange,
                       const std::string& prompt_text) {
  const RequestFigures figures = exchange.Figures();
  const int status = exchange.error() ? exchange.error()->status : 200;
  LogFields fields = {{"event", "request"},
                      {"id", exchange.id()},
                      {"client", head.client},
                      {"path", head.path},
                      {"stream", exchange.streams() ? "true" : "false"},
                      {"status", figures.finish == "abort" ? kClientGone : fmt::to_string(status)},
                      {"finish", figures.finish},
                      {"prompt_tokens", fmt::to_string(figures.num_prompt_tokens)},
                      {"cached_tokens", fmt::to_string(figures.num_cached_tokens)},
                      {"completion_tokens", fmt::to_string(figures.num_generated_tokens)},
                      {"queue_s", fmt::format("{:.4f}", figures.queue_s)},
                      {"ttft_s", fmt::format("{:.4f}", figures.ttft_s)},
                      {"total_s", fmt::format("{:.4f}", figures.total_s)}};
  if (exchange.error()) fields.emplace_back("error", exchange.error()->message);
  if (!prompt_text.empty()) fields.emplace_back("prompt", prompt_text);
  return fields;
}

LogFields GoneRequest(const RequestHead& head, double total_s) {
  return {{"event", "request"}, {"client", head.client},
          {"path", head.path},  {"status", kClientGone},
          {"finish", "abort"},  {"total_s", fmt::format("{:.4f}", total_s)}};
}

}  // namespace convene::server
