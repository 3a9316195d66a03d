#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/environment.h"
#include "base/message.h"
#include "base/read_file.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/plan_again.h"
#include "cli/sampling_options.h"
#include "cli/value_options.h"
#include "comm/under_way.h"
#include "engine/engine.h"
#include "openai/answer_forms.h"
#include "plan/plan.h"
#include "server/http_server.h"
#include "server/server.h"
#include "text/chat_template.h"

namespace convene::cli {
namespace {

CLI::Validator NotEmpty() {
  return {
      [](const std::string& text) { return text.empty() ? "the text is empty" : std::string(); },
      ""};
}

// As browsers write it into a request's field Origin: any other text would never be met.
std::string CheckOrigin(const std::string& text) {
  constexpr const char* kWanted =
      "must be SCHEME://HOST or SCHEME://HOST:PORT in small letters, 'null' or '*'";
  if (text == "*" || text == "null") return "";
  const size_t scheme = text.find("://");
  const std::string host = scheme == std::string::npos ? "" : text.substr(scheme + 3);
  const bool is_plain = std::ranges::none_of(
      text, [](unsigned char c) { return c <= ' ' || c > '~' || (c >= 'A' && c <= 'Z'); });
  const bool is_origin =
      scheme != 0 && !host.empty() && host.find_first_of("/?#@*") == std::string::npos;
  return is_plain && is_origin ? "" : kWanted;
}

constexpr int kMaxSeconds = 24 * 60 * 60;
// Enough for a gigabyte or more where a machine gives memory slowly.
constexpr double kKvMemoryS = 2;
constexpr int64_t kOtherFiles = 64;  // descriptors that are no connections
constexpr uint64_t kMaxKeyFileBytes = 1 << 20;

// --quiet may stand before the command and behind it.
bool IsQuiet(const CLI::App& app) {
  const auto is_given = [](const CLI::App* at) {
    return at != nullptr && at->get_option("--quiet")->count() > 0;
  };
  return is_given(&app) || is_given(app.get_parent());
}

class Serve : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app_ = &app;
    app.description(app.get_description() +
                    "\nPOST /v1/chat/completions, /v1/completions, /v1/responses, /tokenize, "
                    "/detokenize; GET /v1/models, /v1/plan, /v1/steps/last, /health, /metrics, "
                    "/version; a page at /. SIGTERM ends it once accepted "
                    "requests are answered. docs/serving.md has examples.");
    AddPath(app, "--host", options_.host, "Address to listen at (default: 127.0.0.1)")
        ->type_name("HOST");
    AddNumber(app, "--port", options_.port, {0, 65535}, "Port (default: 8080; 0: any free one)");
    AddText(app, "--model-name", model_name_, "As requests name it (default: the directory's)")
        ->check(NotEmpty());
    model_.max_batch =
        AddNumber(app, "--max-batch", model_.load.max_sequences, {1, plan::kMostSequences},
                  fmt::format("Requests that run together, 1 to 4096 (default: {})",
                              model_.load.max_sequences));
    AddNumber(app, "--max-queue", options_.max_queue, {1, 1 << 20},
              fmt::format("Choices of requests that wait; more get status 429 (default: {})",
                          options_.max_queue));
    AddText(app, "--api-key", api_key_, "The key that requests must have as a Bearer token")
        ->check(NotEmpty());
    AddPath(app, "--api-key-file", api_key_path_,
            "Such keys, one a line (#...: a comment); each gets a fair share")
        ->type_name("FILE");
    app.add_option("--cors-origin", options_.cors_origins,
                   "Pages of this origin may ask, '*': all; may be repeated")
        ->type_name("ORIGIN")
        ->check(CLI::Validator(CheckOrigin, ""))
        ->allow_extra_args(false);
    AddNumber(app, "--shutdown-timeout", shutdown_s_, {0, kMaxSeconds},
              fmt::format("Seconds for accepted requests after SIGTERM (default: {})", shutdown_s_))
        ->type_name("S");
    AddLogOptions(app);
    AddLimits(app);
    AddContextOption(app, model_);
    AddModelOptions(app, model_);
    AddCapacityOption(app, model_);
  }

