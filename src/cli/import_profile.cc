#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "base/quote.h"
#include "base/read_file.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/describe_exchanges.h"
#include "cli/inflate.h"
#include "cli/output.h"
#include "cli/parsed_by.h"
#include "cli/profile_option.h"
#include "cli/text_table.h"
#include "cli/value_options.h"
#include "cost/import_tables.h"
#include "cost/operator_costs.h"
#include "cost/presets.h"
#include "planner/operator_pricer.h"

namespace convene::cli {
namespace {

constexpr uint64_t kMaxTableBytes = uint64_t{256} << 20;

// The files of the arguments, none twice; of a directory those whose names end as tables do.
Result<std::vector<std::string>> ListTables(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code failure;
    if (!std::filesystem::is_directory(path, failure)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> found;
    for (std::filesystem::directory_iterator entry(path, failure), end; !failure && entry != end;
         entry.increment(failure)) {
      const std::string name = entry->path().filename();
      if (name.ends_with(".csv") || name.ends_with(".csv.gz")) found.push_back(entry->path());
    }
    if (failure) return SystemError(fmt::format("cannot list {}", path), failure.value());
    if (found.empty()) {
      return NotFound(fmt::format("no file in {} ends with .csv or .csv.gz", path));
    }
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  std::set<std::filesystem::path> seen;
  for (const std::string& file : files) {
    std::error_code ignored;  // reading it says so
    if (!seen.insert(std::filesystem::weakly_canonical(file, ignored)).second) {
      return Error{fmt::format("{} is given twice, and its operators would be there twice", file)};
    }
  }
  return files;
}

Result<cost::NamedTable> ReadTable(const std::string& path, const cost::TableTarget& target) {
  Result<std::string> text = ReadFileOrStream(path, kMaxTableBytes);
  if (!text) return text.error();
  if (IsGzip(*text)) text = Inflate(*text, kMaxTableBytes);
  if (!text) return text.error().At(path);
  Result<std::vector<cost::MeasuredOperator>> operators = cost::ReadPerfTable(*text, target);
  if (!operators) return operators.error().At(path);
  return cost::NamedTable{std::filesystem::path(path).filename(), *std::move(operators)};
}

// In which weights are priced on a host.
std::string WordsOfPricedRates(const hardware::Profile& host) {
  const std::map<std::string, double> rates = cost::FiguresOfHost(host).flops;
  std::string text = fmt::format("  bf16  {:8.1f} GFLOP/s\n", rates.at("bf16") / 1e9);
  if (rates.contains("int8")) {
    text += fmt::format("  int8  {:8.1f} Gop/s\n", rates.at("int8") / 1e9);
  }
  return text;
}

// From where the curves of operators are. Sources are "TABLE, KERNEL".
std::string WordsOfTables(const cost::MachineProfile& machine) {
  std::set<std::string> tables;
  for (const auto& [name, model] : machine.operators) {
    tables.insert(model.spec.source.substr(0, model.spec.source.find(',')));
  }
  if (tables.empty()) return "";
  return fmt::format("  operators: measured by ai-dynamo/aiconfigurator, tables {}\n",
                     fmt::join(tables, ", "));
}

std::string DescribeMachine(const std::string& preset, const cost::MachineProfile& machine) {
  std::string text;
  if (machine.device) {
    const cost::DeviceFigures& device = *machine.device;
    text += fmt::format("{}: {}, {}, {:.0f} GB/s, {}\n", preset, device.name,
                        FormatBytes(device.memory_bytes), device.memory_bytes_per_second / 1e9,
                        FormatCount(device.num_multiprocessors, "multiprocessor"));
    for (const auto& [format, rate] : device.flops) {
      text += fmt::format("  {:<5} {:8.1f} TFLOP/s\n", format, rate / 1e12);
    }
    text += fmt::format("  source: {}\n", device.source);
    if (!device.assumptions.empty()) text += fmt::format("  assumed: {}\n", device.assumptions);
  }
  if (const hardware::Profile& host = machine.machine; !host.cpus.empty()) {
    text += fmt::format("{}: {}, {}, {}, {:.0f} GFLOP/s in float32, {}, {:.1f} GB/s\n",
                        machine.device ? "  host" : preset, host.cpu_name,
                        FormatCount(host.cpus.size(), "core"), host.isa, host.f32_gflops,
                        FormatBytes(machine.host_memory_bytes), host.read_gbps);
    const char* indent = machine.device ? "    " : "  ";
    text += fmt::format("{}source: {}\n", indent, machine.host_source);
    if (!machine.host_assumptions.empty()) {
      text += fmt::format("{}assumed: {}\n", indent, machine.host_assumptions);
    }
    if (!machine.device) text += WordsOfPricedRates(host);
  }
  text += WordsOfTables(machine);
  if (const std::string relatives = WordsOfRelatives(machine); !relatives.empty()) {
    text += fmt::format("  {}\n", relatives);
  }
  text += DescribeExchanges(machine);
  for (const cost::LinkLevel& link : machine.links) {
    text += fmt::format(
        "  {}: {}, {:.1f} GB/s in one direction, {:.0f} us, shared by {}\n", link.name,
        link.num_ranks == 0 ? "all ranks" : FormatCount(link.num_ranks, "rank"),
        link.bytes_per_second / 1e9, link.latency_seconds * 1e6, NameOf(link.shared_by));
    text += fmt::format("    source: {}; assumed: {}\n", link.source, link.assumptions);
  }
  return text;
}

// In which plans have weights, by the names that operators have.
std::vector<std::string> PricedFormats() {
  std::vector<std::string> formats;
  for (const char* weights : {"bf16", "int8", "int4"}) {
    const auto options = planner::OperatorOptions(weights);
    CHECK(options.ok());
    formats.push_back(options->format);
  }
  return formats;
}

class ImportProfile : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.add_option("TABLES", table_paths_,
                   "Tables of measured latencies (.csv, .csv.gz), or directories of them")
        ->type_name("FILE")
        ->expected(1, 1000)
        ->check(CLI::Validator(
            [](const std::string& path) {
              return path.empty() ? "the path of a table is empty: TABLES" : std::string();
            },
            ""));
    AddText(app, "--preset", preset_, "The machine: a GPU and its links, or a host; see --list")
        ->type_name("NAME")
        ->check(ParsedBy([](const std::string& name) { return cost::Preset(name); }));
    CLI::Option* list = app.add_flag(
        "--list", list_, "Print the figures of all presets, with sources and assumptions");
    AddPath(app, "--out", out_path_, "Where to write the profile ('-': stdout)")
        ->type_name("FILE")
        ->check(WritableFile())
        ->excludes(list);
    AddNumber(app, "--most-points", most_points_, {100, 100000},
              "Most rows of an operator that are fitted; the others check it (default: 12000)");
    app.parse_complete_callback([this] {
      if (!list_ && !preset_) throw CLI::RequiredError("--preset or --list");
    });
  }

