#include "cli/model_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/environment.h"
#include "base/json.h"
#include "base/message.h"
#include "base/quote.h"
#include "base/read_file.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_files.h"
#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/load_messages.h"
#include "cli/parsed_by.h"
#include "cli/plan_by_default.h"
#include "cli/value_options.h"
#include "cli/verify_plan.h"
#include "cli/workload_options.h"
#include "engine/score_tokens.h"
#include "evaluate/known_costs.h"
#include "weights/paged_weights.h"

namespace convene::cli {

CLI::Option* AddKvCacheOption(CLI::App& app, std::optional<kernels::KvFormat>& format) {
  return app
      .add_option_function<std::string>(
          "--kv-cache",
          [&format](const std::string& name) {
            format = name == "int8" ? kernels::KvFormat::kInt8 : kernels::KvFormat::kBf16;
          },
          "Of keys and values: bf16 (default) or int8 (half the memory)")
      ->check(CLI::IsMember({"bf16", "int8"}))
      ->type_name("FORMAT");
}

void AddFormatOptions(CLI::App& app, engine::FormatWishes& wishes) {
  app.add_option_function<std::string>(
         "--weights",
         [&wishes](const std::string& name) {
           wishes.weights = kernels::WeightFormatFromName(name);
         },
         "Of the matrices: bf16, int8, int4 or f32 (exact, slow), or auto (default): the first of "
         "bf16, int8 and int4 that fits memory")
      ->check(CLI::IsMember({"auto", "bf16", "int8", "int4", "f32"}))
      ->type_name("FORMAT");
  AddInt4GroupOption(app, wishes.int4_group);
  app.add_option_function<std::string>(
         "--activations",
         [&wishes](const std::string& name) {
           wishes.activations =
               name == "int8" ? kernels::ActivationFormat::kInt8 : kernels::ActivationFormat::kBf16;
         },
         "Beside integer weights: int8 (default) or bf16 (more precise)")
      ->check(CLI::IsMember({"int8", "bf16"}))
      ->type_name("FORMAT");
  AddKvCacheOption(app, wishes.kv);
}

void AddModelOptions(CLI::App& app, ModelOptions& options) {
  AddPath(app, "MODEL", options.directory, "Directory of a Hugging Face checkpoint");
  AddFormatOptions(app, options.load.formats);
  AddThreadsOption(app, options.load.num_threads);
  app.add_option_function<std::string>(
         "--numa",
         [&options](const std::string& name) {
           options.load.numa = name == "interleave" ? hardware::NumaPolicy::kInterleave
                               : name == "local"    ? hardware::NumaPolicy::kLocal
                                                    : hardware::NumaPolicy::kAuto;
         },
         "Weights on memory nodes: interleave, local, or auto (default)")
      ->check(CLI::IsMember({"auto", "interleave", "local"}))
      ->type_name("POLICY");
  AddChunkOption(app, options);
  AddMemoryOptions(app, options.load);
  app.add_flag(
         "--verify-checkpoint", options.load.verify_checkpoint,
         "Read all weights and compare the ranks' copies, or packed ones with their checksums")
      ->group(kRareOptions);
  AddPlanOptions(app, options.plan);
  options.watch->AddOptions(app);
}

void AddMemoryOptions(CLI::App& app, engine::LoadOptions& load) {
  AddBudgetOption(app, load.memory_budget);
  AddDeviceOptions(app, load);
  load.page_directory = CacheDirectory() + "/pages";
  AddPath(app, "--page-dir", load.page_directory,
          "Where a checkpoint that does not fit memory is packed once, to be read from there "
          "(default: ~/.cache/convene/pages)")
      ->type_name("DIR")
      ->group(kRareOptions);
  app.add_option_function<std::string>(
         "--page-cache",
         [&load](const std::string& name) {
           load.page_eviction = name == "lru" ? weights::PageEviction::kLongestUnused
                                              : weights::PageEviction::kLeastUsed;
         },
         "Which experts stay in memory where not all fit: lfu (wanted soonest, by how often steps "
         "wanted each; default) or lru (used last)")
      ->check(CLI::IsMember({"lfu", "lru"}))
      ->type_name("RULE")
      ->group(kRareOptions);
}

Result<engine::Offload> OffloadFromName(std::string_view name) {
  if (name == "auto") return engine::Offload::kAuto;
  if (name == "pages") return engine::Offload::kPages;
  if (name == "layers") return engine::Offload::kLayers;
  if (name == "mmap") return engine::Offload::kMapped;
  if (name == "cgo") {
    return Error{
        "with --device cuda layers come in the order of CGOPipe anyway (--offload layers); without "
        "a GPU experts are read from a disk (--offload pages)"};
  }
  for (const std::string_view order : {"s2", "s3", "s4", "layerwise"}) {
    if (name != order) continue;
    return Error{fmt::format(
        "{} is there to be compared with, by offload_bench (bench/README.md), and is slower: with "
        "--device cuda take --offload layers, and --offload pages without a GPU",
        order)};
  }
  return Error{fmt::format("{} is not known; there are auto, pages, layers and mmap", Quote(name))};
}

void AddDeviceOptions(CLI::App& app, engine::LoadOptions& load) {
  AddDeviceOption(app, load.gpu,
                  "What computes: cpu, or a GPU with bf16 weights: cuda, cuda:1 ... (default: cpu)")
      ->group(kRareOptions);
  app.add_option_function<std::string>(
         "--offload", [&load](const std::string& name) { load.offload = *OffloadFromName(name); },
         "Of a model larger than memory: experts in pages, as they are wanted; of a GPU also all "
         "in "
         "layers, with attention on the host, for many sequences; mmap, to compare with: the "
         "system "
         "reads what it likes of a packed directory; or auto (default)")
      ->check(ParsedBy(OffloadFromName))
      ->type_name("HOW")
      ->group(kRareOptions);
  app.add_option_function<std::string>(
         "--device-memory-budget",
         [&load](const std::string& text) { load.device_memory_budget = *ParseBytes(text); },
         "Most memory of the GPU, as 15GiB (default: what is free); experts that do not fit stay "
         "in the host's memory and come when they are needed")
      ->check(ParsedBy(ParseBytes))
      ->type_name("SIZE")
      ->group(kRareOptions);
}

CLI::Option* AddBudgetOption(CLI::App& app, std::optional<uint64_t>& memory_budget) {
  return app
      .add_option_function<std::string>(
          "--memory-budget",
          [&memory_budget](const std::string& text) { memory_budget = *ParseBytes(text); },
          "Most memory of each process, as 6GiB (default: what is free); experts that do not fit "
          "are read from the disk while the model runs")
      ->check(ParsedBy(ParseBytes))
      ->type_name("SIZE");
}

std::string DescribePages(const weights::PagedWeights* paged) {
  if (paged == nullptr) return "";
  const weights::PageStatistics pages = paged->statistics();
  const auto share = [](int64_t part, int64_t whole) {
    return 100.0 * static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1));
  };
  std::string text = fmt::format(
      "paged: {} of experts read in {:.2f} s ({}/s), {:.1f} for every 100 that were computed with",
      FormatBytes(pages.read_bytes), pages.read_seconds,
      FormatBytes(static_cast<uint64_t>(static_cast<double>(pages.read_bytes) /
                                        std::max(pages.read_seconds, 1e-9))),
      share(pages.num_read, pages.num_used));
  if (pages.num_chosen > 0) {
    text += fmt::format("; {:.1f} % of them were predicted a layer ahead",
                        share(pages.num_predicted, pages.num_chosen));
  }
  return text + "\n";
}

