#include "device/cpu/attend.h"

#include <algorithm>

namespace convene::device {
namespace {

double Operations(const kernels::Attention& unit) {
  double keys = 0;
  for (int token = 0; token < unit.num_tokens; ++token) {
    const int64_t seen = unit.num_keys > 0 ? unit.num_keys : unit.first_position + token + 1;
    keys += static_cast<double>(unit.window > 0 ? std::min<int64_t>(seen, unit.window) : seen);
  }
  return 2.0 * unit.num_heads * (unit.key_dim + unit.value_dim) * keys;
}

}  // namespace

void Attender::Run(std::vector<kernels::Attention>& units) {
  if (!RunInSpans(units)) {
    context_.pool.ParallelFor(std::ssize(units), [&](int64_t index, int thread_idx) {
      context_.kernels.attend(WithScratch(units[index], thread_idx));
    });
  }
  for (const kernels::Attention& unit : units) context_.statistics.flops += Operations(unit);
}

kernels::Attention Attender::WithScratch(const kernels::Attention& unit, int thread_idx) const {
  kernels::Attention attention = unit;
  attention.scratch = context_.workspace.attention_scratch.row(thread_idx);
  return attention;
}

bool Attender::RunInSpans(const std::vector<kernels::Attention>& units) {
  // Enough units keep all threads busy; few of them with long contexts do not.
  if (std::ssize(units) >= int64_t{kUnitsPerThread} * context_.pool.size()) return false;
  spans_.clear();
  int num_rows = 0;
  for (int unit_idx = 0; unit_idx < std::ssize(units); ++unit_idx) {
    const kernels::Attention& unit = units[unit_idx];
    for (int span = FirstSpan(unit); span < EndSpan(unit); ++span) {
      spans_.push_back({unit_idx, span, num_rows});
      num_rows += unit.num_tokens * unit.num_heads;
    }
  }
  if (spans_.size() == units.size() || num_rows > Workspace::kSpanPartials) return false;

  const RowBuffer& partials = context_.workspace.span_partials;
  const int row_floats = kernels::SpanRowFloats(units.front().value_dim);
  const auto partial = [&](const Span& span) {
    return reinterpret_cast<float*>(partials.data) + int64_t{span.first_row} * row_floats;
  };
  context_.pool.ParallelFor(std::ssize(spans_), [&](int64_t index, int thread_idx) {
    const Span& span = spans_[index];
    context_.kernels.attend_span(WithScratch(units[span.unit_idx], thread_idx), span.span,
                                 partial(span));
  });
  context_.pool.ParallelFor(std::ssize(spans_), [&](int64_t index, int thread_idx) {
    const Span& span = spans_[index];
    if (index > 0 && spans_[index - 1].unit_idx == span.unit_idx) return;
    context_.kernels.merge_spans(WithScratch(units[span.unit_idx], thread_idx), partial(span));
  });
  return true;
}

}  // namespace convene::device
