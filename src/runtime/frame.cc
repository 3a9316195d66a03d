#include "runtime/frame.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace convene::runtime {

int64_t Frame::ExchangeBytes(const model::ModelSpec& spec, kernels::ActivationFormat format,
                             const Options& options) {
  ExchangeMemory counted;
  RowExchange::TakeBuffers(spec, format, options.row_exchange, counted);
  return counted.used_bytes() + ExpertRows::MemoryBytes(options.expert_rows);
}

Frame::Frame(const model::ModelSpec& spec, const Options& options, Activations memory,
             comm::Group* group)
    : part(options.attention.part),
      rows(spec),
      activations(std::move(memory)),
      owners(static_cast<size_t>(options.attention.parts)),
      exchange_memory(activations.exchange.bytes()),
      expert_rows(options.expert_rows, group, exchange_memory),
      row_buffers(RowExchange::TakeBuffers(spec, activations.format, options.row_exchange,
                                           exchange_memory)) {
  // The memory plan has what the buffers took, no less and no more.
  CHECK(exchange_memory.left_bytes() == 0, "{} bytes too many", exchange_memory.left_bytes());
}

void Frame::Begin(std::vector<SequenceStep> sequences, int rows_before,
                  hardware::ThreadPool& pool) {
  step = std::move(sequences);
  rows.Begin(step, pool);
  const auto num_parts = static_cast<int>(owners.size());
  for (int i = 0; i < num_parts; ++i) {
    const strategy::Part of_rows = strategy::PartOf(rows.num_rows(), i, num_parts);
    owners[i] = {of_rows.first, of_rows.size};
  }
  first_own_row = rows_before;
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
}

void Frame::KeepWanted() {
  DivideWanted();
  for (int i = own().first; i < own().first + own().count; ++i) {
    std::memmove(activations.hidden.row(i), activations.hidden.row(rows.wanted()[i]),
                 activations.hidden.stride_bytes);
  }
}

}  // namespace convene::runtime
