#include "cli/plan_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/plain_number.h"
#include "base/quote.h"
#include "base/units.h"
#include "cli/plan_command.h"
#include "cli/profile_option.h"
#include "drawing/gantt.h"

namespace convene::cli {
namespace {

using cost::Interval;
using planner::Candidate;
using planner::RegretCurve;

constexpr int kWidth = 900;
constexpr int kHeight = 320;
constexpr int kLeft = 60;
constexpr int kRight = 20;
constexpr int kTop = 20;
constexpr int kBottom = 40;
constexpr double kMostRegret = 1;  // drawn: what loses more lies at the top
// Distinct without red beside green.
constexpr const char* kColours[] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                    "#56b4e9", "#d55e00", "#999999"};

std::string Escape(std::string_view text) {
  std::string escaped;
  for (const char c : Printable(text, "\n")) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string Row(std::initializer_list<std::string> cells, const char* tag = "td") {
  std::string row = "<tr>";
  for (const std::string& cell : cells) row += fmt::format("<{0}>{1}</{0}>", tag, cell);
  return row + "</tr>\n";
}

std::string Within(double seconds, const Interval& interval) {
  if (!IsKnown(interval)) return FormatSeconds(seconds);
  return fmt::format("{} <small>{} to {}</small>", FormatSeconds(seconds),
                     FormatSeconds(interval.low), FormatSeconds(interval.high));
}

std::string FiguresRow(const Candidate& candidate, const std::string& slower,
                       const std::string& why) {
  const planner::PlanFigures& figures = *candidate.figures;
  return Row({Escape(Describe(candidate)), slower, Within(figures.ttft, figures.ttft_interval),
              figures.time_per_token > 0
                  ? Within(figures.time_per_token, figures.time_per_token_interval)
                  : "none",
              PlainNumber(figures.throughput),
              candidate.memory_limit > 0 ? FormatBytes(candidate.memory.total())
                                         : std::string(kMemoryNotLookedAt),
              why});
}

std::string Table(const PlanReport& report) {
  std::string table =
      "<table>\n" + Row({"plan", "slower by", "time to first token", "time per token", "tokens/s",
                         "memory per rank", "why it lost, and where it would win"},
                        "th");
  table += FiguresRow(report.chosen(), "chosen", Escape(report.answer.why_chosen));
  for (const planner::Alternative& alternative : report.explanation.alternatives) {
    const std::string changes = AlternativeChanges(report, report.of(alternative));
    std::string why = Escape(alternative.reason) + "<br>" + Escape(alternative.would_win);
    if (!changes.empty()) why += "<br>" + Escape("changes: " + changes);
    table +=
        FiguresRow(report.of(alternative), fmt::format("{:+.1f} %", 100 * alternative.slower), why);
  }
  return table + "</table>\n";
}

// Places in the picture: batches by their logarithm, regret from 0 at the bottom.
class Axes {
 public:
  explicit Axes(const std::vector<int>& batches) : batches_(batches) {}

  double X(size_t index) const {
    const double range = std::log(static_cast<double>(batches_.back()) / batches_.front());
    const double at = std::log(static_cast<double>(batches_[index]) / batches_.front());
    return kLeft + (range > 0 ? at / range : 0.5) * (kWidth - kLeft - kRight);
  }
  static double Y(double regret) {
    const double height = kHeight - kTop - kBottom;
    return kHeight - kBottom - std::min(regret, kMostRegret) / kMostRegret * height;
  }

  std::string Grid() const {
    std::string svg;
    for (const double regret : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      svg += fmt::format(
          "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>"
          "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.0f} %{6}</text>\n",
          kLeft, kWidth - kRight, Y(regret), kLeft - 6, Y(regret) + 4, 100 * regret,
          regret == kMostRegret ? "+" : "");
    }
    for (size_t i = 0; i < batches_.size(); ++i) {
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", X(i),
                         kHeight - kBottom + 18, batches_[i]);
    }
    return svg + fmt::format(
                     "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">batch (sequences)</text>\n"
                     "<text x=\"{}\" y=\"{}\">time beyond the best (% of it)</text>\n",
                     kWidth / 2, kHeight - 4, kLeft, kTop - 6);
  }

  // Lines between neighbouring batches where the plan can run at both.
  std::string Line(const RegretCurve& curve, const char* colour) const {
    std::string svg;
    for (size_t i = 0; i < curve.regret.size(); ++i) {
      if (curve.regret[i] < 0) continue;
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", X(i),
                         Y(curve.regret[i]), colour);
      if (i == 0 || curve.regret[i - 1] < 0) continue;
      svg += fmt::format(
          "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
          "stroke-width=\"2\"/>\n",
          X(i - 1), Y(curve.regret[i - 1]), X(i), Y(curve.regret[i]), colour);
    }
    return svg;
  }

 private:
  const std::vector<int>& batches_;
};