  std::string model_directory() const override { return model_.directory; }

  bool drains() const override { return true; }

  Status Run() override {
    if (const Status set = SetOptions(); !set) return set;
    model_.explains = true;
    model_.load.record = !no_watch_;
    model_.load.kv_memory_s = kKvMemoryS;
    Result<text::Tokenizer> tokenizer = text::Tokenizer::Load(model_.directory);
    if (!tokenizer) return tokenizer.error();
    if (ranks() != nullptr && ranks()->size() > 1) {
      options_.job = server::RankJob{.launcher = getppid(),
                                     .patience = LaunchersPatience(),
                                     .is_broken = comm::AnyNeighbourIsGone,
                                     .end = comm::EndAsBySigterm};
    }
    Result<std::unique_ptr<server::Server>> server = server::Server::Start(options_);
    if (!server) return server.error();
    PrintNote("serving {} at {}\n", options_.model_name, (*server)->url());
    Result<std::unique_ptr<engine::LoadedModel>> model = LoadModel(model_, ranks());
    if (!model) return model.error();
    NoteUnknownFields((*model)->generation_config());
    server::ServedModel served = Describe(**model);
    (*model)->transformer().ObserveSteps(
        [this, &server = **server](const runtime::RecordedStep& step) {
          if (model_.watch->is_wanted()) model_.watch->See(step);
          if (!no_watch_) server.SeeStep(step);
        });
    if (!model_.watch->is_wanted()) {  // a trace is of all steps
      (*model)->transformer().RecordOnly([&server = **server] { return server.WantsStep(); });
    }
    engine::Engine engine(*std::move(model), *std::move(tokenizer), model_.load.max_sequences);
    served.tokenizer = &engine.tokenizer();
    served.forms = std::make_unique<openai::AnswerForms>(engine.tokenizer(), served.chat_template,
                                                         engine.end_tokens());
    if (MayReplan(engine.model().plan())) {
      served.find_plan = [this, &engine](const server::LoadShape& load) {
        return FindPlan(engine, load);
      };
      served.planned_for = PlannedFor();
    }
    served.check = [&engine](const engine::Request& request) { return engine.Check(request); };
    const Status ended = (*server)->Serve(engine, std::move(served));
    server->reset();  // before the engine, to which it refers
    return model_.watch->WriteAfter(ended);
  }

 private:
  void AddLogOptions(CLI::App& app) {
    app.add_option_function<std::string>(
           "--log-level",
           [this](const std::string& name) {
             options_.log_level = name == "error"     ? server::LogLevel::kError
                                  : name == "warning" ? server::LogLevel::kWarning
                                  : name == "debug"   ? server::LogLevel::kDebug
                                                      : server::LogLevel::kInfo;
           },
           "error, warning, info (default; with --quiet error) or debug")
        ->check(CLI::IsMember({"error", "warning", "info", "debug"}))
        ->type_name("LEVEL");
    app.add_flag("--log-prompts", options_.logs_prompts, "Write prompts into the log, too")
        ->group(kRareOptions);
  }

  void AddLimits(CLI::App& app) {
    app.add_flag("--no-watch", no_watch_,
                 "Leave out what the page, /v1/steps/last and /metrics tell of tasks and experts")
        ->group(kRareOptions);
    AddNumber(app, "--replan-every", epoch_s_, {0, kMaxSeconds},
              fmt::format("Seconds after which ranks may get a plan that suits the requests better "
                          "and computes the same (default: {}; 0: never)",
                          epoch_s_))
        ->type_name("S")
        ->group(kRareOptions);
    AddNumber(app, "--request-timeout", request_s_, {0, kMaxSeconds},
              "Seconds after which a request is ended (default: 0, none)")
        ->type_name("S")
        ->group(kRareOptions);
    AddNumber(
        app, "--client-timeout", client_s_, {1, kMaxSeconds},
        fmt::format("Seconds for a client to send or take what is due (default: {})", client_s_))
        ->type_name("S")
        ->group(kRareOptions);
    AddNumber(app, "--max-body", max_body_mib_, {1, 1024},
              fmt::format("MiB of a request's body (default: {})", max_body_mib_))
        ->type_name("MIB")
        ->group(kRareOptions);
    AddNumber(app, "--max-connections", options_.limits.max_connections, {1, 1 << 20},
              fmt::format("Connections at the same time (default: {}, if the system allows)",
                          options_.limits.max_connections))
        ->group(kRareOptions);
  }

