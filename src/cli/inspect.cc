#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "cli/describe_gpu.h"
#include "cli/describe_model.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/text_table.h"
#include "cli/value_options.h"
#include "engine/load_options.h"
#include "engine/model_source.h"
#include "engine/plan_formats.h"
#include "evaluate/inspection.h"
#include "memory/ledger.h"
#include "text/tokenizer.h"
#include "weights/packed_directory.h"
#include "weights/page_index.h"

namespace convene::cli {
namespace {

using evaluate::Inspection;
using model::ModelSpec;
using model::TensorKind;

std::string Count(int64_t count) { return FormatCount(static_cast<uint64_t>(count)); }

// Activated parameters of one kind: experts in the share that the router chooses.
int64_t Activated(const ModelSpec& spec, const model::ParameterCounts& counts, TensorKind kind) {
  const int64_t count = counts[static_cast<int>(kind)];
  if (kind != TensorKind::kExperts) return count;
  return count - (model::TotalParameters(spec) - model::ActivatedParameters(spec));
}

std::string ParameterTable(const Inspection& inspection) {
  const ModelSpec& spec = inspection.spec;
  const model::ParameterCounts counts = model::CountParameters(spec);
  const int64_t total = model::TotalParameters(spec);
  const auto row = [&](std::string_view name, int64_t count, uint64_t bytes, int64_t activated) {
    return std::vector<std::string>{
        std::string(name), Count(count),
        FormatPercent(static_cast<double>(count) / static_cast<double>(total)), FormatBytes(bytes),
        Count(activated)};
  };
  TextTable table;
  uint64_t total_bytes = 0;
  table.AddRow({"parameters", "total", "share",
                std::string(kernels::Name(inspection.formats.weights.matrices)),
                "activated per token"});
  for (int i = 0; i < model::kNumTensorKinds; ++i) {
    const auto kind = static_cast<TensorKind>(i);
    if (counts[i] == 0) continue;
    const uint64_t bytes = inspection.StoredBytes(kind, counts[i]);
    total_bytes += bytes;
    table.AddRow(row(model::Name(kind), counts[i], bytes, Activated(spec, counts, kind)));
  }
  table.AddRule();
  table.AddRow(row("total", total, total_bytes, model::ActivatedParameters(spec)));
  std::string text = table.Format();
  if (!spec.tied_embeddings) {
    text += fmt::format(
        "\n  {} activated without the embedding, of which a token reads a row.\n",
        Count(model::ActivatedParameters(spec) - counts[static_cast<int>(TensorKind::kEmbedding)]));
  }
  if (spec.has_encoder()) {
    const model::StackParameters encoder = model::EncoderParameters(spec);
    text += fmt::format("\n  {} of them are the encoder's, {} activated.\n", Count(encoder.total),
                        Count(encoder.activated));
  }
  return text;
}

struct FlopsUnit {
  double flops;
  const char* name;
};

// The largest unit in which `flops` is not a fraction.
FlopsUnit UnitFor(double flops) {
  for (const FlopsUnit unit : {FlopsUnit{1e9, "GFLOP"}, FlopsUnit{1e6, "MFLOP"}}) {
    if (flops >= unit.flops) return unit;
  }
  return {1e3, "kFLOP"};
}

std::string WorkTable(const Inspection& inspection) {
  const ModelSpec& spec = inspection.spec;
  const bool has_encoder = spec.has_encoder();
  const int context = inspection.memory.context;
  struct Column {
    std::string name;
    model::TokenFlops flops;
    double tokens = 1;
  };
  std::vector<Column> columns;
  if (has_encoder) {
    columns.push_back({"input token", model::FlopsOfInput(spec, context), 1.0 * context});
  }
  const int input_length = has_encoder ? context : 0;
  for (const int position : {0, context - 1}) {
    columns.push_back({(position == 0 ? "at position " : "at ") + Count(position),
                       model::FlopsOfToken(spec, position, true, input_length)});
  }
  const FlopsUnit unit = UnitFor(columns[0].flops.total() / columns[0].tokens);
  const auto in_unit = [&](double flops) { return fmt::format("{:.3f}", flops / unit.flops); };
  TextTable table;
  const auto add_row = [&](std::string name, const auto& value_of) {
    std::vector<std::string> row = {std::move(name)};
    for (const Column& column : columns) row.push_back(value_of(column));
    table.AddRow(std::move(row));
  };
  add_row(fmt::format("work per token, {}", unit.name), [](const Column& at) { return at.name; });
  for (const evaluate::FlopsPart& part : evaluate::kFlopsParts) {
    if (std::ranges::all_of(columns, [&](const Column& at) { return at.flops.*part.flops == 0; })) {
      continue;
    }
    add_row(part.name, [&](const Column& at) { return in_unit(at.flops.*part.flops / at.tokens); });
  }
  table.AddRule();
  add_row("total", [&](const Column& at) { return in_unit(at.flops.total() / at.tokens); });
  std::string text = table.Format();
  if (has_encoder)
    text += fmt::format("\n  With an input of {}.\n",
                        FormatCount(static_cast<uint64_t>(context), "token"));
  if (spec.layers.front().attention.latent) {
    text += fmt::format(
        "\n  Of a prompt. A generated token attends to the latents as they are: scores of {} "
        "{} at {}.\n",
        in_unit(model::AbsorbedScoreFlops(spec, context - 1)), unit.name, Count(context - 1));
  }
  return text;
}

// What `convene run` would do with the same wishes and as much memory.
Result<engine::ChosenFormats> ChooseAsRunDoes(const Inspection& inspection,
                                              engine::LoadOptions options) {
  options.spill_directory = engine::kNoSpill;
  if (!inspection.spec.has_encoder()) {
    // Of some usual length, since run chooses the tokens of its steps where experts are paged.
    const double half = engine::ContextOf(inspection.spec, options) / 2.0;
    options.batch_work = {.prompt_tokens = std::min(512.0, half),
                          .gen_tokens = std::min(256.0, half),
                          .chooses_step_tokens = true};
  }
  memory::Ledger ledger(memory::Tier{.budget_bytes = inspection.available.bytes,
                                     .limited_by = inspection.available.limited_by,
                                     .taken_bytes = inspection.taken_bytes});
  return engine::PlanFormats(
      {.spec = inspection.spec, .num_threads = inspection.num_threads, .ledger = ledger}, options,
      engine::Pages::kWhereNeeded);
}

int NumPages(const Inspection& inspection, const engine::ChosenFormats& chosen) {
  return weights::PagedSizesOf(inspection.spec, chosen.formats.weights).num_pages;
}

// Empty: the format was given, and the table says that it fits.
std::string DescribeRun(const Inspection& inspection, const Result<engine::ChosenFormats>& chosen) {
  if (!chosen) return fmt::format("  It does not run here: {}.\n", chosen.error().message);
  const int in_memory = chosen->memory.num_page_buffers;
  if (in_memory == 0) {
    return chosen->reason.empty() ? "" : fmt::format("  convene run takes {}.\n", chosen->reason);
  }
  const std::string weights =
      chosen->reason.empty()
          ? fmt::format("{} weights", kernels::Name(chosen->formats.weights.matrices))
          : chosen->reason;
  return fmt::format(
      "  convene run takes {}: memory has room for {} of {} experts, and the others are read from "
      "the disk while it runs.\n",
      weights, Count(in_memory), Count(NumPages(inspection, *chosen)));
}

nlohmann::ordered_json RunToJson(const Inspection& inspection,
                                 const Result<engine::ChosenFormats>& chosen) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!chosen) {
    json["refused"] = chosen.error().message;
    return json;
  }
  json["weights"] = kernels::Name(chosen->formats.weights.matrices);
  json["needed_bytes"] = chosen->memory.needed_bytes();
  if (chosen->memory.num_page_buffers > 0) {
    json["experts"] = NumPages(inspection, *chosen);
    json["experts_in_memory"] = chosen->memory.num_page_buffers;
  }
  return json;
}

