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

// Null: no layer has experts.
const model::MoeSpec* FirstExperts(const model::ModelSpec& spec) {
  for (const auto* layers : {&spec.layers, &spec.encoder_layers}) {
    for (const model::LayerSpec& layer : *layers) {
      if (layer.moe) return &*layer.moe;
    }
  }
  return nullptr;
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
      exchange_multiprocessors_(options.exchange_multiprocessors) {
  if (options.comm_budget > 0) {
    const double left = 1 - double(options.comm_budget) / device_.num_multiprocessors;
    for (auto& [name, flops] : for_experts_.flops) flops *= left;
  }
  line_ = {.alpha = 0, .beta = 1};
  product_ = FindProduct("product");
  experts_ = FindProduct("grouped_product");
  all_gather_ = Find("all_gather", format_);
  reduce_scatter_ = Find("reduce_scatter", format_);
  all_to_all_ = Find("all_to_all", format_);
  if (const model::MoeSpec* moe = FirstExperts(spec)) {
    dispatch_ = Find("dispatch", format_);
    combine_ = Find("combine", format_);
    dispatch_shape_ = {.num_tokens = 1,
                       .hidden = double(spec.hidden_size),
                       .top_k = double(moe->top_k),
                       .num_experts = double(moe->num_experts)};
  }
  if (product_.model != nullptr) line_ = product_.model->curve.line;
  score_share_ = ScoreShareOf(device_.name).value_or(1 / line_.beta);
  const std::string limits =
      product_.model == nullptr
          ? "the limits of the data sheet, whose share nobody has measured"
          : fmt::format("the line of products: {:.1f} us and {:.2f} times the limits' seconds",
                        1e6 * line_.alpha, line_.beta);
  Note("products", product_, limits);
  Note("routed experts", experts_, limits);
  notes_.push_back(
      fmt::format("scores of attention: {:.2f} of the peak{}", score_share_,
                  ScoreShareOf(device_.name) ? ", as FlashAttention-2 publishes" : ""));
  notes_.push_back(fmt::format("passes over rows: {}", limits));
  Note("all-gather", all_gather_, "latency and rate of the link");
  Note("reduce-scatter", reduce_scatter_, "latency and rate of the link");
  Note("all-to-all", all_to_all_, "latency and rate of the link");
  const std::string all_to_all = "as all-to-all";
  for (const auto& [what, source] :
       {std::pair("dispatch", &dispatch_), std::pair("combine", &combine_)}) {
    if (source->model == nullptr) continue;
    Note(fmt::format("{} among {:.0f} ranks", what, kRanksOfDispatch).c_str(), *source, all_to_all);
  }
}

namespace {

constexpr const char* kProducts[] = {"product", "grouped_product"};
constexpr const char* kCollectives[] = {"all_gather", "reduce_scatter", "all_to_all"};
constexpr const char* kDispatches[] = {"dispatch", "combine"};

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
  for (const char* name : kCollectives) {
    if (Status known = check(name, CollectiveFeatures().size()); !known) return known;
    const auto found = machine.operators.find(name);
    if (found == machine.operators.end() || found->second.ranges[1].min >= 2) continue;
    return Error{
        fmt::format("the profile's operator {} was measured on fewer than 2 ranks", Quote(name))};
  }
  for (const char* name : kDispatches) {
    if (Status known = check(name, DispatchFeatures().size()); !known) return known;
  }
  return {};
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
  const auto check_link = [&](const char* name) -> Status {
    const auto found = machine.measured_on.find(name);
    if (found == machine.measured_on.end()) return {};
    if (IsRate(found->second.link_bytes_per_second)) return {};
    return Error{fmt::format("{}: its link has no rate", at(name))};
  };
  for (const char* name : kCollectives) {
    if (Status known = check_link(name); !known) return known;
  }
  for (const char* name : kDispatches) {
    if (Status known = check_link(name); !known) return known;
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
  const auto found = machine_->operators.find(name);
  if (found == machine_->operators.end()) return {};
  Source source{.model = &found->second,
                .device = device_,
                .format = format,
                .link_bytes_per_second = LinkOfHost(*machine_)};
  if (const auto other = machine_->measured_on.find(name); other != machine_->measured_on.end()) {
    source.device = other->second.device;
    source.link_bytes_per_second = other->second.link_bytes_per_second;
  }
  return source;
}

OperatorCosts::Source OperatorCosts::FindProduct(const std::string& name) {
  Source source = Find(fmt::format("{} {}", name, format_.name), format_);
  if (source.model == nullptr) source = Find(name + " bf16", *ProductFormatOf("bf16"));
  return source;
}

void OperatorCosts::Note(const char* what, const Source& source, const std::string& instead) {
  if (source.model == nullptr) {
    notes_.push_back(fmt::format("{}: {}", what, instead));
    return;
  }
  const bool is_other = source.device.name != device_.name;
  notes_.push_back(fmt::format(
      "{}: {} ({}), {:.1f} % from held-out points in the median{}", what, source.model->spec.name,
      source.model->spec.source, 100 * source.model->chosen().median,
      is_other ? fmt::format("; {} reaches the share of its limits that {} does", device_.name,
                             source.device.name)
               : ""));
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

const OperatorCosts::Source& OperatorCosts::OfCollective(TaskKind kind, double num_ranks) const {
  if (kind == TaskKind::kGatherNormed) return all_gather_;
  if (kind == TaskKind::kScatterSums) return reduce_scatter_;
  if (num_ranks == kRanksOfDispatch) {
    if (kind == TaskKind::kDispatch && dispatch_.model != nullptr) return dispatch_;
    if (kind == TaskKind::kCombine && combine_.model != nullptr) return combine_;
  }
  return all_to_all_;
}

bool IsPriced(std::string_view name, std::span<const std::string> formats) {
  const auto is_name = [&](const char* known) { return name == known; };
  if (std::ranges::any_of(kCollectives, is_name) || std::ranges::any_of(kDispatches, is_name)) {
    return true;
  }
  for (const char* product : kProducts) {
    const auto is_product = [&](const std::string& format) {
      return name == fmt::format("{} {}", product, format);
    };
    // Formats that have no table take that of bf16.
    if (is_product("bf16") || std::ranges::any_of(formats, is_product)) return true;
  }
  return false;
}

namespace {

double RanksInRange(const OperatorModel& model, double num_ranks) {
  return std::clamp(num_ranks, model.ranges[1].min, model.ranges[1].max);
}

OperatorPrediction PredictCollective(const OperatorModel& model, double link_bytes_per_second,
                                     double num_ranks, double bytes) {
  const OperatorWork work =
      WorkOf(CollectiveShape{.bytes = bytes, .num_ranks = num_ranks}, link_bytes_per_second);
  return model.Predict(work.features, work.ideal_seconds);
}

}  // namespace

OperatorPrediction OperatorCosts::PredictDispatch(const Source& source, double ideal_seconds,
                                                  double row_bytes) const {
  DispatchShape shape = dispatch_shape_;
  shape.multiprocessors = MultiprocessorsOfDispatch(source);
  const double element_bytes = &source == &combine_ ? kCombinedBytes : kDispatchedBytes;
  if (row_bytes > 0) shape.hidden = row_bytes / element_bytes;
  const auto work_of = [&](double tokens) {
    shape.num_tokens = tokens;
    return WorkOf(shape, kRanksOfDispatch, element_bytes, source.link_bytes_per_second);
  };
  const double tokens = ideal_seconds / work_of(1).ideal_seconds;
  const OperatorWork work = work_of(std::max(tokens, source.model->ranges[0].min));
  return source.model->Predict(work.features, work.ideal_seconds);
}

double OperatorCosts::ExchangeOnce(TaskKind kind, double num_ranks) const {
  const Source& source = OfCollective(kind, num_ranks);
  if (source.model == nullptr) return machine_->links.front().latency_seconds;
  if (IsDispatch(source)) return PredictDispatch(source, 0, 0).seconds;
  return PredictCollective(*source.model, source.link_bytes_per_second,
                           RanksInRange(*source.model, num_ranks), source.model->ranges[0].min)
      .seconds;
}

OperatorCosts::LinkShare OperatorCosts::LinkEfficiency(TaskKind kind, double num_ranks,
                                                       double bytes, double link_bytes_per_second,
                                                       double row_bytes) const {
  const Source& source = OfCollective(kind, num_ranks);
  if (source.model == nullptr || !(bytes > 0)) return {};
  // At the same ideal seconds: what a protocol loses, it loses by how long the link is busy.
  const double ideal = bytes / link_bytes_per_second;
  if (IsDispatch(source)) {
    const OperatorPrediction there = PredictDispatch(source, ideal, row_bytes);
    const double beyond = there.seconds - PredictDispatch(source, 0, row_bytes).seconds;
    return {.efficiency = ideal / std::max(ideal, beyond),
            .is_extrapolated = there.extrapolated,
            .multiprocessors = MultiprocessorsOfDispatch(source)};
  }
  const double ranks = RanksInRange(*source.model, num_ranks);
  const double buffer = ideal * source.link_bytes_per_second * ranks / (ranks - 1);
  const auto at = [&](double of_bytes) {
    return PredictCollective(*source.model, source.link_bytes_per_second, ranks, of_bytes);
  };
  const double least_bytes = source.model->ranges[0].min;
  const OperatorPrediction there = at(std::max(buffer, least_bytes));
  return {.efficiency = ideal / std::max(ideal, there.seconds - at(least_bytes).seconds),
          .is_extrapolated = there.extrapolated || ranks != num_ranks};
}

int OperatorCosts::MultiprocessorsOf(TaskKind kind) const {
  return device_.num_multiprocessors - (kind == TaskKind::kExperts ? comm_budget_ : 0);
}

// Unless the options say how many: those that the link needs, as far as they were measured.
int OperatorCosts::MultiprocessorsOfDispatch(const Source& source) const {
  if (exchange_multiprocessors_ > 0) return MultiprocessorsOfExchange(0);
  const MeasuredRange& measured = source.model->ranges.back();
  const int wanted =
      comm_budget_ > 0 ? comm_budget_ : MultiprocessorsOfExchange(LinkOfHost(*machine_));
  const double number = std::min(std::max<double>(wanted, measured.min), measured.max);
  return static_cast<int>(std::clamp<double>(number, 1, std::max(1, device_.num_multiprocessors)));
}

int OperatorCosts::MultiprocessorsOfExchange(double bytes_per_second) const {
  const int most = device_.num_multiprocessors / 2;
  if (most == 0) return 0;
  const int needed = static_cast<int>(std::ceil(bytes_per_second / kBytesPerMultiprocessor));
  return std::clamp(exchange_multiprocessors_ > 0 ? exchange_multiprocessors_ : needed, 1, most);
}

}  // namespace convene::cost
