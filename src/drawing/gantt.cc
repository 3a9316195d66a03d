#include "drawing/gantt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <unordered_map>

#include "drawing/gantt_colours.h"
#include "drawing/role_names.h"
#include "drawing/svg_text.h"

namespace convene::drawing {
namespace {

using schedule::kNumLaneKinds;
using schedule::Lane;
using schedule::LaneKind;
using schedule::Task;
using schedule::TaskTime;
using schedule::Timeline;

std::string FormatSeconds(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} µs", seconds * 1e6);
}

// 1, 2 or 5 times a power of ten, so that about `count` fit.
double TickStep(double seconds, int count) {
  const double raw = seconds / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

constexpr int kLeft = 128;   // for the names of ranks and lanes
constexpr int kRight = 100;  // for idle and overlap
constexpr int kTop = 76;
constexpr int kLegendRow = 20;

class GanttDrawing {
 public:
  GanttDrawing(const TracedStep& step, int width)
      : step_(step), schedule_(step.schedule), roles_(RoleNames(step.schedule)), width_(width) {
    for (const Timeline* timeline : {&step.predicted, &step.measured}) {
      CHECK(timeline->tasks.empty() || timeline->tasks.size() == schedule_.tasks.size());
      if (!timeline->tasks.empty()) timelines_.push_back(timeline);
    }
    for (const Timeline* timeline : timelines_) end_ = std::max(end_, timeline->seconds());
    if (end_ <= 0) end_ = 1e-6;
    half_height_ = (schedule_.num_ranks > 4 ? 11 : 17) + (timelines_.size() < 2 ? 6 : 0);
    for (const Task& task : schedule_.tasks) {
      used_kinds_[static_cast<size_t>(task.kind)] = true;
    }
    PlaceRows();
  }

  std::string Draw() && {
    const int legend = PlaceLegend();
    const int height = bottom_ + 40 + legend;
    Add(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" )"
        R"(font-family="Helvetica, Arial, sans-serif" font-size="12">)",
        width_, height);
    Add(R"(<rect width="{}" height="{}" fill="#ffffff"/>)", width_, height);
    DrawTitle();
    DrawRows();
    DrawAxis();
    for (size_t half = 0; half < timelines_.size(); ++half) DrawTasks(static_cast<int>(half));
    text_ += legend_;
    text_ += "</svg>\n";
    return std::move(text_);
  }

 private:
  struct Row {
    Lane lane;
    int top = 0;
  };

  template <typename... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }

  int row_height() const {
    return half_height_ * std::max<int>(1, static_cast<int>(timelines_.size()));
  }
  int right() const { return width_ - kRight; }
  double XOf(double seconds) const { return kLeft + seconds / end_ * (right() - kLeft); }

  void PlaceRows() {
    std::vector<bool> used(static_cast<size_t>(schedule_.num_ranks) * kNumLaneKinds);
    for (const Task& task : schedule_.tasks) used[RowIndex(task.lane)] = true;
    row_of_lane_.assign(used.size(), -1);
    int y = kTop;
    for (int rank = 0; rank < schedule_.num_ranks; ++rank) {
      for (int lane = 0; lane < kNumLaneKinds; ++lane) {
        const Lane row = {rank, static_cast<LaneKind>(lane)};
        if (!used[RowIndex(row)]) continue;
        row_of_lane_[RowIndex(row)] = static_cast<int>(rows_.size());
        rows_.push_back({row, y});
        y += row_height() + 3;
      }
      y += 8;
    }
    bottom_ = y - 8;
  }

  static size_t RowIndex(const Lane& lane) {
    return static_cast<size_t>(lane.rank) * kNumLaneKinds + static_cast<size_t>(lane.kind);
  }

  void DrawTitle() {
    Add(R"(<text x="{}" y="22" font-size="16" font-weight="bold">{}</text>)", kLeft,
        Escaped(step_.name.empty() ? "One step" : step_.name));
    std::string words;
    const double predicted = step_.predicted.seconds();
    const double measured = step_.measured.seconds();
    if (!step_.predicted.tasks.empty()) words += "predicted " + FormatSeconds(predicted);
    if (!step_.measured.tasks.empty()) {
      words += (words.empty() ? "measured " : " (upper half of a row), measured ") +
               FormatSeconds(measured);
      if (predicted > 0) {
        words += fmt::format(" (lower half): {:+.1f} %", (measured / predicted - 1) * 100);
      }
    }
    if (!step_.predicted_by.empty()) words += "; predicted by " + Escaped(step_.predicted_by);
    Add(R"(<text x="{}" y="42" fill="#475569">{}</text>)", kLeft, words);
  }

  void DrawRows() {
    std::vector<double> overlap;
    if (!timelines_.empty()) overlap = schedule::OverlapShares(schedule_, *timelines_.back());
    int rank = -1;
    bool overlap_shown = false;
    for (const Row& row : rows_) {
      const double middle = row.top + row_height() / 2.0 + 4;
      if (row.lane.rank != rank) {
        rank = row.lane.rank;
        overlap_shown = false;
        Add(R"(<text x="8" y="{}" font-weight="bold">rank {}</text>)", middle, rank);
        if (!roles_[rank].empty()) {
          Add(R"(<text x="8" y="{}" font-weight="bold" fill="#475569">{}</text>)", middle + 14,
              roles_[rank]);
        }
      }
      Add(R"(<text x="{}" y="{}" text-anchor="end" fill="#475569">{}</text>)", kLeft - 6, middle,
          Name(row.lane.kind));
      Add(R"(<rect x="{}" y="{}" width="{}" height="{}" fill="#e2e8f0"/>)", kLeft, row.top,
          right() - kLeft, row_height());
      if (timelines_.empty()) continue;
      if (row.lane.kind == LaneKind::kCompute || row.lane.kind == LaneKind::kHost) {
        Add(R"(<text x="{}" y="{}" fill="#475569">idle {:.1f} %</text>)", right() + 8, middle,
            IdleShare(row.lane) * 100);
      } else if (!std::exchange(overlap_shown, true)) {
        Add(R"(<text x="{}" y="{}" fill="#475569">overlap {:.0f} %</text>)", right() + 8, middle,
            overlap[rank] * 100);
      }
    }
  }

  // Of the lane, in the lower timeline.
  double IdleShare(const Lane& lane) const {
    const Timeline& timeline = *timelines_.back();
    double busy = 0;
    for (size_t id = 0; id < schedule_.tasks.size(); ++id) {
      if (schedule_.tasks[id].lane == lane) busy += timeline.tasks[id].seconds();
    }
    return timeline.seconds() > 0 ? std::max(0.0, 1 - busy / timeline.seconds()) : 0;
  }

  void DrawAxis() {
    const double step = TickStep(end_, 12);
    const auto [unit, per_second] = end_ >= 5      ? std::pair("s", 1.0)
                                    : end_ >= 1e-3 ? std::pair("ms", 1e3)
                                                   : std::pair("µs", 1e6);
    for (int i = 0; i <= 40; ++i) {
      const double at = i * step;
      if (at > end_ * (1 + 1e-9)) break;
      Add(R"(<line x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}" stroke="#94a3b8" stroke-width="0.5"/>)",
          XOf(at), kTop - 8, bottom_ + 4);
      for (const int y : {kTop - 12, bottom_ + 18}) {
        Add(R"(<text x="{:.1f}" y="{}" text-anchor="middle" fill="#475569">{:.4g}</text>)", XOf(at),
            y, at * per_second);
      }
    }
    Add(R"(<text x="{}" y="{}" fill="#475569">{}</text>)", right() + 20, bottom_ + 18, unit);
  }

  // When the last rank came to the collective of each task.
  std::vector<double> LastStarts(const Timeline& timeline) const {
    std::unordered_map<int, double> of_collective;
    std::vector<double> starts;
    for (size_t id = 0; id < schedule_.tasks.size(); ++id) {
      double& last = of_collective[schedule_.tasks[id].collective];
      last = std::max(last, timeline.tasks[id].start);
    }
    for (size_t id = 0; id < schedule_.tasks.size(); ++id) {
      const int collective = schedule_.tasks[id].collective;
      const TaskTime& time = timeline.tasks[id];
      starts.push_back(collective < 0 ? time.start
                                      : std::clamp(of_collective[collective], time.start,
                                                   std::max(time.start, time.end)));
    }
    return starts;
  }

  std::string Tooltip(size_t id) const {
    const Task& task = schedule_.tasks[id];
    std::string text =
        fmt::format("{}, {} {}", Label(task), RankName(task.lane.rank, roles_[task.lane.rank]),
                    Name(task.lane.kind));
    for (const Timeline* timeline : timelines_) {
      const TaskTime& time = timeline->tasks[id];
      text += timeline == &step_.predicted ? "&#10;predicted " : "&#10;measured ";
      text += time.end < time.start
                  ? "not at all"
                  : fmt::format("{}, from {} to {}", FormatSeconds(time.seconds()),
                                FormatSeconds(time.start), FormatSeconds(time.end));
    }
    return text;
  }

  void DrawTasks(int half) {
    const Timeline& timeline = *timelines_[half];
    const std::vector<double> last_starts = LastStarts(timeline);
    for (size_t id = 0; id < schedule_.tasks.size(); ++id) {
      const TaskTime& time = timeline.tasks[id];
      if (time.end < time.start || time.end < 0) continue;
      const Task& task = schedule_.tasks[id];
      const std::string_view colour = Colour(task.kind);
      const int top = rows_[row_of_lane_[RowIndex(task.lane)]].top + half * half_height_;
      const double start = XOf(std::max(time.start, 0.0));
      const double begin = XOf(std::clamp(last_starts[id], 0.0, end_));
      const double end = XOf(time.end);
      text_ += "<g><title>" + Tooltip(id) + "</title>";
      // Beside measured times, predicted ones are lighter.
      const double opacity = timelines_.size() > 1 && half == 0 ? 0.5 : 1;
      if (begin - start > 0.2) {
        Add(R"(<rect x="{:.2f}" y="{}" width="{:.2f}" height="2" fill="{}" opacity="{}"/>)", start,
            top + half_height_ / 2 - 1, begin - start, colour, opacity);
      }
      // A thin white edge keeps neighbours of one colour apart where there is room for it.
      const double gap = end - begin > 3 ? 0.6 : 0;
      Add(R"(<rect x="{:.2f}" y="{}" width="{:.2f}" height="{}" fill="{}" opacity="{}"/>)", begin,
          top, std::max(0.4, end - begin - gap), half_height_ - 1, colour, opacity);
      DrawLabel(task, begin, end, top, opacity == 1 && IsDark(colour));
      text_ += "</g>\n";
    }
  }

  void DrawLabel(const Task& task, double begin, double end, int top, bool white) {
    const int size = half_height_ > 12 ? 11 : 9;
    const std::string full = Label(task);
    const std::string place = full.substr(std::min(full.size(), Name(task.kind).size() + 1));
    const auto width = [&](const std::string& text) {
      return static_cast<double>(text.size()) * size * 0.56 + 4;
    };
    const std::string& shown = width(full) <= end - begin ? full : place;
    if (shown.empty() || width(shown) > end - begin) return;
    Add(R"(<text x="{:.1f}" y="{}" font-size="{}" text-anchor="middle" fill="{}">{}</text>)",
        (begin + end) / 2, top + half_height_ / 2 + size / 2 - 1, size,
        white ? "#ffffff" : "#000000", shown);
  }

  // Returns its height.
  int PlaceLegend() {
    std::string drawn;
    std::swap(text_, drawn);
    int x = kLeft;
    int y = bottom_ + 40;
    std::vector<std::pair<std::string_view, std::string>> entries;  // colour and kinds
    for (int i = 0; i < schedule::kNumTaskKinds; ++i) {
      if (!used_kinds_[i]) continue;
      const auto kind = static_cast<schedule::TaskKind>(i);
      const auto same = std::ranges::find_if(
          entries, [&](const auto& entry) { return entry.first == Colour(kind); });
      if (same == entries.end()) {
        entries.emplace_back(Colour(kind), Name(kind));
      } else {
        same->second += fmt::format(", {}", Name(kind));
      }
    }
    entries.emplace_back("#e2e8f0", "idle");
    if (timelines_.size() > 1) entries.emplace_back("", "light: predicted");
    if (HasCollectives()) entries.emplace_back("", "thin: waits for other ranks");
    for (const auto& [colour, kinds] : entries) {
      const int width = 34 + static_cast<int>(kinds.size()) * 7;
      if (x > kLeft && x + width > width_ - 8) {
        x = kLeft;
        y += kLegendRow;
      }
      if (!colour.empty()) {
        Add(R"(<rect x="{}" y="{}" width="14" height="12" fill="{}"/>)", x, y - 10, colour);
      }
      Add(R"(<text x="{}" y="{}">{}</text>)", colour.empty() ? x : x + 19, y, kinds);
      x += width;
    }
    std::swap(text_, drawn);
    legend_ = std::move(drawn);
    return y - bottom_ - 40 + kLegendRow;
  }

  bool HasCollectives() const {
    return std::any_of(schedule_.tasks.begin(), schedule_.tasks.end(),
                       [](const Task& task) { return task.collective >= 0; });
  }

  const TracedStep& step_;
  const schedule::Schedule& schedule_;
  const std::vector<std::string> roles_;  // by rank
  const int width_;
  std::vector<const Timeline*> timelines_;  // predicted first
  double end_ = 0;                          // of the longest of them, in seconds
  int half_height_ = 0;                     // of a row; the whole one if there is one timeline
  int bottom_ = 0;
  std::vector<Row> rows_;
  std::vector<int> row_of_lane_;  // by rank and lane; -1: none
  std::array<bool, schedule::kNumTaskKinds> used_kinds_ = {};
  std::string text_;
  std::string legend_;
};

}  // namespace

std::string GanttSvg(const TracedStep& step, int width) { return GanttDrawing(step, width).Draw(); }

}  // namespace convene::drawing