std::string MemoryTable(const Inspection& inspection, const std::string& run) {
  const engine::MemoryPlan& memory = inspection.memory;
  const bool fits = memory.needed_bytes() <= inspection.available.bytes;
  TextTable table;
  table.AddRow({fmt::format("memory for {} tokens{}", Count(memory.context),
                            inspection.spec.has_encoder() ? " of input, as many of answer" : ""),
                ""});
  table.AddRow(
      {fmt::format("weights, packed as {}", kernels::Name(inspection.formats.weights.matrices)),
       FormatBytes(memory.weights_bytes())});
  table.AddRow({fmt::format("KV cache, {} per {}token", FormatBytes(inspection.kv_token_bytes()),
                            inspection.spec.has_encoder() ? "input or generated " : ""),
                FormatBytes(memory.kv_bytes())});
  table.AddRow(
      {"working memory of " + FormatCount(static_cast<uint64_t>(inspection.num_threads), "thread"),
       FormatBytes(memory.working_bytes())});
  table.AddRule();
  table.AddRow({"needed", FormatBytes(memory.needed_bytes())});
  table.AddRow({fmt::format("available ({})", inspection.available.limited_by),
                FormatBytes(inspection.available.bytes)});
  return table.Format() +
         fmt::format("\n  It {} here. A decode step of one sequence reads {} of weights.\n",
                     fits ? "fits" : "does not fit",
                     FormatBytes(inspection.decode_weight_bytes())) +
         run;
}

