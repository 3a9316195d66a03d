// The colours of a Gantt chart's tasks.
#pragma once

#include <string_view>

#include "schedule/schedule.h"

namespace convene::drawing {

// "#2563eb". Kinds that do not meet in one schedule may share a colour.
std::string_view Colour(schedule::TaskKind kind);

bool IsDark(std::string_view colour);

}  // namespace convene::drawing