std::string DescribeSpill(const runtime::SpillStatistics& spilled) {
  if (spilled.read_bytes + spilled.written_bytes == 0) return "";
  const double moved = static_cast<double>(spilled.read_bytes + spilled.written_bytes);
  return fmt::format("spilled: {} of keys and values read and {} written in {:.2f} s ({}/s)\n",
                     FormatBytes(spilled.read_bytes), FormatBytes(spilled.written_bytes),
                     spilled.seconds,
                     FormatBytes(static_cast<uint64_t>(moved / std::max(spilled.seconds, 1e-9))));
}

void AddThreadsOption(CLI::App& app, std::optional<int>& num_threads) {
  AddNumber(app, "--threads", num_threads, kPositive, "Threads (default: one per usable core)");
}

void AddInt4GroupOption(CLI::App& app, std::optional<int>& columns) {
  app.add_option_function<std::string>(
         "--int4-group",
         [&columns](const std::string& text) { columns = *ParseNumber(text, kPositive); },
         "Columns per int4 scale: 32 (default), 64, 128")
      ->check(CLI::IsMember({"32", "64", "128"}))
      ->type_name("N");
}

void AddChunkOption(CLI::App& app, ModelOptions& options) {
  options.chunk = AddNumber(app, "--chunk", options.load.max_step_tokens,
                            {1, engine::kMaxStepTokens}, "Most tokens of a step (default: 512)");
}