// What a checkpoint of this configuration holds.
std::string DescribeStorage(const ModelSpec& spec) {
  int64_t fp8 = 0;
  int64_t mxfp4 = 0;
  for (const model::TensorBinding& tensor : spec.tensors) {
    if (tensor.storage == model::Storage::kFp8Block) fp8 += tensor.rows * tensor.cols;
    if (tensor.storage == model::Storage::kMxfp4) mxfp4 += tensor.rows * tensor.cols;
  }
  if (fp8 + mxfp4 == 0) return "";
  const auto total = static_cast<double>(model::TotalParameters(spec));
  return fmt::format("; its checkpoints hold {} of the parameters in {}",
                     FormatPercent(static_cast<double>(fp8 + mxfp4) / total),
                     fp8 > 0 ? "FP8 (blocks of 128 x 128)" : "MXFP4");
}

std::string DescribeStored(const Inspection& inspection) {
  if (!inspection.stored) return "no weights here" + DescribeStorage(inspection.spec);
  const evaluate::StoredWeights& stored = *inspection.stored;
  return fmt::format(
      "{} of {} in {}", FormatBytes(stored.size_bytes), fmt::join(stored.dtypes, " and "),
      stored.num_files == 1 ? "one file" : fmt::format("{} files", stored.num_files));
}

std::string FormatInspection(const std::string& path, const Inspection& inspection,
                             const std::string& run) {
  std::string text = fmt::format("  {:<14}{}\n", "model", path);
  for (const auto& [name, phrase] : DescribeModel(inspection.spec)) {
    text += fmt::format("  {:<14}{}\n", name, phrase);
  }
  text += fmt::format("  {:<14}{}\n\n", "stored", DescribeStored(inspection));
  return text + ParameterTable(inspection) + "\n" + WorkTable(inspection) + "\n" +
         MemoryTable(inspection, run);
}

class Inspect : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddPath(app, "MODEL", path_, "Model directory, or a bare config.json");
    AddNumber(app, "--context", context_, {2, engine::kMaxContext},
              fmt::format("Length for which memory is reckoned (default: the model's, at most {})",
                          engine::kDefaultContext))
        ->type_name("TOKENS");
    AddFormatOptions(app, formats_);
    AddBudgetOption(app, memory_budget_);
    AddJsonOption(app, json_path_);
  }

  Status Run() override {
    if (weights::IsPackedDirectory(path_)) {
      const Result<engine::ModelSource> packed = engine::ModelSource::Open(path_);
      if (!packed) return packed.error();
      if (Status fits = packed->SetFormats(&formats_); !fits) return fits;
    }
    // Here `auto` is the first that run would try: whether that fits is what the table answers.
    const bool is_integer = formats_.activations == kernels::ActivationFormat::kInt8;
    const auto first = is_integer ? kernels::WeightFormat::kInt8 : kernels::WeightFormat::kBf16;
    const Result<runtime::Formats> formats =
        engine::ResolveFormats(formats_, formats_.weights.value_or(first));
    if (!formats) return formats.error();
    // What a run has read when it plans its memory is a part of its budget, and so it is here.
    const auto tokenizer = text::Tokenizer::Load(path_);
    const auto configuration = checkpoint::ReadModelConfiguration(path_);
    const Result<Inspection> inspection =
        evaluate::InspectModel(path_, context_, *formats, memory_budget_);
    if (!inspection) return inspection.error();
    const Result<engine::ChosenFormats> chosen = ChooseAsRunDoes(
        *inspection, {.formats = formats_, .context = context_, .memory_budget = memory_budget_});
    // Figures for a program on standard output leave no room for those for people.
    if (json_path_ != "-") {
      std::string gpus = DescribeGpus();
      if (!gpus.empty()) gpus = "\n" + gpus;
      const Status told = WriteReport(
          {json_path_},
          FormatInspection(path_, *inspection, DescribeRun(*inspection, chosen)) + gpus);
      if (!told) return told;
    }
    nlohmann::ordered_json json = ToJson(*inspection);
    json["run"] = RunToJson(*inspection, chosen);
    return WriteJson(json_path_, json);
  }

 private:
  std::string path_;
  std::optional<int> context_;
  std::optional<uint64_t> memory_budget_;
  engine::FormatWishes formats_;
  std::string json_path_;
};

}  // namespace

std::unique_ptr<Command> MakeInspect() { return std::make_unique<Inspect>(); }

}  // namespace convene::cli
