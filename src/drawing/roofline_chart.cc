#include "drawing/roofline_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/units.h"
#include "drawing/svg_text.h"

namespace convene::drawing {
namespace {

constexpr int kWidth = 860;
constexpr int kHeight = 560;  // of one chart
constexpr int kPlotLeft = 90;
constexpr int kPlotRight = 36;
constexpr int kPlotTop = 84;
constexpr int kBottom = 56;
constexpr int kLegendColumns = 3;
constexpr double kRadius = 5;         // of a point
constexpr double kLetterWidth = 7.4;  // of a bold letter, about
constexpr double kLetterHeight = 11;

std::string RateText(double flops_per_second) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P", "E"};
  size_t unit = 0;
  while (flops_per_second >= 999.5 && unit + 1 < std::size(kUnits)) {
    flops_per_second /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g} {}FLOP/s", flops_per_second, kUnits[unit]);
}

// "0.1", "100", "10,000"
std::string PowerOfTen(int exponent) {
  const double value = std::pow(10, exponent);
  return exponent < 0 ? fmt::format("{:.4g}", value)
                      : FormatCount(static_cast<uint64_t>(std::llround(value)));
}

// A part of the picture that text must not cover.
struct Box {
  double left = 0;
  double top = 0;
  double right = 0;
  double bottom = 0;

  bool Overlaps(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

// Whole powers of ten around some values.
struct Decades {
  int low = 0;
  int high = 1;

  void Include(double value) {
    low = std::min(low, static_cast<int>(std::floor(std::log10(value))));
    high = std::max(high, static_cast<int>(std::ceil(std::log10(value))));
  }
};

class RooflineDrawing {
 public:
  RooflineDrawing(const RooflineChart& chart, int top, std::string& text)
      : chart_(chart), top_(top), text_(text) {
    bool is_first = true;
    for (const RooflineMark& mark : chart.marks) {
      if (!IsShown(mark)) continue;
      Include(mark.intensity, mark.flops_per_second, is_first);
      is_first = false;
    }
    for (const Roof& roof : chart.roofs) {
      if (roof.flops_per_second <= 0) continue;
      const double ridge = roof.bytes_per_second > 0 ? roof.flops_per_second / roof.bytes_per_second
                                                     : std::pow(10, x_.low);
      Include(ridge, roof.flops_per_second, is_first);
      is_first = false;
    }
    ++x_.high;
  }

  void Draw() {
    Add(R"(<text x="{}" y="{}" font-size="15" font-weight="bold">{}</text>)", kPlotLeft, top_ + 22,
        Escaped(chart_.title));
    DrawAxes();
    for (size_t i = 0; i < chart_.roofs.size(); ++i) DrawRoof(chart_.roofs[i], i);
    for (const RooflineMark& mark : chart_.marks) {
      if (IsShown(mark)) DrawMark(mark);
    }
    for (const RooflineMark& mark : chart_.marks) {
      if (IsShown(mark)) DrawName(mark);
    }
  }

 private:
  template <typename... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }

  static bool IsShown(const RooflineMark& mark) {
    return mark.intensity > 0 && mark.flops_per_second > 0;
  }

  void Include(double intensity, double flops_per_second, bool is_first) {
    if (is_first) {
      const auto decade = [](double value) {
        const int low = static_cast<int>(std::floor(std::log10(value)));
        return Decades{low, low + 1};
      };
      x_ = decade(intensity);
      y_ = decade(flops_per_second);
    }
    x_.Include(intensity);
    y_.Include(flops_per_second);
  }

  double XOf(double intensity) const {
    const double share = (std::log10(intensity) - x_.low) / (x_.high - x_.low);
    return kPlotLeft + share * (kWidth - kPlotLeft - kPlotRight);
  }
  double YOf(double flops_per_second) const {
    const double share = (std::log10(flops_per_second) - y_.low) / (y_.high - y_.low);
    return top_ + kHeight - kBottom - share * (kHeight - kBottom - kPlotTop);
  }
  int right() const { return kWidth - kPlotRight; }
  int bottom() const { return top_ + kHeight - kBottom; }

  void DrawAxes() {
    for (int decade = x_.low; decade <= x_.high; ++decade) {
      const double x = XOf(std::pow(10, decade));
      Add(R"(<line x1="{0:.1f}" y1="{1}" x2="{0:.1f}" y2="{2}" stroke="#e5e7eb"/>)", x,
          top_ + kPlotTop, bottom());
      Add(R"(<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>)", x, bottom() + 18,
          PowerOfTen(decade));
    }
    for (int decade = y_.low; decade <= y_.high; ++decade) {
      const double y = YOf(std::pow(10, decade));
      Add(R"(<line x1="{1}" y1="{0:.1f}" x2="{2}" y2="{0:.1f}" stroke="#e5e7eb"/>)", y, kPlotLeft,
          right());
      Add(R"(<text x="{}" y="{:.1f}" text-anchor="end">{}</text>)", kPlotLeft - 6, y + 4,
          RateText(std::pow(10, decade)));
    }
    Add(R"(<text x="{}" y="{}" text-anchor="middle">FLOPs per byte</text>)",
        (kPlotLeft + right()) / 2, bottom() + 38);
  }

  void DrawRoof(const Roof& roof, size_t index) {
    const double low = std::pow(10, x_.low);
    const double high = std::pow(10, x_.high);
    const double floor = std::pow(10, y_.low);
    const double ceiling = std::pow(10, y_.high);
    const double slope = roof.bytes_per_second;
    const double peak =
        roof.flops_per_second > 0 ? std::min(roof.flops_per_second, ceiling) : ceiling;
    std::string points;
    const auto add = [&](double intensity, double rate) {
      points += fmt::format("{:.1f},{:.1f} ", XOf(intensity), YOf(rate));
    };
    if (slope > 0) {
      const double begin = std::clamp(floor / slope, low, high);
      const double ridge = std::clamp(peak / slope, low, high);
      add(begin, std::clamp(slope * begin, floor, peak));
      add(ridge, std::clamp(slope * ridge, floor, peak));
      if (roof.flops_per_second > 0) add(high, peak);
    } else {
      add(low, peak);
      add(high, peak);
    }
    Add(R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="2.5"{}/>)", points,
        roof.colour, slope > 0 ? "" : R"( stroke-dasharray="7 4")");
    const int column = static_cast<int>(index % kLegendColumns);
    const int x = kPlotLeft + column * (right() - kPlotLeft) / kLegendColumns;
    const int y = top_ + 42 + static_cast<int>(index / kLegendColumns) * 18;
    Add(R"(<line x1="{0}" y1="{1}" x2="{2}" y2="{1}" stroke="{3}" stroke-width="3"{4}/>)", x, y - 4,
        x + 18, roof.colour, slope > 0 ? "" : R"( stroke-dasharray="7 4")");
    Add(R"(<text x="{}" y="{}">{}</text>)", x + 24, y, Escaped(roof.name));
  }

