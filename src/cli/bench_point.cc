#include "cli/bench_point.h"

#include <fmt/format.h>

#include <utility>

namespace convene::cli {
namespace {

constexpr double kGiga = 1e9;

}  // namespace

BenchPoint MakePoint(std::string name, int batch, const std::vector<std::vector<Work>>& repetitions,
                     const Peaks& before, const Peaks& after) {
  BenchPoint point{.name = std::move(name), .batch = batch};
  std::vector<double> flops_per_s;
  std::vector<double> bytes_per_s;
  for (const std::vector<Work>& steps : repetitions) {
    double seconds = 0;
    double tokens = 0;
    for (const Work& step : steps) {
      seconds += step.seconds;
      tokens += static_cast<double>(step.tokens);
      flops_per_s.push_back(step.flops / step.seconds);
      bytes_per_s.push_back(step.bytes / step.seconds);
    }
    point.tokens_per_s.push_back(tokens / seconds);
  }
  point.flops_per_s = SpreadOf(flops_per_s).median;
  point.bytes_per_s = SpreadOf(bytes_per_s).median;
  point.peaks = {.flops_per_s = (before.flops_per_s + after.flops_per_s) / 2,
                 .bytes_per_s = (before.bytes_per_s + after.bytes_per_s) / 2};
  return point;
}

std::string TableHeader() {
  return "test    batch  tokens/s  (min - max)            GFLOP/s  of peak     GB/s  of peak\n";
}

std::string TableRow(const BenchPoint& point) {
  const Spread rate = SpreadOf(point.tokens_per_s);
  return fmt::format(
      "{:<8}{:>5}{:>10.2f}  {:<22}{:>8.1f}{:>7.1f} %{:>9.2f}{:>7.1f} %\n", point.name, point.batch,
      rate.median, fmt::format("({:.2f} - {:.2f})", rate.min, rate.max), point.flops_per_s / kGiga,
      100 * point.share_of_peak(), point.bytes_per_s / kGiga, 100 * point.share_of_bandwidth());
}

nlohmann::ordered_json ToJson(const BenchPoint& point) {
  const Spread rate = SpreadOf(point.tokens_per_s);
  return {
      {"test", point.name},
      {"batch", point.batch},
      {"tokens_per_s", rate.median},
      {"tokens_per_s_min", rate.min},
      {"tokens_per_s_max", rate.max},
      {"repetitions", point.tokens_per_s.size()},
      {"gflops", point.flops_per_s / kGiga},
      {"share_of_peak", point.share_of_peak()},
      {"gbps", point.bytes_per_s / kGiga},
      {"share_of_bandwidth", point.share_of_bandwidth()},
      {"peak_gflops", point.peaks.flops_per_s / kGiga},
      {"peak_read_gbps", point.peaks.bytes_per_s / kGiga},
  };
}

}  // namespace convene::cli