bool ModelOptions::says_chunk() const { return chunk->count() > 0; }
bool ModelOptions::says_max_batch() const { return max_batch->count() > 0; }

void FitInputs(ModelOptions& options, size_t num_tokens) {
  constexpr size_t kMostStepTokens = 1 << 15;  // more memory than that takes a --chunk
  const auto wanted = static_cast<int>(std::min(num_tokens, kMostStepTokens));
  if (!options.says_chunk()) {
    options.load.max_step_tokens = std::max(options.load.max_step_tokens, wanted);
  }
  if (!options.load.context && wanted > engine::kDefaultContext) options.load.context = wanted;
}

void AddContextOption(CLI::App& app, ModelOptions& options) {
  AddNumber(
      app, "--context", options.load.context, {2, engine::kMaxContext},
      fmt::format("Longest sequence (default: the model's, at most {})", engine::kDefaultContext))
      ->type_name("TOKENS");
}

void AddCapacityOption(CLI::App& app, ModelOptions& options) {
  AddNumber(app, "--expert-capacity", options.load.expert_capacity, kPositive,
            "Tokens an expert takes of a prompt (Switch; default: any)");
}

Result<model::ModelSpec> ReadSpec(const std::string& directory) {
  Result<checkpoint::ModelConfiguration> configuration =
      checkpoint::ReadModelConfiguration(directory);
  if (!configuration) return configuration.error();
  return std::move(configuration->spec);
}

Status CheckPredictsText(const std::string& directory) {
  const Result<model::ModelSpec> spec = ReadSpec(directory);
  return spec ? engine::CheckPredictsText(*spec) : Status(spec.error());
}

