#include "client/load_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace convene::client {
namespace {

using nlohmann::ordered_json;

constexpr double kMedian = 0.5;
constexpr double kP99 = 0.99;
constexpr double kMilli = 1e-3;

Times TimesOf(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  return {.median_s = Quantile(seconds, kMedian),
          .p99_s = Quantile(seconds, kP99),
          .max_s = Quantile(seconds, 1)};
}

ordered_json OrNull(std::optional<double> value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json ToJson(const Times& times) {
  return {{"median", OrNull(times.median_s)},
          {"p99", OrNull(times.p99_s)},
          {"max", OrNull(times.max_s)}};
}

std::string Milliseconds(std::optional<double> seconds) {
  return seconds ? fmt::format("{:.2f}", *seconds / kMilli) : "-";
}

// The sum over all clients, of pieces that came from `from_s` to `to_s`.
std::optional<double> PiecesPerSecond(const LoadRecord& record, double from_s, double to_s) {
  struct Seen {
    double first_s = 0;
    double last_s = 0;
    int64_t count = 0;
  };
  std::vector<Seen> clients(static_cast<size_t>(record.num_clients));
  for (const auto& [client_idx, at_s] : record.pieces) {
    if (at_s < from_s || at_s > to_s) continue;
    Seen& seen = clients[static_cast<size_t>(client_idx)];
    if (seen.count++ == 0) seen.first_s = at_s;
    seen.last_s = at_s;
  }
  double sum = 0;
  for (const Seen& seen : clients) {
    if (seen.last_s <= seen.first_s) return std::nullopt;
    sum += static_cast<double>(seen.count - 1) / (seen.last_s - seen.first_s);
  }
  return sum;
}

}  // namespace

std::optional<double> Quantile(const std::vector<double>& sorted_values, double share) {
  if (sorted_values.empty()) return std::nullopt;
  const auto rank =
      static_cast<size_t>(std::ceil(share * static_cast<double>(sorted_values.size())));
  return sorted_values[std::clamp<size_t>(rank, 1, sorted_values.size()) - 1];
}

int64_t LoadFigures::num_errors() const {
  int64_t sum = 0;
  for (const auto& [message, count] : errors) sum += count;
  return sum;
}

LoadFigures FiguresOf(const LoadRecord& record) {
  LoadFigures figures{.num_clients = record.num_clients,
                      .num_requests = std::ssize(record.requests),
                      .total_s = record.total_s,
                      .client_cpu_s = record.client_cpu_s};
  std::vector<double> first_tokens;
  int64_t num_answered = 0;
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;
  for (const RequestRecord& request : record.requests) {
    figures.num_tokens += request.num_tokens;
    if (request.first_s) first_tokens.push_back(*request.first_s - request.start_s);
    if (!request.error.empty()) {
      ++figures.errors[request.error];
      continue;
    }
    ++num_answered;
    num_prompt_tokens += request.num_prompt_tokens;
    num_cached_tokens += request.num_cached_tokens;
  }
  if (num_answered > 0) {
    const auto count = static_cast<double>(num_answered);
    figures.mean_prompt_tokens = static_cast<double>(num_prompt_tokens) / count;
    figures.mean_cached_tokens = static_cast<double>(num_cached_tokens) / count;
  }
  figures.first_token = TimesOf(std::move(first_tokens));
  figures.gap = TimesOf({record.gaps_s.begin(), record.gaps_s.end()});
  const auto num_tokens = static_cast<double>(figures.num_tokens);
  if (record.total_s > 0) figures.overall_tokens_per_s = num_tokens / record.total_s;
  const double from = record.all_stream_from_s;
  const double to = record.all_stream_to_s;
  if (record.num_streamed < record.num_clients || to <= from) return figures;
  figures.all_stream_s = to - from;
  const std::optional<double> pieces_per_s = PiecesPerSecond(record, from, to);
  if (!pieces_per_s) return figures;
  // A piece may hold several tokens, where one by itself is not whole text.
  figures.tokens_per_s = *pieces_per_s * num_tokens / static_cast<double>(record.pieces.size());
  return figures;
}

ordered_json ToJson(const LoadFigures& figures) {
  ordered_json errors = ordered_json::object();
  for (const auto& [message, count] : figures.errors) errors[message] = count;
  return {{"clients", figures.num_clients},
          {"requests", figures.num_requests},
          {"errors", figures.num_errors()},
          {"errors_by_message", std::move(errors)},
          {"mean_prompt_tokens", figures.mean_prompt_tokens},
          {"mean_cached_tokens", figures.mean_cached_tokens},
          {"generated_tokens", figures.num_tokens},
          {"time_to_first_token_s", ToJson(figures.first_token)},
          {"gap_between_tokens_s", ToJson(figures.gap)},
          {"tokens_per_s_while_all_stream", OrNull(figures.tokens_per_s)},
          {"all_stream_s", figures.all_stream_s},
          {"tokens_per_s_overall", figures.overall_tokens_per_s},
          {"seconds", figures.total_s},
          {"client_cpu_s", figures.client_cpu_s}};
}

std::string LoadTableHeader() {
  return "clients  requests  errors  tokens/s while all stream  overall   first token ms  (p99)  "
         "  gap ms  (p99)     client CPU\n";
}

std::string LoadTableRow(const LoadFigures& figures) {
  const std::string cpu =
      fmt::format("{:.1f} s of {:.1f} s", figures.client_cpu_s, figures.total_s);
  return fmt::format("{:>7}{:>10}{:>8}{:>27}{:>9.0f}{:>17}{:>9}{:>9}{:>9}  {}\n",
                     figures.num_clients, figures.num_requests, figures.num_errors(),
                     figures.tokens_per_s ? fmt::format("{:.0f}", *figures.tokens_per_s) : "-",
                     figures.overall_tokens_per_s, Milliseconds(figures.first_token.median_s),
                     Milliseconds(figures.first_token.p99_s), Milliseconds(figures.gap.median_s),
                     Milliseconds(figures.gap.p99_s), cpu);
}

}  // namespace convene::client
