#include "cli/paged_figures.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "weights/paged_weights.h"

namespace convene::cli {
namespace {

const char* NameOf(kernels::KvFormat format) {
  switch (format) {
    case kernels::KvFormat::kF32:
      return "f32";
    case kernels::KvFormat::kBf16:
      return "bf16";
    case kernels::KvFormat::kInt8:
      return "int8";
  }
  return "";
}

// Null: of nothing.
nlohmann::ordered_json ShareOf(int64_t part, int64_t whole) {
  if (whole == 0) return nullptr;
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

nlohmann::ordered_json PagedFigures(const engine::LoadedModel& model) {
  if (model.paged() == nullptr) return nullptr;
  const weights::PageStatistics pages = model.paged()->statistics();
  return {{"buffers", model.memory().num_page_buffers},
          {"pages_used", pages.num_used},
          {"pages_read", pages.num_read},
          {"read_bytes", pages.read_bytes},
          {"read_seconds", pages.read_seconds},
          {"found_in_memory_share", ShareOf(pages.num_found, pages.num_used)},
          {"chosen_experts", pages.num_chosen},
          {"predicted_experts", pages.num_predicted},
          {"predicted_share", ShareOf(pages.num_predicted, pages.num_chosen)}};
}

nlohmann::ordered_json SpillFigures(const engine::LoadedModel& model) {
  if (model.memory().num_spilled_blocks == 0) return nullptr;
  const runtime::SpillStatistics spilled = model.spill_statistics();
  return {{"read_bytes", spilled.read_bytes},
          {"written_bytes", spilled.written_bytes},
          {"seconds", spilled.seconds}};
}

nlohmann::ordered_json ChosenFigures(const engine::LoadedModel& model) {
  const engine::MemoryPlan& memory = model.memory();
  if (model.paged() == nullptr && memory.num_spilled_blocks == 0) return nullptr;
  return {{"sequences", model.max_sequences()},
          {"step_tokens", model.max_step_tokens()},
          {"weights", kernels::Name(model.formats().weights.matrices)},
          {"kv", NameOf(model.formats().kv)},
          {"kv_blocks_in_memory", memory.num_kv_blocks},
          {"kv_blocks_on_disk", memory.num_spilled_blocks}};
}

}  // namespace convene::cli
