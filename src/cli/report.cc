#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/read_trace.h"
#include "cli/report_plan.h"
#include "cli/text_table.h"
#include "cli/value_options.h"
#include "drawing/role_names.h"
#include "drawing/slow_ranks.h"
#include "drawing/step_figures.h"

namespace convene::cli {
namespace {

using drawing::RankFigures;
using drawing::SectionFigures;
using drawing::StepFigures;

std::string Milliseconds(double seconds) { return fmt::format("{:.3f}", seconds * 1e3); }
// A trace may hold any number.
std::string Bytes(double bytes) {
  return FormatBytes(bytes > 0 ? static_cast<uint64_t>(std::min(bytes, 1e18)) : 0);
}
// Of what was predicted, against what was measured.
std::string Deviation(double predicted, double measured) {
  if (!(measured > 0)) return "-";
  return fmt::format("{:+.1f} %", (predicted / measured - 1) * 100);
}

std::string SectionTable(const StepFigures& figures) {
  const bool measured = figures.seconds > 0;
  const bool predicted = figures.predicted_seconds > 0;
  TextTable table;
  table.AddRow({"section", "ms", "sd", "waiting", "predicted", "error", "sent", "scheduled"});
  table.AddRule();
  for (const SectionFigures& section : figures.sections) {
    table.AddRow(
        {std::string(schedule::Name(section.kind)), measured ? Milliseconds(section.seconds) : "-",
         measured ? Milliseconds(section.seconds_sd) : "-",
         section.waiting_seconds > 0 ? Milliseconds(section.waiting_seconds) : "",
         predicted ? Milliseconds(section.predicted_seconds) : "-",
         measured && predicted ? Deviation(section.predicted_seconds, section.seconds) : "",
         section.sent_bytes > 0 ? Bytes(section.sent_bytes) : "",
         section.scheduled_bytes > 0 ? Bytes(section.scheduled_bytes) : ""});
  }
  return table.Format();
}

std::string RankTable(const StepFigures& figures) {
  TextTable table;
  table.AddRow({"rank", "idle", "waiting", "predicted idle", "overlap", "predicted", "sent"});
  table.AddRule();
  for (size_t rank = 0; rank < figures.ranks.size(); ++rank) {
    const RankFigures& of_rank = figures.ranks[rank];
    const auto cell = [](double of, double share) { return of > 0 ? FormatPercent(share) : "-"; };
    const std::string name =
        of_rank.role.empty() ? fmt::to_string(rank) : fmt::format("{} {}", rank, of_rank.role);
    table.AddRow({name, cell(figures.seconds, of_rank.idle_share),
                  cell(figures.seconds, of_rank.waiting_share),
                  cell(figures.predicted_seconds, of_rank.predicted_idle_share),
                  cell(figures.seconds, of_rank.overlap_share),
                  cell(figures.predicted_seconds, of_rank.predicted_overlap_share),
                  figures.has_sent_bytes ? Bytes(of_rank.sent_bytes) : "-"});
  }
  return table.Format();
}

// Empty where nobody is slow.
std::string SlowRankLines(const std::vector<drawing::SlowRank>& slow) {
  std::string text;
  for (const drawing::SlowRank& one : slow) {
    text += fmt::format(
        "slow in {}: {}, {:.2f} x the time of the other ranks with {} for the same work, over all "
        "its steps\n",
        one.steps, drawing::RankName(one.rank, one.role), one.ratio, one.role);
  }
  return text.empty() ? text : "\n" + text;
}

nlohmann::ordered_json SlowRanksToJson(const std::vector<drawing::SlowRank>& slow) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const drawing::SlowRank& one : slow) {
    ranks.push_back(
        {{"steps", one.steps}, {"rank", one.rank}, {"role", one.role}, {"ratio", one.ratio}});
  }
  return ranks;
}

std::string LoadLine(const char* what, const drawing::Balance& balance) {
  if (!(balance.mean > 0)) return "";
  return fmt::format("load of experts, {}: {:.2f} x its mean (all layers), {:.2f} x (worst)\n",
                     what, balance.mean, balance.worst);
}

