// `convene bench --server URL`: many streaming clients against a server that runs, and what they
// saw. The clients are client/load_client.h; a model of this process is bench.cc's matter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/cli11_fwd.h"

namespace convene::cli {

class ServerBench {
 public:
  // --server and what goes with it alone. `shared`: options of `app` that both ways of benchmarking
  // have; the others, which are of a model in this process, are refused beside --server.
  void AddOptions(CLI::App& app, const std::vector<std::string>& shared);

  bool is_wanted() const { return !url_.empty(); }

  // What both have: words of a prompt, generated tokens, how many clients at the same time (one
  // load after the other), where the figures go.
  struct Shape {
    int prompt_words = 0;
    int gen_tokens = 0;
    std::vector<int> num_clients;
    std::optional<uint64_t> seed;  // of the prompts; none: another one at each run
    std::string json_path;
  };
  // Error: no server answers, or requests failed; the figures are written before.
  Status Run(const Shape& shape) const;

 private:
  std::string url_;
  std::optional<std::string> model_name_;
  std::optional<std::string> api_key_;
  int requests_per_client_ = 1;
  bool reconnects_ = false;
};

}  // namespace convene::cli