namespace {

// Made-up routing needs as many experts as a token activates, on either side.
Status CheckSkew(const model::ModelSpec& spec, const planner::Routing& routing) {
  if (routing.skew < 0) return {};
  for (const auto* stack : {&spec.layers, &spec.encoder_layers}) {
    for (const model::LayerSpec& layer : *stack) {
      if (!layer.moe) continue;
      if (routing.num_experts_skew >= layer.moe->top_k &&
          routing.num_experts_skew <= layer.moe->num_experts) {
        continue;
      }
      return Error{
          fmt::format("--num-experts-skew {} is out of range; it must be {} (experts per "
                      "token) to {} (experts)",
                      routing.num_experts_skew, layer.moe->top_k, layer.moe->num_experts)};
    }
  }
  return {};
}

// Made-up routing is what the plan is searched for, too.
Status StateRouting(ModelOptions& options, const model::ModelSpec& spec) {
  planner::Routing& routing = options.plan.routing;
  if (!options.plan.router_counts_path.empty()) {
    auto counts = ReadRouterCounts(options.plan.router_counts_path);
    if (!counts) return counts.error();
    routing.counts = *std::move(counts);
    if (Status fits = planner::CheckRouting(routing, spec); !fits) return fits;
  }
  if (Status fits = CheckSkew(spec, routing); !fits) return fits;
  if (planner::CheckRouting(routing, spec)) options.workload.routing = routing;
  return {};
}

// The ranks that a plan for fewer than were started is executed by; the others idle.
void UseFewerRanks(ModelOptions& options, comm::Group& ranks, engine::LoadOptions& load) {
  const int used = load.plan.layout.num_ranks();
  PrintNote("the plan is for {}, and {} were started: {}\n",
            FormatCount(static_cast<uint64_t>(used), "rank"), ranks.size(),
            ranks.size() - used == 1 ? "the last one waits" : "the others wait");
  options.fewer_ranks = std::make_shared<engine::FewerRanks>(ranks, used);
  load.local = engine::LocalRankAmongFirst(ranks.size(), used);
  load.group = options.fewer_ranks->group();
}

constexpr uint64_t kMaxPlanBytes = uint64_t{1} << 20;  // as plan::ReadPlan

// What a plan's file says was foreseen when it was made, and of which others; null: nothing.
nlohmann::ordered_json ForeseenByFile(const std::string& path) {
  const Result<std::string> text = ReadFile(path, kMaxPlanBytes);
  if (!text) return nullptr;
  const Result<nlohmann::json> file = ParseJson(*text);
  if (!file || !file->is_object() || !file->contains("alternatives")) return nullptr;
  nlohmann::ordered_json foreseen = {{"alternatives", (*file)["alternatives"]}};
  if (!file->contains("predicted")) return foreseen;
  foreseen["predicted"] = (*file)["predicted"];
  // The costs, which are long, and paths on the machine where it was made.
  for (const char* name : {"question", "profile", "model"}) foreseen["predicted"].erase(name);
  return foreseen;
}

// As ModelOptions::explained. `found`: by the search, or the usual plan in its place; nothing: the
// plan was given, or is the usual.
nlohmann::ordered_json ExplainPlanOf(const ModelOptions& options, const model::ModelSpec& spec,
                                     const plan::Plan& plan,
                                     const std::optional<DefaultPlan>& found, int num_started) {
  const PlanOptions& given = options.plan;
  const bool was_searched = found && !found->report.is_null();
  const char* chosen_by = was_searched               ? "search"
                          : !given.path.empty()      ? "file"
                          : given.layout.has_value() ? "options"
                          : num_started == 1         ? "one process"
                                                     : "usual";
  nlohmann::ordered_json json = {{"chosen_by", chosen_by}};
  if (found) json["words"] = found->words;
  if (was_searched) {
    json["report"] = found->report;
    return json;
  }
  if (!given.path.empty()) {
    json["report"] = ForeseenByFile(given.path);
    if (!json["report"].is_null()) return json;
    json.erase("report");
  }
  const Result<nlohmann::ordered_json> report = ExplainGivenPlan(options, spec, plan, num_started);
  if (report) {
    json["report"] = *report;
  } else {
    json["not_explained"] = report.error().message;
  }
  return json;
}

// As many sequences as the plan says, and no more than there are; a step of a group of ranks has
// room for a token of each of its own.
void RunTogether(const ModelOptions& options, engine::LoadOptions& load) {
  int64_t sequences = load.plan.sequences;
  if (options.num_requests > 0) sequences = std::min(sequences, options.num_requests);
  load.max_sequences = static_cast<int>(sequences);
  if (load.batch_work) {
    load.batch_work->chooses_sequences = false;
    if (!load.context && load.batch_work->longest > 1) load.context = load.batch_work->longest;
  }
  if (options.says_chunk()) return;
  int& tokens = load.plan.step_tokens > 0 ? load.plan.step_tokens : load.max_step_tokens;
  tokens = std::max(tokens, load.plan.sequences_of_group(load.max_sequences));
}

// That steps of so many tokens of each group of ranks have room for, a token of each.
int MostSequences(const plan::Plan& plan, int step_tokens) {
  const int64_t of_groups = int64_t{step_tokens} * plan.layout.attention_dp;
  return static_cast<int>(std::min<int64_t>(of_groups, plan::kMostSequences));
}

// As planner::Describe has it of a candidate, with the model's hash.
std::string NameOfRun(engine::LoadedModel& model, const std::string& directory) {
  const Result<checkpoint::ConfigFile> config = checkpoint::ReadConfigFile(directory);
  if (!config) return "";
  const planner::Candidate candidate{
      .setup = {.num_ranks = model.plan().layout.num_ranks(),
                .num_threads = model.pool().size(),
                .weights = std::string(kernels::Name(model.formats().weights.matrices)),
                .int8_kv = model.formats().kv == kernels::KvFormat::kInt8},
      .plan = model.plan()};
  return NameOfPlan(candidate, plan::ModelHash(config->json));
}

}  // namespace

