#include "cost/task_parts.h"

#include <algorithm>

namespace convene::cost {
namespace {

using schedule::SizeKind;

double ValueOf(const schedule::Term& term, const Sizes& sizes) {
  return term.size.kind == SizeKind::kOne ? term.factor : term.factor * sizes(term.size);
}

bool IsScore(SizeKind kind) {
  return kind == SizeKind::kKeys || kind == SizeKind::kExpandedKeys || kind == SizeKind::kInputKeys;
}

bool IsCache(SizeKind kind) { return kind == SizeKind::kCached || kind == SizeKind::kInputCached; }

}  // namespace

TaskParts PartsOf(const schedule::Task& task, const Sizes& sizes) {
  TaskParts parts;
  for (const schedule::Term& term : task.work.flops) {
    (IsScore(term.size.kind) ? parts.score_flops : parts.product_flops) += ValueOf(term, sizes);
  }
  for (const schedule::Term& term : task.work.memory_bytes) {
    const double value = ValueOf(term, sizes);
    if (term.size.kind == SizeKind::kOne) {
      parts.weight_bytes += value;
      parts.groups = std::max(parts.groups, 1.0);
    } else if (term.size.kind == SizeKind::kExperts) {
      parts.weight_bytes += value;
      parts.groups += sizes(term.size);
    } else if (IsCache(term.size.kind)) {
      parts.cache_bytes += value;
    } else {
      parts.row_bytes += value;
    }
  }
  parts.link_bytes = Value(task.work.link_bytes, sizes);
  // Weights whose rows are none are not read; those that are copied have no rows.
  if (!task.work.flops.empty() && parts.product_flops <= 0) parts.weight_bytes = parts.groups = 0;
  return parts;
}

}  // namespace convene::cost
