// A step's timelines as one picture: lanes as rows, what was predicted above what was measured.
#pragma once

#include <string>

#include "drawing/trace.h"

namespace convene::drawing {

struct GanttOptions {
  int width = 1600;         // of the picture, in pixels
  double from_seconds = 0;  // of the step: what is shown of it
  double to_seconds = 0;    // 0: until its end
};

// SVG, with tooltips. Each lane that has tasks is a row, in two halves where there are both
// timelines. Grey is idle; a task of a collective is a thin line while it waits for other ranks.
// Colours are those of the legend, by kind of task.
std::string GanttSvg(const TracedStep& step, const GanttOptions& options = {});

}  // namespace convene::drawing
