#include "cli/roofline_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/units.h"
#include "cli/plan_report.h"
#include "cli/text_table.h"
#include "planner/model_roofline.h"

namespace convene::cli {
namespace {

using cost::HierarchicalRoofline;
using cost::MemoryTier;
using cost::RooflinePoint;
using nlohmann::ordered_json;
using planner::OffloadAnswer;
using planner::OffloadFigures;
using planner::OffloadPolicy;

constexpr const char* kFastColour = "#059669";
constexpr const char* kSlowColour = "#2563eb";
constexpr const char* kLinkColour = "#dc2626";
constexpr const char* kPointColour = "#b91c1c";
constexpr const char* kOperationColour = "#7c3aed";
constexpr const char* kReachedColour = "#ea580c";
constexpr const char* kMeasuredColour = "#111827";

// "211,400 tokens/s"
std::string TokenRate(double per_second) {
  if (per_second < 1000) return fmt::format("{:.4g} tokens/s", per_second);
  return FormatCount(static_cast<uint64_t>(std::llround(per_second))) + " tokens/s";
}

// The last part of a path, whose whole would not stand above a chart.
std::string FileName(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return std::string(path.substr(path.rfind('/') + 1));
}

// "1.3 TFLOP/s"
std::string FlopsText(double flops) {
  if (flops >= 1e12) return fmt::format("{:.4g} TFLOP/s", flops / 1e12);
  return fmt::format("{:.4g} GFLOP/s", flops / 1e9);
}

std::string BytesText(double bytes_per_second) {
  return fmt::format("{:.4g} GB/s", bytes_per_second / 1e9);
}

std::string Intensity(double value) { return fmt::format("{:.4g}", value); }

std::string Intensity(const std::optional<RooflinePoint>& point) {
  return point ? Intensity(point->intensity) : "-";
}

std::string TierText(const MemoryTier& tier) {
  std::string text = tier.name;
  if (tier.bytes > 0) text += ", " + FormatBytes(static_cast<uint64_t>(tier.bytes));
  if (!tier.flops) return text + ", of which no rates are known (--host names them)";
  if (*tier.flops <= 0) return text + ", where nothing computes";
  return text + fmt::format(", {}, {}", FlopsText(*tier.flops), BytesText(tier.bytes_per_second));
}

// Where the operation is faster, and what holds it back there.
std::string BetterPlace(const HierarchicalRoofline& roofline, const cost::TierWork& work) {
  const double fast = roofline.InFast(work);
  const std::optional<double> slow =
      work.slow_bytes > 0 ? roofline.InSlow(work.slow_intensity()) : std::nullopt;
  if (slow && *slow > fast) return roofline.slow().name;
  return fmt::format("{} ({})", roofline.fast().name, NameOf(roofline.BoundInFast(work)));
}

std::string OperationTable(const RooflinePair& pair) {
  const HierarchicalRoofline& roofline = pair.roofline;
  TextTable table;
  table.AddRow({"FLOP/B", "in " + roofline.fast().name, "in " + roofline.slow().name, "P1", "P2",
                "balance", "reached", "faster in"});
  for (const RooflineOperation& operation : pair.operations) {
    const cost::TierWork& work = operation.work;
    table.AddRow({operation.name, Intensity(work.fast_intensity()),
                  work.slow_bytes > 0 ? Intensity(work.slow_intensity()) : "-",
                  Intensity(roofline.FirstTurningPoint()),
                  Intensity(roofline.SecondTurningPoint(work.fast_intensity()).intensity),
                  Intensity(roofline.BalancePoint(work.fast_intensity())),
                  FlopsText(roofline.InFast(work)), BetterPlace(roofline, work)});
  }
  return table.Format();
}

std::string BalanceLines(const RooflinePair& pair) {
  std::string text;
  for (const RooflineOperation& operation : pair.operations) {
    if (operation.balance_batch > 0) {
      text += ReportLine(
          "balance of " + operation.name,
          fmt::format("from {} on",
                      FormatCount(static_cast<uint64_t>(operation.balance_batch), "sequence")));
    }
    if (operation.balance_resident > 0) {
      text += ReportLine("balance of " + operation.name,
                         fmt::format("with {:.1f} % of the cache in {}",
                                     100 * operation.balance_resident, pair.roofline.fast().name));
    }
  }
  return text;
}

std::string PolicyText(const OffloadPolicy& policy) {
  return fmt::format(
      "{} in micro-batches of {}, {:.0f} % of the experts and {:.0f} % of the cache "
      "resident",
      FormatCount(static_cast<uint64_t>(policy.batch), "sequence"), policy.micro_batch,
      100 * policy.weights_resident, 100 * policy.cache_resident);
}

std::string PolicyLines(const RooflineReport& report) {
  if (!report.policy) return ReportLine("no policy", report.no_policy);
  const OffloadAnswer& answer = *report.policy;
  const OffloadFigures& best = answer.figures;
  std::string text = ReportLine("policy", DescribeWay(report.question, answer.policy));
  text += ReportLine("", PolicyText(answer.policy));
  text += ReportLine(
      "throughput",
      fmt::format("{}: prefill {} ({}), a step {} ({})", TokenRate(best.tokens_per_second),
                  FormatSeconds(best.prefill.longest()), NameOf(best.prefill.bound()),
                  FormatSeconds(best.step.longest()), NameOf(best.step.bound())));
  text += ReportLine(
      "memory",
      fmt::format("{} of {}, {} of {}", FormatBytes(static_cast<uint64_t>(best.fast_bytes)),
                  report.question.fast.name, FormatBytes(static_cast<uint64_t>(best.slow_bytes)),
                  report.question.slow.name));
  for (const OffloadAnswer::Way& way : answer.ways) {
    if (way.policy == answer.policy) continue;
    const std::string name = DescribeWay(report.question, way.policy);
    text += ReportLine("instead",
                       !way.figures.fits
                           ? name + ": does not fit"
                           : fmt::format("{}: {}, {:.2f} times slower ({})", name,
                                         TokenRate(way.figures.tokens_per_second),
                                         best.tokens_per_second / way.figures.tokens_per_second,
                                         PolicyText(way.policy)));
  }
  return text;
}

// Of the whole step, so that the share is the more the less else there was to wait for.
double ShareOfRoof(const RooflineReport& report, const MeasuredStep& step) {
  return step.flops_per_second() / report.pairs.front().roofline.InFast(step.experts);
}

std::string MeasuredLines(const RooflineReport& report) {
  std::string text;
  for (const MeasuredStep& step : report.measured) {
    text += ReportLine(
        "measured",
        fmt::format("{}, {}: experts {}, {:.1f} % of their roof in {}",
                    FormatCount(static_cast<uint64_t>(step.batch), "sequence"),
                    TokenRate(step.tokens_per_second), FlopsText(step.flops_per_second()),
                    100 * ShareOfRoof(report, step), report.pairs.front().roofline.fast().name));
  }
  return text;
}

ordered_json TierJson(const MemoryTier& tier) {
  ordered_json json = {{"name", tier.name}};
  json["flops_per_s"] = tier.flops ? ordered_json(*tier.flops) : ordered_json(nullptr);
  json["bytes_per_s"] = tier.bytes_per_second;
  json["bytes"] = tier.bytes;
  return json;
}

ordered_json PointJson(const std::optional<RooflinePoint>& point) {
  if (!point) return nullptr;
  return {{"flop_per_byte", point->intensity}, {"flops_per_s", point->flops_per_second}};
}

ordered_json OperationJson(const HierarchicalRoofline& roofline,
                           const RooflineOperation& operation) {
  const cost::TierWork& work = operation.work;
  ordered_json json = {{"name", operation.name}, {"flop_per_fast_byte", work.fast_intensity()}};
  json["flop_per_slow_byte"] = nullptr;
  json["p1"] = PointJson(roofline.FirstTurningPoint());
  json["p2"] = PointJson(roofline.SecondTurningPoint(work.fast_intensity()));
  json["balance"] = PointJson(roofline.BalancePoint(work.fast_intensity()));
  if (operation.balance_batch > 0) json["balance_batch"] = operation.balance_batch;
  if (operation.balance_resident > 0) json["balance_resident"] = operation.balance_resident;
  json["in_fast_flops_per_s"] = roofline.InFast(work);
  json["in_slow_flops_per_s"] = nullptr;
  if (work.slow_bytes > 0) {
    json["flop_per_slow_byte"] = work.slow_intensity();
    if (const auto slow = roofline.InSlow(work.slow_intensity())) {
      json["in_slow_flops_per_s"] = *slow;
    }
  }
  json["held_back_by"] = NameOf(roofline.BoundInFast(work));
  return json;
}

ordered_json SecondsJson(const planner::OffloadSeconds& seconds) {
  return {{"seconds", seconds.longest()}, {"bound", NameOf(seconds.bound())},
          {"link_up_s", seconds.link_up}, {"link_down_s", seconds.link_down},
          {"fast_tier_s", seconds.fast},  {"host_s", seconds.host}};
}

ordered_json WayJson(const RooflineReport& report, const OffloadPolicy& policy,
                     const OffloadFigures& figures) {
  ordered_json json = {{"name", DescribeWay(report.question, policy)},
                       {"weights", report.question.formats[policy.format].name},
                       {"batch", policy.batch},
                       {"micro_batch", policy.micro_batch},
                       {"attention_on_host", policy.attention_on_host},
                       {"experts_on_host", policy.experts_on_host},
                       {"weights_resident", policy.weights_resident},
                       {"cache_resident", policy.cache_resident},
                       {"fits", figures.fits}};
  if (!figures.fits) return json;
  json["tokens_per_s"] = figures.tokens_per_second;
  json["fast_bytes"] = figures.fast_bytes;
  json["slow_bytes"] = figures.slow_bytes;
  json["prefill"] = SecondsJson(figures.prefill);
  json["step"] = SecondsJson(figures.step);
  return json;
}

// Formats of the cache whose intensities are drawn, as the paper has 16 bits and int4.
struct CacheFormat {
  const char* name;
  double bytes;
};
constexpr CacheFormat kCacheFormats[] = {{"bf16", 2}, {"int8", 1}, {"int4", 0.5}};
// Batches whose intensities are drawn.
constexpr int kDrawnBatches[] = {32, 128, 1024, 16384};

std::vector<drawing::Roof> RoofsOf(const HierarchicalRoofline& roofline) {
  const MemoryTier& fast = roofline.fast();
  const MemoryTier& slow = roofline.slow();
  std::vector<drawing::Roof> roofs = {
      {fast.name + " memory", fast.bytes_per_second, *fast.flops, kFastColour},
      {fmt::format("{} to {}", slow.name, fast.name), roofline.link(), *fast.flops, kLinkColour},
      {fast.name + " peak", 0, *fast.flops, kFastColour}};
  if (slow.flops.value_or(0) > 0) {
    roofs.push_back({slow.name + " memory", slow.bytes_per_second, *slow.flops, kSlowColour});
    roofs.push_back({slow.name + " peak", 0, *slow.flops, kSlowColour});
  }
  return roofs;
}

void AddPoint(const char* name, const std::optional<RooflinePoint>& point,
              drawing::RooflineChart& chart) {
  if (!point) return;
  chart.marks.push_back({name, point->intensity, point->flops_per_second, kPointColour});
}

drawing::RooflineChart ChartOf(const RooflinePair& pair, const RooflineOperation& operation,
                               std::string title) {
  const HierarchicalRoofline& roofline = pair.roofline;
  const cost::TierWork& work = operation.work;
  drawing::RooflineChart chart = {
      .title = std::move(title), .roofs = RoofsOf(roofline), .marks = {}};
  AddPoint("P1", roofline.FirstTurningPoint(), chart);
  AddPoint("P2", roofline.SecondTurningPoint(work.fast_intensity()), chart);
  chart.marks.push_back({fmt::format("{} in {}", operation.name, roofline.fast().name),
                         work.fast_intensity(), roofline.FastRoof(work.fast_intensity()),
                         kReachedColour, /*is_level=*/true});
  if (work.slow_bytes > 0) {
    chart.marks.push_back(
        {"operating point", work.slow_intensity(), roofline.InFast(work), kReachedColour});
  }
  return chart;
}

// "int4, the fastest of bf16, int8, int4"
std::string WeightsText(const RooflineReport& report) {
  if (report.formats.size() == 1) return report.weights();
  return fmt::format("{}, {} {}", report.weights(), report.policy ? "the fastest of" : "one of",
                     fmt::join(report.formats, ", "));
}

// What is reached at an intensity, by whoever is faster, at most what the fast tier could.
double Reached(const HierarchicalRoofline& roofline, const cost::TierWork& work) {
  return std::max(roofline.InFast(work), roofline.InSlow(work.slow_intensity()).value_or(0));
}

void AddMeasured(const RooflineReport& report, drawing::RooflineChart& chart) {
  for (const MeasuredStep& step : report.measured) {
    chart.marks.push_back({fmt::format("measured, N = {}", step.batch),
                           step.experts.slow_intensity(), step.flops_per_second(),
                           kMeasuredColour});
  }
}

}  // namespace

std::string DescribeRoofline(const RooflineReport& report) {
  std::string text = fmt::format(
      "{} on {}: weights in {}, cache in {}; {} in micro-batches of {}, context {:.0f}\n",
      report.model, report.profile, WeightsText(report), report.kv_cache,
      FormatCount(static_cast<uint64_t>(report.batch), "sequence"), report.micro_batch,
      report.context);
  for (const RooflinePair& pair : report.pairs) {
    text += "\n" + ReportLine("fast tier", TierText(pair.roofline.fast()));
    text += ReportLine("slow tier", TierText(pair.roofline.slow()));
    text += ReportLine("link up", BytesText(pair.roofline.link())) + "\n";
    text += OperationTable(pair) + "\n" + BalanceLines(pair);
  }
  return text + "\n" + PolicyLines(report) + MeasuredLines(report);
}

ordered_json ToJson(const RooflineReport& report) {
  ordered_json json = {{"model", report.model},       {"profile", report.profile},
                       {"weights", report.weights()}, {"formats", report.formats},
                       {"kv_cache", report.kv_cache}, {"context", report.context},
                       {"batch", report.batch},       {"micro_batch", report.micro_batch}};
  ordered_json& pairs = json["pairs"] = ordered_json::array();
  for (const RooflinePair& pair : report.pairs) {
    ordered_json operations = ordered_json::array();
    for (const RooflineOperation& operation : pair.operations) {
      operations.push_back(OperationJson(pair.roofline, operation));
    }
    pairs.push_back({{"fast", TierJson(pair.roofline.fast())},
                     {"slow", TierJson(pair.roofline.slow())},
                     {"link_bytes_per_s", pair.roofline.link()},
                     {"operations", operations}});
  }
  for (const MeasuredStep& step : report.measured) {
    json["measured"].push_back({{"batch", step.batch},
                                {"tokens_per_s", step.tokens_per_second},
                                {"flop_per_slow_byte", step.experts.slow_intensity()},
                                {"flops_per_s", step.flops_per_second()},
                                {"share_of_roof", ShareOfRoof(report, step)}});
  }
  json["policy"] = nullptr;
  if (!report.policy) {
    json["no_policy"] = report.no_policy;
    return json;
  }
  json["policy"] = WayJson(report, report.policy->policy, report.policy->figures);
  ordered_json& ways = json["ways"] = ordered_json::array();
  for (const OffloadAnswer::Way& way : report.policy->ways) {
    ways.push_back(WayJson(report, way.policy, way.figures));
  }
  return json;
}

std::vector<drawing::RooflineChart> ChartsOf(const RooflineReport& report,
                                             const planner::OffloadModel& model) {
  std::vector<drawing::RooflineChart> charts;
  const double weight_bytes =
      report.question.formats[static_cast<size_t>(report.format)].weight_bytes;
  for (const RooflinePair& pair : report.pairs) {
    for (const RooflineOperation& operation : pair.operations) {
      drawing::RooflineChart chart =
          ChartOf(pair, operation,
                  fmt::format("{}: {} in {}, {} over {}", FileName(report.model), operation.name,
                              operation.name == "attention" ? report.kv_cache : report.weights(),
                              pair.roofline.fast().name, pair.roofline.slow().name));
      const auto add = [&](std::string name, const cost::TierWork& work) {
        chart.marks.push_back({std::move(name), work.slow_intensity(), Reached(pair.roofline, work),
                               kOperationColour});
      };
      if (operation.name == "attention") {
        for (const CacheFormat& format : kCacheFormats) {
          add(fmt::format("cache in {}", format.name),
              AttentionWork(model, report.context, format.bytes));
        }
      } else {
        for (const int batch : kDrawnBatches) {
          // Micro-batches cannot be larger than the batch.
          add(fmt::format("N = {}", batch),
              ExpertsWork(model, batch, std::min(batch, report.micro_batch), weight_bytes));
        }
        if (&pair == report.pairs.data()) AddMeasured(report, chart);
      }
      charts.push_back(std::move(chart));
    }
  }
  return charts;
}

}  // namespace convene::cli
