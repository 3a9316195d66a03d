#include "cli/bench_server.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "base/quote.h"
#include "base/units.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/parsed_by.h"
#include "cli/value_options.h"
#include "client/run_load.h"
#include "server/http_server.h"

namespace convene::cli {
namespace {

constexpr int64_t kFilesOfServer = 64;  // descriptors that are no connections

Status CheckOpenFiles(const std::vector<int>& num_clients) {
  const int most = *std::ranges::max_element(num_clients);
  const int64_t limit = server::RaiseOpenFiles() - kFilesOfServer;
  if (most <= limit) return {};
  return Error{
      fmt::format("{} clients need more open files than the system allows ({}); lower "
                  "--batch, or raise the limit (ulimit -n)",
                  most, limit + kFilesOfServer)};
}

uint64_t RandomSeed() {
  std::random_device random;
  return random();
}

// Of a server that had computed some prompts before: its first tokens came sooner than new ones do.
std::string RemarkOnCache(const client::LoadFigures& figures) {
  if (figures.mean_cached_tokens == 0) return "";
  return fmt::format(
      "         the server had {:.1f} of the {:.1f} tokens of a prompt from before; run it with "
      "another --seed for prompts that are new\n",
      figures.mean_cached_tokens, figures.mean_prompt_tokens);
}

}  // namespace

void ServerBench::AddOptions(CLI::App& app, const std::vector<std::string>& shared) {
  const std::vector<const CLI::Option*> before =
      std::as_const(app).get_options([](const CLI::Option*) { return true; });
  CLI::Option* server =
      app.add_option("--server", url_,
                     "Instead of MODEL: a running server that speaks OpenAI's API; --batch is the "
                     "number of streaming clients at the same time")
          ->check(ParsedBy(client::ParseServerUrl))
          ->type_name("URL");
  for (const CLI::Option* option : before) {
    const std::string name = option->get_name();
    const bool is_shared = std::ranges::any_of(
        shared, [&](const std::string& known) { return option->check_name(known); });
    if (!is_shared) server->excludes(app.get_option(name));
  }
  AddNumber(app, "--requests", requests_per_client_, {1, 1 << 24},
            "Requests of each client, one after the other (default: 1)")
      ->needs(server);
  AddText(app, "--model-name", model_name_, "As requests name it (default: the server's first)")
      ->needs(server)
      ->group(kRareOptions);
  AddText(app, "--api-key", api_key_, "Sent as a Bearer token")->needs(server)->group(kRareOptions);
  app.add_flag("--reconnect", reconnects_, "A new connection for each request")
      ->needs(server)
      ->group(kRareOptions);
}

Status ServerBench::Run(const Shape& shape) const {
  const Result<client::ServerUrl> url = client::ParseServerUrl(url_);
  if (!url) return url.error();
  if (const Status allowed = CheckOpenFiles(shape.num_clients); !allowed) return allowed;
  client::LoadOptions options{.url = *url,
                              .model = model_name_.value_or(""),
                              .api_key = api_key_.value_or(""),
                              .requests_per_client = requests_per_client_,
                              .prompt_words = shape.prompt_words,
                              .gen_tokens = shape.gen_tokens,
                              .seed = shape.seed.value_or(RandomSeed()),
                              .reconnects = reconnects_};
  if (!model_name_) {
    Result<std::string> name = client::AskModelName(*url, options.api_key);
    if (!name) return name.error();
    options.model = *std::move(name);
  }
  const Status told = WriteReport(
      {shape.json_path},
      fmt::format("{} at http://{}: prompts of {} (seed {}), {} to generate, {} of each "
                  "client\n{}",
                  options.model, url->authority(),
                  FormatCount(static_cast<uint64_t>(shape.prompt_words), "word"), options.seed,
                  FormatCount(static_cast<uint64_t>(shape.gen_tokens), "token"),
                  FormatCount(static_cast<uint64_t>(requests_per_client_), "request"),
                  client::LoadTableHeader()));
  if (!told) return told;
  nlohmann::ordered_json loads = nlohmann::ordered_json::array();
  std::map<std::string, int64_t> errors;
  for (const int num_clients : shape.num_clients) {
    options.num_clients = num_clients;
    options.load_idx = static_cast<int>(loads.size());
    const Result<client::LoadRecord> record = client::RunLoad(options);
    if (!record) return record.error();
    const client::LoadFigures figures = FiguresOf(*record);
    for (const auto& [message, count] : figures.errors) errors[message] += count;
    loads.push_back(ToJson(figures));
    const Status shown =
        WriteReport({shape.json_path}, client::LoadTableRow(figures) + RemarkOnCache(figures));
    if (!shown) return shown;
  }
  const nlohmann::ordered_json json = {{"server", url_},
                                       {"model", options.model},
                                       {"prompt_words", shape.prompt_words},
                                       {"gen_tokens", shape.gen_tokens},
                                       {"requests_per_client", requests_per_client_},
                                       {"reconnects", reconnects_},
                                       {"seed", options.seed},
                                       {"loads", std::move(loads)}};
  if (const Status written = WriteJson(shape.json_path, json); !written) return written;
  if (errors.empty()) return {};
  int64_t num_errors = 0;
  for (const auto& [message, count] : errors) num_errors += count;
  return Unavailable(fmt::format("{} failed; {} of them so: {}",
                                 FormatCount(static_cast<uint64_t>(num_errors), "request"),
                                 errors.begin()->second, errors.begin()->first));
}

}  // namespace convene::cli
