#include "evaluate/reference_logits.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "engine/score_tokens.h"

namespace convene::evaluate {

Result<ReferenceLogits> ReferenceLogits::Reserve(const ScoredText& text, int vocab_size,
                                                 uint64_t limit_bytes) {
  const uint64_t row_bytes = sizeof(float) * static_cast<uint64_t>(vocab_size);
  const uint64_t size_bytes = row_bytes * static_cast<uint64_t>(text.num_scored());
  if (size_bytes > limit_bytes) {
    return Error{fmt::format(
        "the reference's logits of {} tokens ({} each) take {}, more than {}; use --max-tokens {}",
        FormatCount(text.tokens.size()), FormatBytes(row_bytes), FormatBytes(size_bytes),
        FormatBytes(limit_bytes), limit_bytes / row_bytes)};
  }
  return ReferenceLogits(text.Windows(), text.num_scored(), vocab_size);
}

template <typename F>
Status ReferenceLogits::ForEachScored(engine::LoadedModel& model, F&& f) const {
  return engine::ForEachLogits(
      model, windows_, [&](int window_idx, int position, std::span<const float> logits) {
        const std::span<const int32_t> own = windows_[static_cast<size_t>(window_idx)];
        const auto next = static_cast<size_t>(position) + 1;
        if (next >= own.size()) return;
        // Every window but the last has as many rows as the first.
        const size_t row = static_cast<size_t>(window_idx) * (windows_.front().size() - 1);
        f(row + next - 1, own[next], logits);
      });
}

Result<LogitsDifference> ReferenceLogits::Compute(engine::LoadedModel& model) {
  LogitsDifference itself;
  const Status computed =
      ForEachScored(model, [&](size_t row, int32_t next_token, std::span<const float> logits) {
        std::copy(logits.begin(), logits.end(), &logits_[row * vocab_size_]);
        itself.Add(logits, logits, next_token);
      });
  if (!computed) return computed.error();
  return itself;
}

Result<LogitsDifference> ReferenceLogits::Compare(engine::LoadedModel& model) const {
  LogitsDifference difference;
  const Status compared =
      ForEachScored(model, [&](size_t row, int32_t next_token, std::span<const float> logits) {
        difference.Add({&logits_[row * vocab_size_], vocab_size_}, logits, next_token);
      });
  if (!compared) return compared.error();
  return difference;
}

}  // namespace convene::evaluate
