// What many streaming clients of a server saw, request by request, and the figures that follow from
// it. How the requests are made is load_client.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace convene::client {

// All times are seconds since the load began.
struct RequestRecord {
  double start_s = 0;                  // it was sent, or its connection was begun
  std::optional<double> first_s = {};  // its first piece of text came
  double last_s = 0;                   // its last one came
  int64_t num_pieces = 0;              // events with text; mostly one token each
  int64_t num_prompt_tokens = 0;       // as the server's usage says; 0: it says nothing
  int64_t num_cached_tokens = 0;       // of the prompt: the server had them, as its usage says
  int64_t num_tokens = 0;              // generated, as the server's usage says, or else num_pieces
  std::string error = {};              // empty: the answer came whole
};

struct Piece {
  int client_idx = 0;
  double at_s = 0;
};

struct LoadRecord {
  int num_clients = 0;
  std::vector<RequestRecord> requests = {};
  std::vector<float> gaps_s = {};  // between two pieces of a request
  std::vector<Piece> pieces = {};  // of all clients, as they came
  // From the last client's first piece to the first client's last one.
  double all_stream_from_s = 0;
  double all_stream_to_s = 0;
  int num_streamed = 0;     // clients that got a first piece
  double total_s = 0;       // until the last request had ended
  double client_cpu_s = 0;  // processor time of this process
};

// Of sorted `values`, the one below or at which the share lies (nearest rank); nothing: none.
std::optional<double> Quantile(const std::vector<double>& sorted_values, double share);

struct Times {
  std::optional<double> median_s;
  std::optional<double> p99_s;
  std::optional<double> max_s;
};

struct LoadFigures {
  int num_clients = 0;
  int64_t num_requests = 0;
  std::map<std::string, int64_t> errors = {};  // by message
  double mean_prompt_tokens = 0;               // of requests that were answered
  double mean_cached_tokens = 0;               // of these prompts, which the server did not compute
  int64_t num_tokens = 0;
  Times first_token = {};
  Times gap = {};
  // Generated tokens per second while all clients were streaming; nothing where they never were, or
  // not for two pieces of each. The sum of what each client saw between its first piece and its
  // last one of that time: a step brings pieces for all at almost one moment, and to count them
  // between moments of different clients would lose a step's.
  std::optional<double> tokens_per_s = {};
  double all_stream_s = 0;          // how long they were
  double overall_tokens_per_s = 0;  // from the first request to the last answer
  double total_s = 0;
  double client_cpu_s = 0;

  int64_t num_errors() const;
};

LoadFigures FiguresOf(const LoadRecord& record);

nlohmann::ordered_json ToJson(const LoadFigures& figures);

// Lines of a table for people, with their line breaks.
std::string LoadTableHeader();
std::string LoadTableRow(const LoadFigures& figures);

}  // namespace convene::client