std::string Text(const drawing::TracedStep& step, const StepFigures& figures, size_t step_idx) {
  std::string text = fmt::format("step {}: {}, {} rank{}", step_idx, step.name,
                                 figures.ranks.size(), figures.ranks.size() == 1 ? "" : "s");
  if (figures.seconds > 0) text += fmt::format(", {} ms", Milliseconds(figures.seconds));
  if (figures.predicted_seconds > 0) {
    text += fmt::format("; predicted {} ms", Milliseconds(figures.predicted_seconds));
    if (figures.seconds > 0) {
      text += fmt::format(" ({})", Deviation(figures.predicted_seconds, figures.seconds));
    }
  }
  text += "\n";
  if (!step.predicted_by.empty()) text += fmt::format("predicted by: {}\n", step.predicted_by);
  text += SectionTable(figures) + RankTable(figures);
  text += LoadLine("most of a rank", figures.rank_balance);
  text += LoadLine("most of an expert", figures.expert_balance);
  text += fmt::format(
      "sent by all ranks: {} counted, {} by the schedule{}\n",
      figures.has_sent_bytes ? Bytes(figures.sent_bytes) : "not", Bytes(figures.scheduled_bytes),
      figures.has_sent_bytes && figures.scheduled_bytes > 0
          ? fmt::format(" ({})", Deviation(figures.scheduled_bytes, figures.sent_bytes))
          : "");
  return text;
}

nlohmann::ordered_json StepToJson(const drawing::TracedStep& step, const StepFigures& figures) {
  const auto counted = [&](double bytes) {
    return figures.has_sent_bytes ? nlohmann::ordered_json(bytes) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json sections = nlohmann::ordered_json::array();
  for (const SectionFigures& section : figures.sections) {
    sections.push_back({{"kind", schedule::Name(section.kind)},
                        {"seconds", section.seconds},
                        {"seconds_sd", section.seconds_sd},
                        {"waiting_seconds", section.waiting_seconds},
                        {"predicted_seconds", section.predicted_seconds},
                        {"sent_bytes", counted(section.sent_bytes)},
                        {"scheduled_bytes", section.scheduled_bytes}});
  }
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const RankFigures& rank : figures.ranks) {
    ranks.push_back(
        {{"role", rank.role.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(rank.role)},
         {"idle_share", rank.idle_share},
         {"waiting_share", rank.waiting_share},
         {"overlap_share", rank.overlap_share},
         {"predicted_idle_share", rank.predicted_idle_share},
         {"predicted_overlap_share", rank.predicted_overlap_share},
         {"sent_bytes", counted(rank.sent_bytes)},
         {"scheduled_bytes", rank.scheduled_bytes}});
  }
  const auto balance = [](const drawing::Balance& of) {
    return nlohmann::ordered_json{{"mean", of.mean}, {"worst", of.worst}};
  };
  return {{"name", step.name},
          {"seconds", figures.seconds},
          {"predicted_seconds", figures.predicted_seconds},
          {"predicted_by", step.predicted_by},
          {"sections", sections},
          {"ranks", ranks},
          {"expert_load_by_rank", balance(figures.rank_balance)},
          {"expert_load_by_expert", balance(figures.expert_balance)},
          {"sent_bytes", counted(figures.sent_bytes)},
          {"scheduled_bytes", figures.scheduled_bytes}};
}

class ReportCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddPath(app, "TRACE", trace_path_, "File that --trace has written ('-': stdin)");
    AddPath(app, "--plan", plan_path_,
            "The plan that ran: what it foresaw, by kind of task, and what would have been better")
        ->type_name("FILE.json");
    AddJsonOption(app, json_path_);
  }

  Status Run() override {
    const Result<drawing::Trace> trace = ReadTrace(trace_path_);
    if (!trace) return trace.error();
    const bool wants_json = !json_path_.empty();
    std::string text;
    nlohmann::ordered_json steps = nlohmann::ordered_json::array();
    for (size_t i = 0; i < trace->steps.size(); ++i) {
      const StepFigures figures = FiguresOf(trace->steps[i]);
      text += (i > 0 ? "\n" : "") + Text(trace->steps[i], figures, i);
      if (wants_json) steps.push_back(StepToJson(trace->steps[i], figures));
    }
    const std::vector<drawing::SlowRank> slow = drawing::FindSlowRanks(trace->steps);
    text += SlowRankLines(slow);
    nlohmann::ordered_json all;
    if (wants_json) all = {{"steps", std::move(steps)}, {"slow_ranks", SlowRanksToJson(slow)}};
    if (!plan_path_.empty()) {
      const Result<PlanComparison> comparison = ComparePlan(*trace, plan_path_);
      if (!comparison) return comparison.error();
      text += ToText(*comparison);
      if (wants_json) all["plan"] = ToJson(*comparison);
    }
    const Status written = WriteJson(json_path_, all);
    if (!written || json_path_ == "-") return written;
    return WriteReport({json_path_}, text);
  }

 private:
  std::string trace_path_;
  std::string plan_path_;
  std::string json_path_;
};

}  // namespace

std::unique_ptr<Command> MakeReport() { return std::make_unique<ReportCommand>(); }

}  // namespace convene::cli