  bool refuses_ranks() const override { return true; }

  Status Run() override {
    if (list_) return List();
    Result<cost::MachineProfile> machine = cost::Preset(*preset_);
    if (!machine) return machine.error();
    if (const Status told = WriteReport({out_path_}, DescribeMachine(*preset_, *machine)); !told) {
      return told;
    }
    if (!table_paths_.empty()) {
      if (const Status imported = Import(*machine); !imported) return imported;
    }
    if (out_path_.empty()) return {};
    // Compact: an indented one has a line for each number of a tree.
    return WriteText(out_path_, cost::ToJson(*machine).dump() + "\n");
  }

 private:
  static Status List() {
    std::string text;
    for (const std::string& name : cost::PresetNames()) {
      const Result<cost::MachineProfile> machine = cost::Preset(name);
      if (!machine) return machine.error();
      text += DescribeMachine(name, *machine);
    }
    return WriteOutput(text);
  }

  Status Import(cost::MachineProfile& machine) const {
    if (!machine.device) {
      return Error{
          fmt::format("the preset {} has no GPU, of which tables could be imported", *preset_)};
    }
    const Result<std::vector<std::string>> files = ListTables(table_paths_);
    if (!files) return files.error();
    const cost::TableTarget target = {*machine.device, cost::LinkOfHost(machine)};
    std::vector<cost::NamedTable> tables;
    for (const std::string& file : *files) {
      Result<cost::NamedTable> table = ReadTable(file, target);
      if (!table) return table.error();
      tables.push_back(*std::move(table));
    }
    const cost::ChosenOperators chosen = cost::ChooseOperators(machine, std::move(tables));
    for (const std::string& reason : chosen.passed_over) PrintNote("passed over: {}\n", reason);
    TextTable table;
    table.AddRow({"operator", "rows", "fitted", "curve", "median", "p95", "unseen rows", "median",
                  "p95", "line's R2", "its median"});
    std::vector<Error> failures;
    const std::vector<std::string> formats = PricedFormats();
    std::vector<std::string> not_priced;
    for (const cost::ChosenOperator& one : chosen.operators) {
      const Result<cost::ImportedOperator> imported =
          cost::ImportOperator(one, static_cast<size_t>(most_points_));
      if (!imported) {
        failures.push_back(imported.error().At(one.source));
        continue;
      }
      PrintNote("{}\n  {}\n", Describe(imported->model), one.source);
      if (const std::string& device = one.measured.gpu.figures.name;
          device != machine.device->name) {
        PrintNote(
            "  the table is of {}, and no table of {} was given: seconds are scaled by the limits "
            "of both\n",
            device, machine.device->name);
      }
      AddRow(*imported, table);
      if (!cost::IsPriced(one.name, formats)) not_priced.push_back(one.name);
      machine.operators[one.name] = imported->model;
      machine.measured_on.erase(one.name);
    }
    if (!failures.empty() && failures.size() == chosen.operators.size()) return failures.front();
    if (!not_priced.empty()) {
      PrintNote(
          "no price is asked of {}: prices are of weights in {}, and of one kernel for each "
          "operator but all-reduce\n",
          fmt::join(not_priced, "; "), fmt::join(formats, ", "));
    }
    for (const Error& failure : failures) PrintNote("passed over: {}\n", failure.message);
    return WriteReport({out_path_}, table.Format());
  }

  static void AddRow(const cost::ImportedOperator& imported, TextTable& table) {
    const cost::OperatorModel& model = imported.model;
    const bool has_rest = imported.num_rest > 0;
    table.AddRow({model.spec.name, FormatCount(imported.num_rows),
                  FormatCount(static_cast<uint64_t>(model.num_points)),
                  std::string(NameOf(model.curve.kind)), FormatPercent(model.chosen().median),
                  FormatPercent(model.chosen().p95), FormatCount(imported.num_rest),
                  has_rest ? FormatPercent(imported.rest_median) : "-",
                  has_rest ? FormatPercent(imported.rest_p95) : "-",
                  fmt::format("{:.4f}", model.curve.line.r2), FormatPercent(model.linear_median)});
  }

  std::vector<std::string> table_paths_;
  std::optional<std::string> preset_;
  bool list_ = false;
  std::string out_path_;
  int most_points_ = 12000;
};

}  // namespace

std::unique_ptr<Command> MakeImportProfile() { return std::make_unique<ImportProfile>(); }

}  // namespace convene::cli