  Status SetOptions() {
    options_.model_name = model_name_.value_or(
        std::filesystem::absolute(model_.directory).lexically_normal().filename().string());
    if (options_.model_name.empty()) {  // of "models/demo/"
      options_.model_name =
          std::filesystem::absolute(model_.directory).lexically_normal().parent_path().filename();
    }
    if (IsQuiet(*app_) && app_->get_option("--log-level")->count() == 0) {
      options_.log_level = server::LogLevel::kError;
    }
    options_.request_timeout = std::chrono::seconds(request_s_);
    options_.shutdown_timeout = std::chrono::seconds(shutdown_s_);
    options_.epoch = std::chrono::seconds(epoch_s_);
    options_.limits.client_timeout = std::chrono::seconds(client_s_);
    options_.limits.max_body_bytes = static_cast<size_t>(max_body_mib_) << 20;
    options_.limits.max_bodies_bytes =
        std::max(options_.limits.max_bodies_bytes, 2 * options_.limits.max_body_bytes);
    const int64_t most = std::max<int64_t>(server::RaiseOpenFiles() - kOtherFiles, 1);
    if (options_.limits.max_connections > most) {
      PrintNote("note: {} connections at most, as the limit of open files is (ulimit -n)\n", most);
      options_.limits.max_connections = static_cast<int>(most);
    }
    return ReadKeys();
  }

  Status ReadKeys() {
    if (api_key_) options_.api_keys.push_back(*api_key_);
    if (!api_key_path_.empty()) {
      const Result<std::string> text = ReadFile(api_key_path_, kMaxKeyFileBytes);
      if (!text) return text.error();
      size_t begin = 0;
      while (begin < text->size()) {
        const size_t end = std::min(text->find('\n', begin), text->size());
        std::string key = text->substr(begin, end - begin);
        while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
        const bool is_comment = key.starts_with('#');
        if (!key.empty() && !is_comment) options_.api_keys.push_back(std::move(key));
        begin = end + 1;
      }
      if (options_.api_keys.empty()) {
        return Error{fmt::format("{} has no keys; write one a line", api_key_path_)};
      }
    }
    return {};
  }

  // What people said of the division in time stays as they said it.
  bool MayReplan(const plan::Plan& plan) const {
    const PlanOptions& given = model_.plan;
    const bool was_given =
        !given.path.empty() || given.no_plan || given.pipeline || given.no_overlap;
    return ranks() != nullptr && plan.layout.num_ranks() > 1 && !was_given;
  }

  // What the search took for granted (docs/serving.md).
  server::LoadShape PlannedFor() const {
    return {.prompt_tokens = model_.workload.mean_prompt_tokens(),
            .gen_tokens = model_.workload.mean_gen_tokens(),
            .num_running = static_cast<double>(model_.load.max_sequences)};
  }

  // On the replanner's thread, while steps run: reads of the model what does not change, but for
  // the plan, which changes by what is found here alone, before the next call.
  Result<server::NewPlan> FindPlan(engine::Engine& engine, const server::LoadShape& load) const {
    const engine::LoadedModel& model = engine.model();
    const auto whole = [](double mean) { return std::max(1, static_cast<int>(std::lround(mean))); };
    planner::Workload workload = model_.workload;
    workload.requests = {{whole(load.prompt_tokens), whole(load.gen_tokens)}};
    workload.batch = whole(load.num_running);
    const planner::RankSetup setup = {model.plan().layout.num_ranks(), num_threads_,
                                      std::string(kernels::Name(model.formats().weights.matrices)),
                                      model.formats().kv == kernels::KvFormat::kInt8};
    const Result<DefaultPlan> again =
        PlanAgain(model_, model.spec(), model.plan(), setup, workload);
    if (!again) return again.error();
    const std::string plan_id = PlanId(again->plan);
    nlohmann::ordered_json json = {
        {"id", plan_id}, {"chosen_by", "search"}, {"words", again->words}};
    return server::NewPlan{
        .use = [&engine, pipeline = again->plan.pipeline] { engine.UsePipeline(pipeline); },
        .words = again->words,
        .fingerprint = Fingerprint(model, plan_id),
        .plan_json = WithReport(std::move(json), again->plan, again->report).dump() + "\n"};
  }

