#include "cost/perf_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "base/quote.h"
#include "cost/csv.h"
#include "cost/operator_work.h"
#include "cost/relative_line.h"

namespace convene::cost {
namespace {

constexpr double kMillisecond = 1e-3;
constexpr double kMicrosecond = 1e-6;

// A row's fields by the names of their columns. The first that does not fit is the error.
class TableRow {
 public:
  TableRow(const CsvTable& table, size_t row) : table_(table), row_(row) {}

  const std::string& Text(const char* name) {
    static const std::string absent;
    const int column = table_.column(name);
    return column < 0 ? absent : table_.at(row_, column);
  }

  double Number(const char* name) {
    const std::string& text = Text(name);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_number = error == std::errc() && end == text.data() + text.size();
    if (is_number && value >= kLeastValue && value <= kMostValue) return value;
    if (!error_) {
      error_ = Error{fmt::format("line {}: {} is {}; it must be a number from {} to {}",
                                 table_.line_of(row_), name, Quote(text), kLeastValue, kMostValue)};
    }
    return 1;
  }

  void Refuse(const Error& error) {
    if (!error_) error_ = error.At(fmt::format("line {}", table_.line_of(row_)));
  }

  const std::optional<Error>& error() const { return error_; }

 private:
  const CsvTable& table_;
  size_t row_;
  std::optional<Error> error_;
};

// What a row says: a point of an operator, with its ideal time on the target.
struct Measurement {
  std::string name;
  std::string kernel;
  std::vector<std::string> feature_names;
  OperatorWork work = {};
  double seconds = 0;
  std::optional<double> target_ideal_seconds = {};
  std::string not_on_target = {};
};

// Makes an operator's work from its shape on the table's device and on the target.
template <typename Shape>
void SetWork(const Shape& shape, const ProductFormat& format, const GpuPreset& gpu,
             const TableTarget& target, TableRow& row, Measurement& measurement) {
  if (const Status known = CheckFigures(gpu.figures, format); !known) {
    return row.Refuse(known.error());
  }
  measurement.work = WorkOf(shape, format, gpu.figures);
  if (const Status known = CheckFigures(target.device, format); !known) {
    measurement.not_on_target = known.error().message;
    return;
  }
  measurement.target_ideal_seconds = WorkOf(shape, format, target.device).ideal_seconds;
}

void SetLinkWork(OperatorWork on_one_byte_per_second, const GpuPreset& gpu,
                 const TableTarget& target, TableRow& row, Measurement& measurement) {
  if (!(gpu.nvlink_bytes_per_second > 0)) {
    return row.Refuse(
        Error{fmt::format("how fast the links of {} are is not known: it has no "
                          "NVLink",
                          Quote(gpu.figures.name))});
  }
  measurement.work = std::move(on_one_byte_per_second);
  const double bytes = measurement.work.ideal_seconds;
  measurement.work.ideal_seconds = bytes / gpu.nvlink_bytes_per_second;
  if (target.link_bytes_per_second > 0) {
    measurement.target_ideal_seconds = bytes / target.link_bytes_per_second;
  } else {
    measurement.not_on_target = "no link joins its ranks";
  }
}

std::string KernelOf(TableRow& row) {
  const std::string& source = row.Text("kernel_source");
  // The graph of an engine names its kernel by layer and shape, which is no kernel of its own.
  return fmt::format("{} {}", row.Text("framework"), source.substr(0, source.find('/')));
}

std::vector<Measurement> ReadProduct(TableRow& row, const GpuPreset& gpu,
                                     const TableTarget& target) {
  const Result<ProductFormat> format = ProductFormatOf(row.Text("gemm_dtype"));
  if (!format) {
    row.Refuse(format.error());
    return {};
  }
  Measurement measurement = {.name = "product " + format->name,
                             .kernel = KernelOf(row),
                             .feature_names = ProductFeatures(),
                             .seconds = row.Number("latency") * kMillisecond};
  const ProductShape shape = {
      .rows = row.Number("m"), .columns = row.Number("n"), .inner = row.Number("k")};
  SetWork(shape, *format, gpu, target, row, measurement);
  return {std::move(measurement)};
}

// "balanced", or "power_law_1.2".
double SkewOf(const std::string& distribution, TableRow& row) {
  constexpr std::string_view kPowerLaw = "power_law_";
  if (distribution == "balanced") return 1;
  double exponent = 0;
  const char* end = distribution.data() + distribution.size();
  if (distribution.starts_with(kPowerLaw) &&
      std::from_chars(distribution.data() + kPowerLaw.size(), end, exponent).ptr == end &&
      exponent > 0 && exponent < 100) {
    return 1 + exponent;
  }
  row.Refuse(
      Error{fmt::format("the distribution {} is not known; known are balanced and "
                        "power_law_EXPONENT",
                        Quote(distribution))});
  return 1;
}

std::vector<Measurement> ReadExperts(TableRow& row, const GpuPreset& gpu,
                                     const TableTarget& target) {
  const Result<ProductFormat> format = ProductFormatOf(row.Text("moe_dtype"));
  if (!format) {
    row.Refuse(format.error());
    return {};
  }
  Measurement measurement = {.name = "grouped_product " + format->name,
                             .kernel = KernelOf(row),
                             .feature_names = ExpertsFeatures(),
                             .seconds = row.Number("latency") * kMillisecond};
  const ExpertsShape shape = {.num_tokens = row.Number("num_tokens"),
                              .hidden = row.Number("hidden_size"),
                              .intermediate = row.Number("inter_size"),
                              .top_k = row.Number("topk"),
                              .num_experts = row.Number("num_experts"),
                              .tensor_degree = row.Number("moe_tp_size"),
                              .expert_degree = row.Number("moe_ep_size"),
                              .skew = SkewOf(row.Text("distribution"), row)};
  SetWork(shape, *format, gpu, target, row, measurement);
  return {std::move(measurement)};
}

// The name of a collective and how often the others' part of the buffer passes a link.
std::optional<std::pair<std::string, double>> CollectiveOf(std::string_view name) {
  if (name == "all_reduce") return std::pair("all_reduce", 2.0);
  if (name == "all_gather") return std::pair("all_gather", 1.0);
  if (name == "reduce_scatter") return std::pair("reduce_scatter", 1.0);
  if (name == "alltoall") return std::pair("all_to_all", 1.0);
  return std::nullopt;
}

double BytesOf(const std::string& dtype, TableRow& row) {
  if (dtype == "half" || dtype == "bfloat16" || dtype == "float16") return 2;
  if (dtype == "int8" || dtype == "fp8") return 1;
  if (dtype == "float" || dtype == "float32") return 4;
  row.Refuse(Error{fmt::format("the element type {} is not known", Quote(dtype))});
  return 1;
}

std::vector<Measurement> ReadCollective(TableRow& row, const GpuPreset& gpu,
                                        const TableTarget& target, const char* dtype_column) {
  const auto collective = CollectiveOf(row.Text("op_name"));
  if (!collective) {
    row.Refuse(Error{fmt::format("the collective {} is not known", Quote(row.Text("op_name")))});
    return {};
  }
  Measurement measurement = {.name = collective->first,
                             .kernel = KernelOf(row),
                             .feature_names = CollectiveFeatures(),
                             .seconds = row.Number("latency") * kMillisecond};
  const CollectiveShape shape = {
      .bytes = row.Number("message_size") * BytesOf(row.Text(dtype_column), row),
      .num_ranks = row.Number("num_gpus"),
      .passes = collective->second};
  if (shape.num_ranks < 2) row.Refuse(Error{"num_gpus must be at least 2"});
  SetLinkWork(WorkOf(shape, 1), gpu, target, row, measurement);
  return {std::move(measurement)};
}

std::vector<Measurement> ReadNccl(TableRow& row, const GpuPreset& gpu, const TableTarget& target) {
  return ReadCollective(row, gpu, target, "nccl_dtype");
}

std::vector<Measurement> ReadAllReduce(TableRow& row, const GpuPreset& gpu,
                                       const TableTarget& target) {
  return ReadCollective(row, gpu, target, "allreduce_dtype");
}

std::vector<Measurement> ReadDispatch(TableRow& row, const GpuPreset& gpu,
                                      const TableTarget& target) {
  if (row.Number("node_num") != 1) {
    row.Refuse(Error{"node_num is not 1; between hosts a dispatch is not read yet"});
  }
  std::vector<Measurement> both;
  for (const auto& [name, element_bytes] :
       {std::pair("dispatch", kDispatchedBytes), std::pair("combine", kCombinedBytes)}) {
    const std::string seconds_column = fmt::format("{}_transmit_us", name);
    const std::string multiprocessors_column = fmt::format("{}_sms", name);
    Measurement measurement = {.name = name,
                               .kernel = KernelOf(row),
                               .feature_names = DispatchFeatures(),
                               .seconds = row.Number(seconds_column.c_str()) * kMicrosecond};
    const DispatchShape shape = {.num_tokens = row.Number("num_token"),
                                 .hidden = row.Number("hidden_size"),
                                 .top_k = row.Number("num_topk"),
                                 .num_experts = row.Number("num_experts"),
                                 .multiprocessors = row.Number(multiprocessors_column.c_str())};
    SetLinkWork(WorkOf(shape, kRanksOfDispatch, element_bytes, 1), gpu, target, row, measurement);
    both.push_back(std::move(measurement));
  }
  return both;
}

struct TableKind {
  const char* name;
  std::vector<const char*> columns;  // that only this kind has all of
  std::vector<Measurement> (*read)(TableRow&, const GpuPreset&, const TableTarget&);
};

const std::vector<TableKind>& TableKinds() {
  static const std::vector<TableKind> kinds = {
      {"gemm_perf",
       {"device", "kernel_source", "gemm_dtype", "m", "n", "k", "latency"},
       ReadProduct},
      {"moe_perf",
       {"device", "kernel_source", "moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk",
        "num_experts", "moe_tp_size", "moe_ep_size", "distribution", "latency"},
       ReadExperts},
      {"nccl_perf",
       {"device", "op_name", "nccl_dtype", "num_gpus", "message_size", "latency"},
       ReadNccl},
      {"custom_allreduce_perf",
       {"device", "op_name", "allreduce_dtype", "num_gpus", "message_size", "latency"},
       ReadAllReduce},
      {"wideep_deepep_normal_perf",
       {"device", "node_num", "hidden_size", "num_token", "num_topk", "num_experts", "dispatch_sms",
        "dispatch_transmit_us", "combine_sms", "combine_transmit_us"},
       ReadDispatch},
  };
  return kinds;
}

Result<const TableKind*> KindOfTable(const CsvTable& table) {
  std::string expected;
  for (const TableKind& kind : TableKinds()) {
    const bool has_all = std::all_of(kind.columns.begin(), kind.columns.end(),
                                     [&](const char* name) { return table.column(name) >= 0; });
    if (has_all) return &kind;
    expected += fmt::format("{}{} (", expected.empty() ? "" : ", ", kind.name);
    for (const char* name : kind.columns) {
      expected += fmt::format("{}{}", name == kind.columns[0] ? "" : " ", name);
    }
    expected += ")";
  }
  return Error{
      fmt::format("its columns are those of no table that is known; known are {}", expected)};
}

void Append(Measurement measurement, const GpuPreset& gpu,
            std::map<std::pair<std::string, std::string>, size_t>& indices,
            std::vector<MeasuredOperator>& operators) {
  const auto [found, is_new] =
      indices.try_emplace({measurement.name, measurement.kernel}, operators.size());
  if (is_new) {
    operators.push_back({.name = std::move(measurement.name),
                         .kernel = std::move(measurement.kernel),
                         .gpu = gpu,
                         .feature_names = std::move(measurement.feature_names),
                         .samples = {},
                         .target_ideal_seconds = {},
                         .not_on_target = std::move(measurement.not_on_target)});
  }
  MeasuredOperator& to = operators[found->second];
  to.samples.push_back({.features = std::move(measurement.work.features),
                        .ideal_seconds = measurement.work.ideal_seconds,
                        .seconds = measurement.seconds});
  if (measurement.target_ideal_seconds) {
    to.target_ideal_seconds.push_back(*measurement.target_ideal_seconds);
  }
}

}  // namespace

Result<std::vector<MeasuredOperator>> ReadPerfTable(std::string_view csv,
                                                    const TableTarget& target) {
  const Result<CsvTable> table = CsvTable::Parse(csv);
  if (!table) return table.error();
  const Result<const TableKind*> kind = KindOfTable(*table);
  if (!kind) return kind.error();
  if (table->num_rows() == 0) return Error{"it has no rows"};

  std::vector<MeasuredOperator> operators;
  std::map<std::pair<std::string, std::string>, size_t> indices;
  std::string device;
  std::optional<GpuPreset> gpu;
  for (size_t i = 0; i < table->num_rows(); ++i) {
    TableRow row(*table, i);
    if (!gpu) {
      device = row.Text("device");
      Result<GpuPreset> found = FindGpu(device);
      if (!found) return found.error();
      gpu = *std::move(found);
    }
    if (row.Text("device") != device) {
      return Error{
          fmt::format("line {} is of {}, the first row of {}; write a table for each device",
                      table->line_of(i), Quote(row.Text("device")), Quote(device))};
    }
    std::vector<Measurement> measurements = (*kind)->read(row, *gpu, target);
    if (row.error()) return *row.error();
    for (Measurement& measurement : measurements) {
      Append(std::move(measurement), *gpu, indices, operators);
    }
  }
  return operators;
}

std::vector<OperatorSample> SamplesOnTarget(const MeasuredOperator& measured) {
  CHECK(measured.target_ideal_seconds.size() == measured.samples.size());
  std::vector<double> ideal;
  std::vector<double> seconds;
  for (const OperatorSample& sample : measured.samples) {
    ideal.push_back(sample.ideal_seconds);
    seconds.push_back(sample.seconds);
  }
  const double alpha = FitRelativeLine(ideal, seconds).alpha;
  const bool takes_multiprocessors = measured.feature_names == DispatchFeatures();
  std::vector<OperatorSample> samples = measured.samples;
  for (size_t i = 0; i < samples.size(); ++i) {
    OperatorSample& sample = samples[i];
    const double fixed = std::min(alpha, sample.seconds);
    const double scale = measured.target_ideal_seconds[i] / sample.ideal_seconds;
    sample.seconds = fixed + (sample.seconds - fixed) * scale;
    // On a link that is half as fast, half as many reach the same part of it.
    if (takes_multiprocessors) sample.features.back() /= scale;
    sample.ideal_seconds = measured.target_ideal_seconds[i];
  }
  return samples;
}

}  // namespace convene::cost
