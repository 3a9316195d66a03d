#include "cost/operator_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "base/quote.h"
#include "cost/import_tables.h"
#include "cost/json_reader.h"
#include "cost/presets.h"

namespace convene::cost {
namespace {

using schedule::TaskKind;

constexpr double kPerGiga = 1e9;
constexpr double kElementBytes = 2;  // of rows between products

// Tokens of the layer of which a device that has some of the experts gets `slots` rows, `visited`
// of its experts any of them: of rank_experts = slots * experts / (tokens * top_k) experts each is
// visited with 1 - (1 - top_k / experts)^tokens. The right side falls as tokens grow.
double TokensOfLayer(const model::MoeSpec& moe, double slots, double visited) {
  const double share = double(moe.top_k) / moe.num_experts;
  const auto visited_of = [&](double tokens) {
    return slots / (tokens * share) * (1 - std::pow(1 - std::min(1.0, share), tokens));
  };
  double low = 1;
  double high = 2;
  while (visited_of(high) > visited && high < 1e12) high *= 2;
  for (int i = 0; i < 60; ++i) {
    const double middle = std::sqrt(low * high);
    (visited_of(middle) > visited ? low : high) = middle;
  }
  return high;
}

// Of the peak of products that scores reach; none: nobody has published it.
std::optional<double> ScoreShareOf(const std::string& device) {
  constexpr int kAmpere = 2;
  constexpr int kHopper = 4;
  const Result<GpuPreset> gpu = FindGpu(device);
  if (!gpu || gpu->architecture < kAmpere) return std::nullopt;
  constexpr double kOfAmpere = 0.72;
  if (gpu->architecture < kHopper) return kOfAmpere;
  // H100's tensor cores are so fast that these kernels cannot feed them. A multiprocessor with
  // slower ones is fed as well, and then loses what all lose.
  const auto of_multiprocessor = [](const DeviceFigures& figures) {
    return figures.flops.at("bf16") / figures.num_multiprocessors;
  };
  const double of_h100 = of_multiprocessor(FindGpu("h100")->figures);
  return std::min(kOfAmpere, 0.35 * of_h100 / of_multiprocessor(gpu->figures));
}

double FixedSeconds(const OperatorModel& model, double seconds) {
  return std::min(model.curve.line.alpha, seconds);
}

}  // namespace

DeviceFigures FiguresOfHost(const hardware::Profile& host) {
  DeviceFigures figures{.name = host.cpu_name};
  const double f32 = host.f32_gflops * kPerGiga;
  figures.flops["bf16"] = std::max(f32, host.bf16_gflops * kPerGiga);
  figures.flops["fp16"] = f32;
  if (host.int8_gops > 0) figures.flops["int8"] = host.int8_gops * kPerGiga;
  figures.memory_bytes_per_second = host.read_gbps * kPerGiga;
  figures.source = "data sheet of the host";
  return figures;
}

OperatorCosts::OperatorCosts(const MachineProfile& machine, const model::ModelSpec& spec,
                             DeviceFigures device, ProductFormat format,
                             const OperatorCostsOptions& options)
    : machine_(&machine),
      spec_(&spec),
      device_(std::move(device)),
      for_experts_(device_),
      format_(std::move(format)),
      order_(options.order),
      comm_budget_(options.comm_budget),
      exchange_multiprocessors_(options.exchange_multiprocessors),
      exchanges_(machine, device_, spec) {
  if (options.comm_budget > 0) {
    const double left = 1 - double(options.comm_budget) / device_.num_multiprocessors;
    for (auto& [name, flops] : for_experts_.flops) flops *= left;
  }
  line_ = {.alpha = 0, .beta = 1};
  product_ = FindProduct("product");
  experts_ = FindProduct("grouped_product");
  if (product_.model != nullptr) line_ = product_.model->curve.line;
  score_share_ = ScoreShareOf(device_.name).value_or(1 / line_.beta);
  const std::string limits =
      product_.model == nullptr
          ? "the limits of the data sheet, whose share nobody has measured"
          : fmt::format("the line of products: {:.1f} us and {:.2f} times the limits' seconds",
                        1e6 * line_.alpha, line_.beta);
  notes_.push_back(NoteOf("products", product_, device_, limits));
  notes_.push_back(NoteOf("routed experts", experts_, device_, limits));
  notes_.push_back(
      fmt::format("scores of attention: {:.2f} of the peak{}", score_share_,
                  ScoreShareOf(device_.name) ? ", as FlashAttention-2 publishes" : ""));
  notes_.push_back(fmt::format("passes over rows: {}", limits));
  for (std::string& note : exchanges_.Notes()) notes_.push_back(std::move(note));
}

namespace {

constexpr const char* kProducts[] = {"product", "grouped_product"};

// Models that prices are asked of have the features that these ask with: a profile may come from
// anywhere.
Status CheckModels(const MachineProfile& machine, std::span<const ProductFormat> formats) {
  const auto check = [&](const std::string& name, size_t num_features) -> Status {
    const auto found = machine.operators.find(name);
    if (found == machine.operators.end() || found->second.ranges.size() == num_features) return {};
    return Error{fmt::format("the profile's operator {} has {} features, and {} are expected",
                             Quote(name), found->second.ranges.size(), num_features)};
  };
  const size_t num_features[] = {ProductFeatures().size(), ExpertsFeatures().size()};
  for (const ProductFormat& format : formats) {
    for (size_t i = 0; i < std::size(kProducts); ++i) {
      const std::string name = fmt::format("{} {}", kProducts[i], format.name);
      if (Status known = check(name, num_features[i]); !known) return known;
    }
  }
  return CheckExchangeModels(machine);
}

// Of the other machines on which operators were measured: they have the limits that shares are of.
Status CheckOthers(const MachineProfile& machine, std::span<const ProductFormat> formats) {
  const auto at = [](const std::string& name) {
    return fmt::format("the machine on which {} was measured", Quote(name));
  };
  for (const char* product : kProducts) {
    for (const ProductFormat& format : formats) {
      const std::string name = fmt::format("{} {}", product, format.name);
      const auto found = machine.measured_on.find(name);
      if (found == machine.measured_on.end()) continue;
      const Status known = CheckFigures(found->second.device, format);
      if (!known) return known.error().At(at(name));
    }
  }
  return {};
}

}  // namespace

Result<OperatorCosts> OperatorCosts::Create(const MachineProfile& machine,
                                            const model::ModelSpec& spec,
                                            const OperatorCostsOptions& options) {
  const Result<ProductFormat> format = ProductFormatOf(options.format);
  if (!format) return format.error();
  DeviceFigures device = machine.device.value_or(FiguresOfHost(machine.machine));
  const std::array needed = {*format, *ProductFormatOf("bf16")};
  for (const ProductFormat& one : needed) {
    if (const Status known = CheckFigures(device, one); !known) return known.error();
  }
  if (const Status known = CheckModels(machine, needed); !known) return known.error();
  if (const Status known = CheckOthers(machine, needed); !known) return known.error();
  if (options.comm_budget > 0 && options.comm_budget >= device.num_multiprocessors) {
    return Error{fmt::format("{} of {} multiprocessors for exchanges leave none for experts",
                             options.comm_budget, device.num_multiprocessors)};
  }
  if (machine.links.empty() || machine.links.back().num_ranks != 0) {
    return Error{
        fmt::format("the profile of {} has no link that joins all ranks; take a preset, or "
                    "add one to \"links\"",
                    Quote(device.name))};
  }
  for (const LinkLevel& link : machine.links) {
    if (IsRate(link.bytes_per_second)) continue;
    return Error{
        fmt::format("the link {} of {} has no rate", Quote(link.name), Quote(device.name))};
  }
  return OperatorCosts(machine, spec, std::move(device), *format, options);
}

OperatorCosts::Source OperatorCosts::Find(const std::string& name,
                                          const ProductFormat& format) const {
  return {FindModel(*machine_, device_, name), format};
}

OperatorCosts::Source OperatorCosts::FindProduct(const std::string& name) {
  Source source = Find(fmt::format("{} {}", name, format_.name), format_);
  if (source.model == nullptr) source = Find(name + " bf16", *ProductFormatOf("bf16"));
  return source;
}

template <class Shape>
OperatorSeconds OperatorCosts::SecondsOf(const Source& source, const Shape& shape,
                                         const DeviceFigures& device) const {
  const double ideal = WorkOf(shape, format_, device_).ideal_seconds;
  const double least = WorkOf(shape, format_, device).ideal_seconds;
  if (source.model == nullptr) {
    return {.seconds = std::max(line_.at(ideal), line_.alpha + least)};
  }
  const OperatorWork measured = WorkOf(shape, source.format, source.device);
  const OperatorPrediction there = source.model->Predict(measured.features, measured.ideal_seconds);
  const double fixed = FixedSeconds(*source.model, there.seconds);
  const double seconds =
      fixed + std::max((there.seconds - fixed) * ideal / measured.ideal_seconds, least);
  return {.seconds = seconds, .extrapolated = there.extrapolated ? seconds : 0};
}

OperatorSeconds OperatorCosts::ProductSeconds(const ProductShape& shape) const {
  return SecondsOf(product_, shape, device_);
}

OperatorSeconds OperatorCosts::ExpertsSeconds(const model::MoeSpec& moe, double slots,
                                              double visited, double elements) const {
  if (!(slots > 0) || !(visited > 0)) return {};
  switch (order_) {
    case ExpertsOrder::kGrouped:
      return GroupedExpertsSeconds(moe, slots, visited, elements);
    case ExpertsOrder::kDense:
      return DenseExpertsSeconds(moe, slots, visited, elements);
    case ExpertsOrder::kFaster:
      return std::min(GroupedExpertsSeconds(moe, slots, visited, elements),
                      DenseExpertsSeconds(moe, slots, visited, elements),
                      [](const OperatorSeconds& grouped, const OperatorSeconds& dense) {
                        return grouped.seconds < dense.seconds;
                      });
  }
  return {};
}

OperatorSeconds OperatorCosts::GroupedExpertsSeconds(const model::MoeSpec& moe, double slots,
                                                     double visited, double elements) const {
  // To the device it is a layer of its own experts alone, whose tokens are the rows that arrive:
  // each visits as many of them as there are rows in all. Tables that have a degree of expert
  // parallelism give every rank all tokens, which it then has to sort; here a rank gets its own.
  const double tokens = TokensOfLayer(moe, slots, visited);
  const double experts = std::max(visited, slots * moe.num_experts / (tokens * moe.top_k));
  const double arrive =
      tokens * (1 - std::pow(1 - std::min(1.0, experts / moe.num_experts), moe.top_k));
  // Experts of two matrices count as if they had three, each of two thirds of the width.
  const ExpertsShape shape{.num_tokens = std::max(1.0, arrive),
                           .hidden = double(spec_->hidden_size),
                           .intermediate = elements / (3.0 * spec_->hidden_size),
                           .top_k = std::min(experts, std::max(1.0, slots / arrive)),
                           .num_experts = experts};
  return SecondsOf(experts_, shape, for_experts_);
}

OperatorSeconds OperatorCosts::DenseExpertsSeconds(const model::MoeSpec& moe, double slots,
                                                   double visited, double elements) const {
  const double rows = slots / visited;
  const double hidden = spec_->hidden_size;
  const double first = moe.activation.gated() ? 2 : 1;  // matrices, of those before the last
  const double width = elements / ((first + 1) * hidden);
  OperatorSeconds of_expert =
      SecondsOf(product_, ProductShape{.rows = rows, .columns = first * width, .inner = hidden},
                for_experts_);
  of_expert += SecondsOf(product_, ProductShape{.rows = rows, .columns = hidden, .inner = width},
                         for_experts_);
  of_expert.seconds += OtherSeconds(rows * (first + 1) * width * kElementBytes);
  OperatorSeconds all = of_expert * visited;
  // Rows are gathered and scattered for all experts together.
  all.seconds += 2 * OtherSeconds(2 * slots * hidden * kElementBytes);
  return all;
}

double OperatorCosts::OtherSeconds(double bytes) const {
  return bytes > 0 ? line_.at(bytes / device_.memory_bytes_per_second) : 0;
}

double OperatorCosts::ScoreSeconds(double flops, double bytes) const {
  if (!(flops > 0) && !(bytes > 0)) return 0;
  // Whatever the weights' format, scores are computed in bf16.
  return line_.alpha + std::max(flops / (score_share_ * device_.flops.at("bf16")),
                                line_.beta * bytes / device_.memory_bytes_per_second);
}

OperatorSeconds OperatorCosts::TaskSeconds(const schedule::Task& task, const TaskParts& parts,
                                           bool is_projected) const {
  OperatorSeconds all{.seconds = ScoreSeconds(parts.score_flops, parts.cache_bytes)};
  if (task.kind == TaskKind::kExperts) {
    if (!(parts.groups > 0)) return all;
    const double elements = parts.weight_bytes / parts.groups / format_.weight_bytes;
    const auto& layers = task.encoder ? spec_->encoder_layers : spec_->layers;
    all += ExpertsSeconds(*layers[task.layer].moe, parts.product_flops / (2 * elements),
                          parts.groups, elements);
    return all;
  }
  all.seconds += OtherSeconds(parts.row_bytes);
  if (!(parts.weight_bytes > 0)) return all;
  const double elements = parts.weight_bytes / format_.weight_bytes;
  const double rows = parts.product_flops / (2 * elements);
  for (const Matrix& matrix : MatricesOfPart(WholeMatricesOf(task, *spec_, is_projected), elements,
                                             double(spec_->hidden_size))) {
    all += ProductSeconds({.rows = rows, .columns = matrix.columns, .inner = matrix.inner});
  }
  return all;
}

bool IsPriced(std::string_view name, std::span<const std::string> formats) {
  if (IsExchangeModel(name)) return true;
  for (const char* product : kProducts) {
    const auto is_product = [&](const std::string& format) {
      return name == fmt::format("{} {}", product, format);
    };
    // Formats that have no table take that of bf16.
    if (is_product("bf16") || std::ranges::any_of(formats, is_product)) return true;
  }
  return false;
}

int OperatorCosts::MultiprocessorsOf(TaskKind kind) const {
  return device_.num_multiprocessors - (kind == TaskKind::kExperts ? comm_budget_ : 0);
}

ExchangeMultiprocessors OperatorCosts::GivenToExchanges(bool is_beside) const {
  if (exchange_multiprocessors_ > 0) return {.number = exchange_multiprocessors_};
  if (is_beside && comm_budget_ > 0) return {.number = comm_budget_, .is_most = true};
  return {};
}

}  // namespace convene::cost