  static std::string Fingerprint(const engine::LoadedModel& model, const std::string& plan_id) {
    const runtime::Formats& formats = model.formats();
    // What the bits of an answer depend on, as far as the server knows it, but for the plan.
    const std::string decisions =
        fmt::format("{} {} {} {} {}", kVersion, model.kernels().name,
                    static_cast<int>(formats.weights.matrices),
                    static_cast<int>(formats.activations), static_cast<int>(formats.kv));
    return fmt::format("fp_{:016x}_{}", DigestOf(std::as_bytes(std::span(decisions))), plan_id);
  }

  server::ServedModel Describe(engine::LoadedModel& model) {
    const runtime::Formats& formats = model.formats();
    const std::string plan_id = PlanId(model.plan());
    server::ServedModel served{.name = options_.model_name,
                               .chat_template = text::ChatTemplate::Load(model_.directory)};
    if (!served.chat_template && served.chat_template.error().kind == ErrorKind::kNotFound) {
      // Of requests for chats, which are at fault then.
      served.chat_template =
          Error{"this model has no chat template; give a prompt to /v1/completions instead"};
    }
    served.defaults = engine::DefaultSampling(model.generation_config());
    served.max_new_tokens = model.generation_config().max_new_tokens;
    served.context = model.context();
    served.max_sequences = model.max_sequences();
    served.fingerprint = Fingerprint(model, plan_id);
    served.plan_json = PlanInForce(model.plan(), plan_id).dump() + "\n";
    served.watches_steps = !no_watch_;
    served.weights = kernels::Name(formats.weights.matrices);
    served.int8_kv = formats.kv == kernels::KvFormat::kInt8;
    served.num_threads = num_threads_ = model.pool().size();
    return served;
  }

  static std::string PlanId(const plan::Plan& plan) {
    const std::string text = plan::ToJson(plan).dump();
    return fmt::format("plan_{:016x}", DigestOf(std::as_bytes(std::span(text))));
  }

  // As `convene plan --json` says it of a chosen plan, as far as something is known of it.
  nlohmann::ordered_json PlanInForce(const plan::Plan& plan, const std::string& id) const {
    nlohmann::ordered_json json = {{"id", id}};
    const auto explained = nlohmann::ordered_json::parse(model_.explained);
    json.update(explained);
    json.erase("report");
    return WithReport(std::move(json), plan, explained.value("report", nlohmann::ordered_json()));
  }

  // `report` may be null.
  nlohmann::ordered_json WithReport(nlohmann::ordered_json json, const plan::Plan& plan,
                                    nlohmann::ordered_json report) const {
    json["plan"] = plan::ToJson(plan);
    json["alternatives"] = nlohmann::ordered_json::array();
    if (report.is_null()) return json;
    report["model"] = options_.model_name;
    report.erase("plan");
    json.update(report);
    return json;
  }

  const CLI::App* app_ = nullptr;
  ModelOptions model_{.directory = {}, .load = {.max_sequences = 32}};
  server::ServerOptions options_;
  std::optional<std::string> model_name_;
  std::optional<std::string> api_key_;
  std::string api_key_path_;
  int request_s_ = 0;
  int shutdown_s_ = 30;
  int epoch_s_ = 60;
  int client_s_ = 30;
  int max_body_mib_ = 8;
  int num_threads_ = 0;  // of each rank
  bool no_watch_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeServe() { return std::make_unique<Serve>(); }

}  // namespace convene::cli
