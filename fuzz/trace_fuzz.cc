// Any bytes as a trace: an error, or steps that are written and read as the same again, and drawn.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "schedule/gantt.h"
#include "schedule/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace schedule = convene::schedule;
  const auto trace = schedule::TraceFromJson({reinterpret_cast<const char*>(data), size});
  if (!trace) return 0;
  const auto again = schedule::TraceFromJson(schedule::TraceJson(*trace));
  CHECK(again.ok(), "{}", again.error().message);
  CHECK(again->steps.size() == trace->steps.size());
  for (size_t i = 0; i < trace->steps.size(); ++i) {
    const schedule::TracedStep& step = trace->steps[i];
    CHECK(Validate(step.schedule).ok());
    CHECK(ToText(again->steps[i].schedule, false) == ToText(step.schedule, false));
    CHECK(GanttSvg(step).ends_with("</svg>\n"));
    for (const schedule::Timeline* timeline : {&step.measured, &step.predicted}) {
      if (timeline->tasks.empty()) continue;
      CHECK(CriticalPath(step.schedule, *timeline).size() <= step.schedule.tasks.size());
      for (const double share : OverlapShares(step.schedule, *timeline)) {
        CHECK(share >= 0 && share <= 1 + 1e-9, "{}", share);
      }
    }
  }
  return 0;
}