std::string RegretPicture(const PlanReport& report) {
  const planner::Explanation& explanation = report.explanation;
  if (explanation.batches.empty()) return "";
  const Axes axes(explanation.batches);
  std::string svg =
      fmt::format("<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" font-size=\"12\">\n",
                  kWidth, kHeight);
  svg += axes.Grid();
  std::string legend = "<ul class=\"legend\">\n";
  for (size_t i = 0; i < explanation.curves.size(); ++i) {
    const char* colour = kColours[i % std::size(kColours)];
    svg += axes.Line(explanation.curves[i], colour);
    legend +=
        fmt::format("<li><span style=\"background:{}\"></span>{}{}</li>\n", colour,
                    Escape(Describe(report.answer.candidates[explanation.curves[i].candidate])),
                    i == 0 ? " (chosen)" : "");
  }
  std::string best = "<table>\n" + Row({"batch", "best of the plans priced here"}, "th");
  for (size_t i = 0; i < explanation.batches.size(); ++i) {
    const int candidate = explanation.best[i];
    best += Row({fmt::format("{}", explanation.batches[i]),
                 candidate < 0 ? "none fits the memory"
                               : Escape(Describe(report.answer.candidates[candidate]))});
  }
  return "<h2>What each plan loses at other batches</h2>\n<p>How much longer than the best plan "
         "of the table below it takes. Where a line is missing, the plan does not fit the "
         "memory.</p>\n" +
         svg + "</svg>\n" + legend + "</ul>\n" + best + "</table>\n";
}

constexpr const char* kStyle = R"(
body { font: 15px/1.4 sans-serif; margin: 2em; color: #222; max-width: 1700px; }
table { border-collapse: collapse; } th, td { text-align: left; padding: 0.3em 0.8em;
vertical-align: top; border-bottom: 1px solid #ddd; } small { color: #666; white-space: nowrap; }
code { background: #f3f3f3; padding: 0.2em 0.4em; } .legend { list-style: none; padding: 0; }
.legend span { display: inline-block; width: 1em; height: 1em; margin-right: 0.5em; }
figure { margin: 1em 0; overflow-x: auto; }
)";

}  // namespace

Result<drawing::TracedStep> PictureOf(planner::PlanSearch& search,
                                      const planner::Candidate& candidate, strategy::Phase phase,
                                      const std::string& profile) {
  Result<planner::PredictedStep> step = search.DrawStep(candidate.setup, candidate.plan, phase);
  if (!step) return step.error();
  drawing::TracedStep traced;
  std::set<int> layers;
  for (const schedule::Task& task : step->schedule.tasks) {
    if (task.layer >= 0) layers.insert(task.layer);
  }
  traced.name =
      fmt::format("{}, {} of {} layers drawn",
                  phase == strategy::Phase::kPrefill ? "a step of prefill" : "a step of decode",
                  layers.size(), search.question().spec.num_layers());
  traced.schedule = std::move(step->schedule);
  traced.predicted = std::move(step->timeline);
  traced.predicted_by = profile;
  return traced;
}

std::string PlanPage(const PlanReport& report, const std::vector<drawing::TracedStep>& steps) {
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{0}</title>"
      "<style>{1}</style></head>\n<body>\n<h1>{0}</h1>\n",
      Escape("Plan of " + report.model), kStyle);
  const std::string relatives =
      report.costs.steps.empty() ? WordsOfRelatives(report.costs) : std::string();
  page += fmt::format("<p>{}</p>\n{}<p>Costs from {}. {}</p>\n", Escape(Describe(report.chosen())),
                      CommandOf(report).empty()
                          ? "<p>Run it with: " + Escape(HowToRun(report)) + "</p>\n"
                          : "<p><code>" + Escape(CommandOf(report)) + "</code></p>\n",
                      Escape(report.profile + (relatives.empty() ? "" : ": " + relatives)),
                      IsKnown(report.chosen().figures->throughput_interval)
                          ? "Intervals: nine times in ten."
                          : "How far its figures are off is not known.");
  page += "<table>\n" + Row({"", "what was asked for and what is foreseen"}, "th");
  const planner::Workload& workload = report.question.workload;
  page += Row({"workload", Escape(WorkloadWords(workload))});
  if (report.batch) {
    page += Row({"batch", Escape(report.batch->Describe(workload.num_requests))});
  }
  for (const auto& [name, value] : FigureLines(report.chosen(), workload)) {
    page += Row({std::string(name), Escape(value)});
  }
  const std::vector<std::string> changes = ChangesIn(report, report.chosen());
  if (!changes.empty()) {
    page +=
        Row({"changes",
             Escape(fmt::format("{}; {}", fmt::join(changes, "; "), kWhereChangesWereMeasured))});
  }
  page += "</table>\n<h2>The plan and its alternatives</h2>\n" + Table(report);
  if (report.verification) {
    page += fmt::format("<h2>Measured</h2>\n<pre>{}</pre>\n",
                        Escape(ToText(*report.verification, report.answer)));
  }
  page += RegretPicture(report);
  page += "<h2>What would change the choice</h2>\n<ul>\n";
  for (const planner::Flip& flip : report.explanation.flips) {
    page += fmt::format("<li>{}</li>\n", Escape(flip.words));
  }
  page += "</ul>\n<h2>Steps as they are predicted</h2>\n";
  for (const drawing::TracedStep& step : steps) {
    page += fmt::format("<figure>{}<figcaption>{}</figcaption></figure>\n", GanttSvg(step),
                        Escape(step.name));
  }
  return page + "</body>\n</html>\n";
}

}  // namespace convene::cli
