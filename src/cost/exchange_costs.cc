#include "cost/exchange_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/quote.h"
#include "cost/import_tables.h"
#include "cost/json_reader.h"

namespace convene::cost {
namespace {

using schedule::TaskKind;

constexpr const char* kCollectives[] = {"all_gather", "reduce_scatter", "all_to_all"};
constexpr const char* kDispatches[] = {"dispatch", "combine"};

bool IsAllReduce(std::string_view name) {
  return name == "all_reduce" || name.starts_with("all_reduce, ");
}

bool IsCollectiveModel(std::string_view name) {
  return IsAllReduce(name) ||
         std::ranges::any_of(kCollectives, [&](const char* one) { return name == one; });
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

double RanksInRange(const OperatorModel& model, double num_ranks) {
  return std::clamp(num_ranks, model.ranges[1].min, model.ranges[1].max);
}

// Of a collective whose link is busy so long for each of its passes.
struct CollectiveSeconds {
  double once = 0;
  double beyond = 0;
  bool is_extrapolated = false;
};

CollectiveSeconds SecondsOf(const MeasuredModel& measured, double num_ranks, double ideal,
                            double passes) {
  const OperatorModel& model = *measured.model;
  const double ranks = RanksInRange(model, num_ranks);
  const auto at = [&](double bytes) {
    const OperatorWork work =
        WorkOf(CollectiveShape{.bytes = bytes, .num_ranks = ranks, .passes = passes},
               measured.link_bytes_per_second);
    return model.Predict(work.features, work.ideal_seconds);
  };
  // At the same ideal seconds: what a protocol loses, it loses by how long the link is busy.
  const double least = model.ranges[0].min;
  const double buffer = ideal * measured.link_bytes_per_second * ranks / (ranks - 1);
  const OperatorPrediction there = at(std::max(buffer, least));
  const double once = at(least).seconds;
  return {.once = once,
          .beyond = there.seconds - once,
          .is_extrapolated = there.extrapolated || ranks != num_ranks};
}

}  // namespace

ExchangeCosts::ExchangeCosts(const MachineProfile& machine, const DeviceFigures& device,
                             const model::ModelSpec& spec)
    : machine_(&machine), device_(device) {
  const auto find = [&](const std::string& name) { return FindModel(machine, device_, name); };
  all_gather_ = find("all_gather");
  reduce_scatter_ = find("reduce_scatter");
  all_to_all_ = find("all_to_all");
  for (const auto& [name, model] : machine.operators) {
    if (IsAllReduce(name)) all_reduce_.push_back(find(name));
  }
  if (const model::MoeSpec* moe = FirstExperts(spec)) {
    dispatch_ = find("dispatch");
    combine_ = find("combine");
    dispatch_shape_ = {.num_tokens = 1,
                       .hidden = double(spec.hidden_size),
                       .top_k = double(moe->top_k),
                       .num_experts = double(moe->num_experts)};
  }
}

const MeasuredModel& ExchangeCosts::CollectiveOf(TaskKind kind) const {
  if (kind == TaskKind::kGatherNormed) return all_gather_;
  if (kind == TaskKind::kScatterSums) return reduce_scatter_;
  return all_to_all_;
}

double ExchangeCosts::OnceOfCollective(TaskKind kind, double num_ranks) const {
  const MeasuredModel& measured = CollectiveOf(kind);
  if (measured.model == nullptr) return machine_->links.front().latency_seconds;
  return SecondsOf(measured, num_ranks, 0, 1).once;
}

ExchangeCosts::Share ExchangeCosts::OfCollective(TaskKind kind, double num_ranks, double bytes,
                                                 double link_bytes_per_second) const {
  const MeasuredModel& measured = CollectiveOf(kind);
  if (measured.model == nullptr || !(bytes > 0)) {
    return {.once = OnceOfCollective(kind, num_ranks)};
  }
  const double ideal = bytes / link_bytes_per_second;
  const CollectiveSeconds seconds = SecondsOf(measured, num_ranks, ideal, 1);
  return {.efficiency = ideal / std::max(ideal, seconds.beyond),
          .is_extrapolated = seconds.is_extrapolated,
          .once = seconds.once};
}

std::optional<ExchangeCosts::Share> ExchangeCosts::OfHalfAllReduce(
    double num_ranks, double bytes, double link_bytes_per_second) const {
  if (!(bytes > 0)) return std::nullopt;
  const double ideal = bytes / link_bytes_per_second;
  std::optional<Share> best;
  double fewest_seconds = 0;
  for (const MeasuredModel& kernel : all_reduce_) {
    if (num_ranks != RanksInRange(*kernel.model, num_ranks)) continue;
    const CollectiveSeconds seconds = SecondsOf(kernel, num_ranks, ideal, 2);
    const double beyond = std::max(ideal, seconds.beyond / 2);
    if (best && seconds.once / 2 + beyond >= fewest_seconds) continue;
    fewest_seconds = seconds.once / 2 + beyond;
    best = Share{.efficiency = ideal / beyond,
                 .is_extrapolated = seconds.is_extrapolated,
                 .once = seconds.once / 2};
  }
  return best;
}

const MeasuredModel& ExchangeCosts::DispatchOf(TaskKind kind) const {
  return kind == TaskKind::kCombine ? combine_ : dispatch_;
}

bool ExchangeCosts::HasDispatch(TaskKind kind, double num_ranks) const {
  const bool is_of_experts = kind == TaskKind::kDispatch || kind == TaskKind::kCombine;
  return is_of_experts && num_ranks == kRanksOfDispatch && DispatchOf(kind).model != nullptr;
}

double ExchangeCosts::RatioOfLinks(const MeasuredModel& measured) const {
  return LinkOfHost(*machine_) / measured.link_bytes_per_second;
}

// Unless the plan says how many: those that the link needs, as far as they were measured.
int ExchangeCosts::MultiprocessorsOfDispatch(const MeasuredModel& measured,
                                             ExchangeMultiprocessors given) const {
  const int most = std::max(1, device_.num_multiprocessors / 2);
  if (given.number > 0 && !given.is_most) return std::min(given.number, most);
  const MeasuredRange& range = measured.model->ranges.back();
  const double ratio = RatioOfLinks(measured);
  const double wanted = given.number > 0 ? given.number : MultiprocessorsFor(LinkOfHost(*machine_));
  const double within =
      std::min(std::max(wanted, std::ceil(range.min * ratio)), std::floor(range.max * ratio));
  return static_cast<int>(std::clamp<double>(within, 1, most));
}

OperatorPrediction ExchangeCosts::PredictDispatch(TaskKind kind, double ideal_seconds,
                                                  double row_bytes, double multiprocessors) const {
  const MeasuredModel& measured = DispatchOf(kind);
  DispatchShape shape = dispatch_shape_;
  shape.multiprocessors = multiprocessors / RatioOfLinks(measured);
  const double element_bytes = kind == TaskKind::kCombine ? kCombinedBytes : kDispatchedBytes;
  if (row_bytes > 0) shape.hidden = row_bytes / element_bytes;
  const auto work_of = [&](double tokens) {
    shape.num_tokens = tokens;
    return WorkOf(shape, kRanksOfDispatch, element_bytes, measured.link_bytes_per_second);
  };
  const double tokens = ideal_seconds / work_of(1).ideal_seconds;
  const OperatorWork work = work_of(std::max(tokens, measured.model->ranges[0].min));
  return measured.model->Predict(work.features, work.ideal_seconds);
}

ExchangeCosts::Share ExchangeCosts::OfDispatch(TaskKind kind, double bytes,
                                               double link_bytes_per_second, double row_bytes,
                                               ExchangeMultiprocessors given) const {
  CHECK(HasDispatch(kind, kRanksOfDispatch));
  const int number = MultiprocessorsOfDispatch(DispatchOf(kind), given);
  const double once = PredictDispatch(kind, 0, row_bytes, number).seconds;
  if (!(bytes > 0)) return {.once = once, .multiprocessors = number};
  const double ideal = bytes / link_bytes_per_second;
  const OperatorPrediction there = PredictDispatch(kind, ideal, row_bytes, number);
  return {.efficiency = ideal / std::max(ideal, there.seconds - once),
          .is_extrapolated = there.extrapolated,
          .once = once,
          .multiprocessors = number};
}

int ExchangeCosts::MultiprocessorsFor(double bytes_per_second) const {
  const int most = device_.num_multiprocessors / 2;
  if (most == 0) return 0;
  return std::clamp(static_cast<int>(std::ceil(bytes_per_second / kBytesPerMultiprocessor)), 1,
                    most);
}

std::vector<std::string> ExchangeCosts::Notes() const {
  const std::string link = "latency and rate of the link";
  std::vector<std::string> notes = {NoteOf("all-gather", all_gather_, device_, link),
                                    NoteOf("reduce-scatter", reduce_scatter_, device_, link),
                                    NoteOf("all-to-all", all_to_all_, device_, link)};
  for (const MeasuredModel& kernel : all_reduce_) {
    notes.push_back(NoteOf("all-reduce, where sums are gathered at once", kernel, device_, ""));
  }
  for (const auto& [what, measured] :
       {std::pair("dispatch", &dispatch_), std::pair("combine", &combine_)}) {
    if (measured->model == nullptr) continue;
    notes.push_back(
        NoteOf(fmt::format("{} among {:.0f} ranks, by its multiprocessors", what, kRanksOfDispatch)
                   .c_str(),
               *measured, device_, ""));
  }
  if (device_.num_multiprocessors > 0) {
    notes.push_back(fmt::format(
        "multiprocessors of other exchanges: as many as their rate needs at {:.0f} GB/s each, as "
        "4 of H100 reach (DeepEP's normal kernels)",
        1e-9 * kBytesPerMultiprocessor));
  }
  return notes;
}

Status CheckExchangeModels(const MachineProfile& machine) {
  const size_t of_collective = CollectiveFeatures().size();
  const size_t of_dispatch = DispatchFeatures().size();
  for (const auto& [name, model] : machine.operators) {
    if (!IsExchangeModel(name)) continue;
    const size_t expected = IsCollectiveModel(name) ? of_collective : of_dispatch;
    if (model.ranges.size() != expected) {
      return Error{fmt::format("the profile's operator {} has {} features, and {} are expected",
                               Quote(name), model.ranges.size(), expected)};
    }
    if (IsCollectiveModel(name) && model.ranges[1].min < 2) {
      return Error{
          fmt::format("the profile's operator {} was measured on fewer than 2 ranks", Quote(name))};
    }
    const auto other = machine.measured_on.find(name);
    if (other == machine.measured_on.end() || IsRate(other->second.link_bytes_per_second)) continue;
    return Error{
        fmt::format("the machine on which {} was measured: its link has no rate", Quote(name))};
  }
  return {};
}

bool IsExchangeModel(std::string_view name) {
  return IsCollectiveModel(name) ||
         std::ranges::any_of(kDispatches, [&](const char* one) { return name == one; });
}

}  // namespace convene::cost
