#include "evaluate/bench_point.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"

namespace convene::evaluate {
namespace {

constexpr double kGiga = 1e9;

template <typename F>
Spread SpreadOfEach(const std::vector<Repetition>& repetitions, F&& figure) {
  std::vector<double> values;
  for (const Repetition& repetition : repetitions) values.push_back(figure(repetition));
  return SpreadOf(values);
}

// 0 where the peak was not measured.
double Share(double rate, double peak) { return peak > 0 ? rate / peak : 0; }

nlohmann::ordered_json NumberOrNull(double value, bool is_known) {
  return is_known ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

}  // namespace

Repetition MakeRepetition(const std::vector<Work>& steps, const Peaks& before, const Peaks& after) {
  Work total;
  for (const Work& step : steps) total += step;
  return {.tokens_per_s = static_cast<double>(total.tokens) / total.seconds,
          .flops_per_s = total.flops / total.seconds,
          .bytes_per_s = total.bytes / total.seconds,
          .expert_flops_per_s =
              total.expert_seconds > 0 ? total.expert_flops / total.expert_seconds : 0,
          .expert_share_of_time = total.expert_seconds / total.seconds,
          .load_lane_busy = total.load_seconds / total.seconds,
          .peaks = {.flops_per_s = (before.flops_per_s + after.flops_per_s) / 2,
                    .bytes_per_s = (before.bytes_per_s + after.bytes_per_s) / 2}};
}

Spread BenchPoint::SpreadOf(double Repetition::*figure) const {
  return SpreadOfEach(repetitions, [&](const Repetition& one) { return one.*figure; });
}

Peaks BenchPoint::peaks() const {
  return {
      .flops_per_s =
          SpreadOfEach(repetitions, [](const auto& one) { return one.peaks.flops_per_s; }).median,
      .bytes_per_s =
          SpreadOfEach(repetitions, [](const auto& one) { return one.peaks.bytes_per_s; }).median};
}

double BenchPoint::share_of_peak() const {
  return SpreadOfEach(repetitions,
                      [](const auto& one) { return Share(one.flops_per_s, one.peaks.flops_per_s); })
      .median;
}

double BenchPoint::expert_share_of_peak() const {
  return SpreadOfEach(
             repetitions,
             [](const auto& one) { return Share(one.expert_flops_per_s, one.peaks.flops_per_s); })
      .median;
}

double BenchPoint::share_of_bandwidth() const {
  return SpreadOfEach(repetitions,
                      [](const auto& one) { return Share(one.bytes_per_s, one.peaks.bytes_per_s); })
      .median;
}

nlohmann::ordered_json ToJson(const BenchPoint& point) {
  const Spread rate = point.SpreadOf(&Repetition::tokens_per_s);
  const Peaks peaks = point.peaks();
  const bool has_peaks = peaks.flops_per_s > 0;
  return {
      {"test", point.name},
      {"batch", point.batch},
      {"tokens_per_s", rate.median},
      {"tokens_per_s_min", rate.min},
      {"tokens_per_s_max", rate.max},
      {"repetitions", point.repetitions.size()},
      {"gflops", point.SpreadOf(&Repetition::flops_per_s).median / kGiga},
      {"share_of_peak", NumberOrNull(point.share_of_peak(), has_peaks)},
      {"expert_gflops", point.SpreadOf(&Repetition::expert_flops_per_s).median / kGiga},
      {"expert_share_of_peak", NumberOrNull(point.expert_share_of_peak(), has_peaks)},
      {"expert_share_of_time", point.SpreadOf(&Repetition::expert_share_of_time).median},
      {"load_lane_busy", point.SpreadOf(&Repetition::load_lane_busy).median},
      {"gbps", point.SpreadOf(&Repetition::bytes_per_s).median / kGiga},
      {"share_of_bandwidth", NumberOrNull(point.share_of_bandwidth(), has_peaks)},
      {"peak_gflops", NumberOrNull(peaks.flops_per_s / kGiga, has_peaks)},
      {"peak_read_gbps", NumberOrNull(peaks.bytes_per_s / kGiga, has_peaks)},
  };
}

std::vector<std::string> RemarksOnShares(const std::vector<BenchPoint>& points,
                                         uint64_t weights_bytes, uint64_t last_level_cache_bytes) {
  const auto any_above = [&](double (BenchPoint::*share)() const) {
    return std::any_of(points.begin(), points.end(),
                       [&](const BenchPoint& point) { return (point.*share)() > 1; });
  };
  const bool in_cache = weights_bytes <= last_level_cache_bytes;
  const bool too_many_bytes = any_above(&BenchPoint::share_of_bandwidth);
  const bool too_many_flops =
      any_above(&BenchPoint::share_of_peak) || any_above(&BenchPoint::expert_share_of_peak);
  std::vector<std::string> remarks;
  if (too_many_bytes && in_cache) {
    remarks.push_back(fmt::format(
        "More than 100 % of the peak of memory: the weights ({}) fit in the last-level cache ({}), "
        "which is faster than memory.",
        FormatBytes(weights_bytes), FormatBytes(last_level_cache_bytes)));
  }
  if (too_many_flops || (too_many_bytes && !in_cache)) {
    remarks.push_back(
        "More than 100 % of a peak: the machine was faster while the model ran than just before "
        "and after, when its peaks were measured. Its load or its clock changes: repeat this when "
        "it is quiet.");
  }
  return remarks;
}

}  // namespace convene::evaluate
