// A step's timelines as one picture: lanes as rows, what was predicted above what was measured.
#pragma once

#include <string>

#include "drawing/trace.h"

namespace convene::drawing {

inline constexpr int kGanttWidth = 1600;

// SVG, with tooltips. Each lane that has tasks is a row, in two halves where there are both
// timelines. Grey is idle; a task of a collective is a thin line while it waits for other ranks.
// Colours are those of the legend, by kind of task.
// `width` is that of the picture, in pixels.
std::string GanttSvg(const TracedStep& step, int width = kGanttWidth);

}  // namespace convene::drawing