Result<std::unique_ptr<engine::LoadedModel>> LoadModel(ModelOptions& options, comm::Group* ranks) {
  const int num_ranks = ranks != nullptr ? ranks->size() : 1;
  const Result<model::ModelSpec> spec = options.load.random_weights
                                            ? checkpoint::OpenConfig(options.directory)
                                            : ReadSpec(options.directory);
  if (!spec) return spec.error();
  if (const Status stated = StateRouting(options, *spec); !stated) return stated.error();
  engine::LoadOptions load = options.load;
  const Result<plan::Plan> plan = ResolvePlan(options.plan, options.directory, num_ranks);
  if (!plan) return plan.error();
  load.plan = *plan;
  std::vector<std::string> names = OptionsBesidePlan(options.plan);
  if (!options.plan.path.empty() && load.formats.weights && !plan->weights.empty()) {
    names.emplace_back("--weights");
  }
  if (!options.plan.path.empty() && load.formats.kv && !plan->kv_cache.empty()) {
    names.emplace_back("--kv-cache");
  }
  if (!options.plan.path.empty() && load.num_threads && plan->num_threads > 0) {
    names.emplace_back("--threads");
  }
  if (options.says_chunk() && load.plan.step_tokens > 0) {
    names.emplace_back("--chunk");
    load.plan.step_tokens = 0;
  }
  const bool has_batch = options.max_batch != nullptr;
  if (has_batch && options.says_max_batch() && load.plan.sequences > 0) {
    names.emplace_back("--max-batch");
    load.plan.sequences = load.max_sequences;
  }
  if (!names.empty()) {
    PrintNote("plan: {}, but for what was given beside it ({})\n", options.plan.path,
              fmt::join(names, ", "));
  }
  if (!options.plan.path.empty() && !options.plan.allowed.empty() && !options.explains) {
    PrintNote("--allow changes nothing: --plan says what is done, and nothing is searched\n");
  }
  std::optional<DefaultPlan> found;
  const bool may_search = options.plan.path.empty() && !options.plan.no_plan && !options.load.gpu;
  // Ranks with experts alone, of a layout that is given, take turns as they were asked to.
  const bool says_turns =
      options.plan.layout && (options.plan.strategy || options.plan.order ||
                              options.plan.pipeline || options.plan.micro_batches);
  if (num_ranks > 1 && may_search && !(plan->layout.disaggregates && says_turns)) {
    found = PlanByDefault(options, *spec, *plan, *ranks);
    if (found) {
      load.plan = found->plan;
      PrintNote("{}\n", found->words);
    }
  }
  if (num_ranks == 1 && may_search && options.num_requests > 0) {
    found = PlanBatchAlone(options, *spec, *plan);
    if (found) {
      load.plan = found->plan;
      PrintNote("{}\n", found->words);
    }
  }
  if (has_batch && !options.says_max_batch()) {
    // What is usual, unless steps are to be shorter.
    load.max_sequences =
        std::min(load.max_sequences,
                 MostSequences(load.plan, load.plan.step_tokens_or(load.max_step_tokens)));
  }
  if (has_batch && load.plan.sequences > 0) RunTogether(options, load);
  options.load.max_sequences = load.max_sequences;
  if (options.explains) {
    options.explained = ExplainPlanOf(options, *spec, load.plan, found, num_ranks).dump();
  }
  if (!load.formats.weights && !load.plan.weights.empty()) {
    load.formats.weights = kernels::WeightFormatFromName(load.plan.weights);
  }
  if (!load.formats.kv && !load.plan.kv_cache.empty()) {
    load.formats.kv =
        load.plan.kv_cache == "int8" ? kernels::KvFormat::kInt8 : kernels::KvFormat::kBf16;
  }
  if (!load.num_threads && load.plan.num_threads > 0) {
    // A plan is for the rank with the most cores, where ranks are not alike.
    load.num_threads = load.plan.num_threads;
    load.may_have_fewer_threads = num_ranks > 1;
  }
  load.experiment.router = RouterOverrideOf(options.plan.routing, *spec);
  if (num_ranks > 1) load.group = ranks;
  if (load.plan.layout.num_ranks() < num_ranks) UseFewerRanks(options, *ranks, load);
  load.step_costs = evaluate::KeptOrMeasuredCosts();
  load.record = options.watch->is_wanted() || options.load.record;
  LoadMessages messages;
  Result<std::unique_ptr<engine::LoadedModel>> model =
      engine::LoadedModel::Load(options.directory, load, messages.observer());
  messages.Finish();
  if (model) options.load.max_sequences = (*model)->max_sequences();
  if (model && load.record) {
    options.watch->SetRun(std::string(kernels::Name((*model)->formats().weights.matrices)),
                          (*model)->pool().size(), NameOfRun(**model, options.directory),
                          (*model)->formats().kv == kernels::KvFormat::kInt8);
    (*model)->transformer().ObserveSteps(
        [watch = options.watch](const runtime::RecordedStep& step) { watch->See(step); });
    // The reference kernels of profiles are products of CPUs, and tell nothing of a GPU's steps.
    if (num_ranks == 1 && !load.gpu) options.watch->MeasureSpeeds(**model);
  }
  return model;
}

}  // namespace convene::cli
