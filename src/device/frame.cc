#include "device/frame.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace convene::device {

int64_t Frame::ExchangeBytes(const Options& options) {
  ExchangeMemory counted;
  RowBuffers::Take(options.row_buffers, counted);
  return counted.used_bytes() + ExpertRows::MemoryBytes(options.expert_rows);
}

Frame::Frame(const model::ModelSpec& spec, const Options& options,
             std::unique_ptr<FrameMemory> memory_in, comm::Group* group)
    : part(options.attention.part),
      rows(spec),
      memory(std::move(memory_in)),
      owners(static_cast<size_t>(options.attention.parts)),
      exchange_memory(memory->exchange()),
      expert_rows(options.expert_rows, group, exchange_memory),
      row_buffers(RowBuffers::Take(options.row_buffers, exchange_memory)) {
  // The memory plan has what the buffers took, no less and no more.
  CHECK(exchange_memory.left_bytes() == 0, "{} bytes too many", exchange_memory.left_bytes());
}

void Frame::Begin(std::vector<SequenceStep> sequences) {
  step = std::move(sequences);
  rows.Begin(step);
  const auto num_parts = static_cast<int>(owners.size());
  for (int i = 0; i < num_parts; ++i) {
    const strategy::Part of_rows = strategy::PartOf(rows.num_rows(), i, num_parts);
    owners[i] = {of_rows.first, of_rows.size};
  }
  has_only_wanted = false;
}

void Frame::DivideWanted() {
  const std::span<const int32_t> wanted = rows.wanted();
  const auto num_parts = static_cast<int>(owners.size());
  int first = 0;
  for (int i = 0; i < num_parts; ++i) {
    const strategy::Part before = strategy::PartOf(rows.num_rows(), i, num_parts);
    const auto end = std::lower_bound(wanted.begin(), wanted.end(), before.first + before.size);
    const auto last = static_cast<int>(end - wanted.begin());
    owners[i] = {first, last - first};
    first = last;
  }
  has_only_wanted = true;
}

}  // namespace convene::device
