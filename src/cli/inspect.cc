#include "cli/inspect.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "cli/describe_model.h"
#include "cli/inspection.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/text_table.h"
#include "engine/loaded_model.h"
#include "weights/packed_directory.h"

namespace convene::cli {
namespace {

using model::ModelSpec;
using model::TensorKind;

constexpr int kMaxContext = 1 << 24;

std::string Count(int64_t count) { return FormatCount(static_cast<uint64_t>(count)); }

std::string Percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

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
        Percent(static_cast<double>(count) / static_cast<double>(total)), FormatBytes(bytes),
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
  return table.Format();
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
  const int last = inspection.memory.context - 1;
  const model::TokenFlops first_token = model::FlopsOfToken(inspection.spec, 0, true);
  const model::TokenFlops last_token = model::FlopsOfToken(inspection.spec, last, true);
  const FlopsUnit unit = UnitFor(first_token.total());
  const auto in_unit = [&](double flops) { return fmt::format("{:.3f}", flops / unit.flops); };
  TextTable table;
  table.AddRow(
      {fmt::format("work per token, {}", unit.name), "at position 0", "at " + Count(last)});
  for (const FlopsPart& part : kFlopsParts) {
    if (last_token.*part.flops == 0) continue;
    table.AddRow({part.name, in_unit(first_token.*part.flops), in_unit(last_token.*part.flops)});
  }
  table.AddRule();
  table.AddRow({"total", in_unit(first_token.total()), in_unit(last_token.total())});
  return table.Format();
}

std::string MemoryTable(const Inspection& inspection) {
  const engine::MemoryPlan& memory = inspection.memory;
  const bool fits = memory.needed_bytes() <= inspection.available.bytes;
  TextTable table;
  table.AddRow({fmt::format("memory for {} tokens", Count(memory.context)), ""});
  table.AddRow(
      {fmt::format("weights, packed as {}", kernels::Name(inspection.formats.weights.matrices)),
       FormatBytes(memory.weights_bytes)});
  table.AddRow({fmt::format("KV cache, {} per token", FormatBytes(inspection.kv_token_bytes())),
                FormatBytes(memory.kv_bytes)});
  table.AddRow({fmt::format("working memory of {} threads", inspection.num_threads),
                FormatBytes(memory.working_bytes)});
  table.AddRule();
  table.AddRow({"needed", FormatBytes(memory.needed_bytes())});
  table.AddRow({fmt::format("available ({})", inspection.available.limited_by),
                FormatBytes(inspection.available.bytes)});
  return table.Format() +
         fmt::format("\n  It {} here. A decode step of one sequence reads {} of weights.\n",
                     fits ? "fits" : "does not fit", FormatBytes(inspection.decode_weight_bytes()));
}

std::string DescribeStored(const Inspection& inspection) {
  if (!inspection.stored) return "no weights";
  const StoredWeights& stored = *inspection.stored;
  return fmt::format(
      "{} of {} in {}", FormatBytes(stored.size_bytes), fmt::join(stored.dtypes, " and "),
      stored.num_files == 1 ? "one file" : fmt::format("{} files", stored.num_files));
}

std::string FormatInspection(const std::string& path, const Inspection& inspection) {
  std::string text = fmt::format("  {:<14}{}\n", "model", path);
  for (const auto& [name, phrase] : DescribeModel(inspection.spec)) {
    text += fmt::format("  {:<14}{}\n", name, phrase);
  }
  text += fmt::format("  {:<14}{}\n\n", "stored", DescribeStored(inspection));
  return text + ParameterTable(inspection) + "\n" + WorkTable(inspection) + "\n" +
         MemoryTable(inspection);
}

class Inspect : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.add_option("MODEL", path_, "Model directory, or a bare config.json")
        ->type_name("")
        ->required();
    app.add_option("--context", context_,
                   fmt::format("Length for which memory is reckoned (default: the model's, at most "
                               "{})",
                               engine::kDefaultContext))
        ->type_name("TOKENS");
    AddFormatOptions(app, formats_);
    AddJsonOption(app, json_path_);
  }

  Status Run() override {
    if (context_ && (*context_ < 2 || *context_ > kMaxContext)) {
      return Error{fmt::format("a context of {} tokens is out of range; it must be 2 to {}",
                               *context_, kMaxContext)};
    }
    if (weights::IsPackedDirectory(path_)) {
      const Result<weights::PackedDirectory> packed = weights::OpenPackedDirectory(path_);
      if (!packed) return packed.error();
      formats_.weights = packed->formats.matrices;
      formats_.int4_group = packed->formats.group;
    }
    // Here `auto` is bf16: whether that fits is what the table answers.
    const Result<runtime::Formats> formats =
        engine::ResolveFormats(formats_, formats_.weights.value_or(kernels::WeightFormat::kBf16));
    if (!formats) return formats.error();
    const Result<Inspection> inspection = InspectModel(path_, context_, *formats);
    if (!inspection) return inspection.error();
    // Figures for a program on standard output leave no room for those for people.
    if (json_path_ != "-") {
      if (Status written = WriteOutput(FormatInspection(path_, *inspection)); !written) {
        return written;
      }
    }
    return json_path_.empty() ? Status() : WriteJson(json_path_, ToJson(*inspection));
  }

 private:
  std::string path_;
  std::optional<int> context_;
  engine::FormatWishes formats_;
  std::string json_path_;
};

}  // namespace

std::unique_ptr<Command> MakeInspect() { return std::make_unique<Inspect>(); }

}  // namespace convene::cli
