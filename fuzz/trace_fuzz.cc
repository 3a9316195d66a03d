// Any bytes as a trace: an error, or steps that are written and read as the same again, drawn, and
// told in figures.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "drawing/gantt.h"
#include "drawing/slow_ranks.h"
#include "drawing/step_figures.h"
#include "drawing/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace drawing = convene::drawing;
  const auto trace = drawing::TraceFromJson({reinterpret_cast<const char*>(data), size});
  if (!trace) return 0;
  const auto again = drawing::TraceFromJson(drawing::TraceJson(*trace));
  CHECK(again.ok(), "{}", again.error().message);
  CHECK(again->steps.size() == trace->steps.size());
  for (size_t i = 0; i < trace->steps.size(); ++i) {
    const drawing::TracedStep& step = trace->steps[i];
    CHECK(Validate(step.schedule).ok());
    CHECK(ToText(again->steps[i].schedule, false) == ToText(step.schedule, false));
    CHECK(GanttSvg(step).ends_with("</svg>\n"));
    CHECK(FiguresOf(step).ranks.size() == static_cast<size_t>(step.schedule.num_ranks));
    for (const convene::schedule::Timeline* timeline : {&step.measured, &step.predicted}) {
      if (timeline->tasks.empty()) continue;
      CHECK(CriticalPath(step.schedule, *timeline).size() <= step.schedule.tasks.size());
      for (const double share : OverlapShares(step.schedule, *timeline)) {
        CHECK(share >= 0 && share <= 1 + 1e-9, "{}", share);
      }
    }
  }
  for (const drawing::SlowRank& slow : drawing::FindSlowRanks(trace->steps)) {
    CHECK(slow.rank >= 0 && !slow.role.empty() && slow.ratio > 1, "{}", slow.ratio);
  }
  return 0;
}