  void DrawMark(const RooflineMark& mark) {
    const double x = XOf(mark.intensity);
    const double y = YOf(mark.flops_per_second);
    Add(R"(<line x1="{0:.1f}" y1="{1}" x2="{0:.1f}" y2="{2:.1f}" stroke="{3}" )"
        R"(stroke-dasharray="4 4"/>)",
        x, bottom(), y, mark.colour);
    if (mark.is_level) {
      Add(R"(<line x1="{0:.1f}" y1="{1:.1f}" x2="{2}" y2="{1:.1f}" stroke="{3}" )"
          R"(stroke-width="2"/>)",
          x, y, right(), mark.colour);
    }
    const std::string tip = fmt::format("{}: {:.4g} FLOP/B, {}", mark.name, mark.intensity,
                                        RateText(mark.flops_per_second));
    Add(R"(<circle cx="{:.1f}" cy="{:.1f}" r="{}" fill="{}"><title>{}</title></circle>)", x, y,
        kRadius, mark.colour, Escaped(tip));
    taken_.push_back({x - kRadius, y - kRadius, x + kRadius, y + kRadius});
  }

  // Beside its point, where no point and no other name is; if there is no such place, right of it.
  void DrawName(const RooflineMark& mark) {
    const double x = XOf(mark.intensity);
    const double y = YOf(mark.flops_per_second);
    const double width = kLetterWidth * static_cast<double>(mark.name.size());
    Box best;
    bool found = false;
    for (const double down : {-8, 18, -24, -40, 34, -56, 50, -72}) {
      for (const double left : {x + 8, x - 8 - width}) {
        const Box box = {left, y + down - kLetterHeight, left + width, y + down + 3};
        const bool is_free = std::none_of(taken_.begin(), taken_.end(),
                                          [&](const Box& other) { return box.Overlaps(other); });
        const bool is_inside = box.left >= kPlotLeft && box.right <= right() &&
                               box.top >= top_ + kPlotTop && box.bottom <= bottom();
        if (!found && is_free && is_inside) {
          best = box;
          found = true;
        }
      }
    }
    if (!found) best = {x + 8, y - 8 - kLetterHeight, x + 8 + width, y - 5};
    taken_.push_back(best);
    // A name that lies further off is led to by a line.
    if (best.bottom < y - kLetterHeight || best.top > y + kLetterHeight) {
      const double end = std::clamp(x, best.left, best.right);
      Add(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="#6b7280"/>)", x, y, end,
          best.bottom < y ? best.bottom : best.top);
    }
    // A white edge keeps it readable over lines.
    Add(R"(<text x="{:.1f}" y="{:.1f}" font-weight="bold" stroke="#ffffff" stroke-width="3" )"
        R"(paint-order="stroke">{}</text>)",
        best.left, best.bottom - 3, Escaped(mark.name));
  }

  const RooflineChart& chart_;
  int top_;
  std::string& text_;
  Decades x_;
  Decades y_;
  std::vector<Box> taken_;
};

}  // namespace

std::string RooflineSvg(std::span<const RooflineChart> charts) {
  const int height = kHeight * static_cast<int>(charts.size());
  std::string text = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" )"
      R"(font-family="Helvetica, Arial, sans-serif" font-size="12">)"
      "\n"
      R"(<rect width="{0}" height="{1}" fill="#ffffff"/>)"
      "\n",
      kWidth, height);
  int top = 0;
  for (const RooflineChart& chart : charts) {
    RooflineDrawing(chart, top, text).Draw();
    top += kHeight;
  }
  return text + "</svg>\n";
}

}  // namespace convene::drawing
