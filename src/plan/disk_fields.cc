#include "plan/disk_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/quote.h"

namespace convene::plan {
namespace {

using nlohmann::json;

constexpr int kMostExpertsInMemory = 1 << 24;
constexpr int kMostBlocks = 1 << 24;
constexpr int kMostBuffers = 1 << 12;

struct SpillMember {
  const char* name;
  int SpilledKv::*value;
  int least;
  int most;
};
constexpr SpillMember kMembers[] = {
    {"blocks_in_memory", &SpilledKv::blocks_in_memory, 0, kMostBlocks},
    {"buffers", &SpilledKv::buffers, 1, kMostBuffers},
    {"buffer_blocks", &SpilledKv::buffer_blocks, 1, kMostBlocks}};

// `what` names it in the error. One beyond int64_t is shown as it is written.
Result<int> InRange(const std::string& what, const json& value, int least, int most) {
  const auto number = value.get<int64_t>();
  if (number >= least && number <= most) return static_cast<int>(number);
  return Error{fmt::format("{} of {} is out of range; it must be {} to {}", what, value.dump(),
                           least, most)};
}

}  // namespace

Result<int> ExpertsInMemoryFromJson(const json& value) {
  return InRange("experts_in_memory", value, 1, kMostExpertsInMemory);
}

nlohmann::ordered_json ToJson(const SpilledKv& spilled) {
  nlohmann::ordered_json object;
  for (const SpillMember& member : kMembers) object[member.name] = spilled.*member.value;
  return object;
}

Result<SpilledKv> SpilledKvFromJson(const json& value) {
  constexpr const char* kWords = "blocks_in_memory, buffers and buffer_blocks (whole numbers)";
  if (!value.is_object()) return Error{fmt::format("spilled_kv is not an object with {}", kWords)};
  SpilledKv spilled;
  for (const SpillMember& member : kMembers) {
    const auto found = value.find(member.name);
    if (found == value.end() || !found->is_number_integer()) {
      return Error{fmt::format("spilled_kv has no {}, or it is no whole number; there must be {}",
                               member.name, kWords)};
    }
    const Result<int> number =
        InRange(fmt::format("spilled_kv.{}", member.name), *found, member.least, member.most);
    if (!number) return number.error();
    spilled.*member.value = *number;
  }
  for (const auto& [key, unused] : value.items()) {
    const bool is_known = std::ranges::any_of(
        kMembers, [&](const SpillMember& member) { return key == member.name; });
    if (is_known) continue;
    return Error{fmt::format("spilled_kv.{} is not known; there are {}", Quote(key), kWords)};
  }
  return spilled;
}

Status CanPage(const Plan& plan) {
  if (plan.layout.divides_head || plan.layout.divides_shared || plan.layout.divides_dense) {
    return Error{
        "a head, shared experts or dense blocks that are divided among ranks are not read from a "
        "directory of pages: leave head=, shared= and dense= out of the layout, or "
        "--memory-budget (experts_in_memory in the plan)"};
  }
  if (!plan.layout.disaggregates && !plan.changes_layout() && plan.layout.stages == 1) return {};
  return Error{
      "experts are read from a disk where each rank has attention and experts of all layers, the "
      "same ones in both phases, as with the layout attention=dp2,experts=ep2"};
}

Status CanSpill(const Plan& plan) {
  if (plan.experts_in_memory && plan.layout.num_ranks() == 1) return {};
  return Error{
      "keys and values lie on a disk where one rank reads its experts from one, too: give "
      "experts_in_memory beside it, and the layout attention=dp1,experts=ep1"};
}

Status CheckDiskFields(const Plan& plan) {
  if (plan.experts_in_memory) {
    const Status can_page = CanPage(plan);
    if (!can_page) return can_page.error().At("experts_in_memory");
  }
  if (plan.spilled_kv) {
    const Status can_spill = CanSpill(plan);
    if (!can_spill) return can_spill.error().At("spilled_kv");
    if (plan.sequences == 0) {
      return Error{
          "spilled_kv is of a number of sequences that run together: give \"sequences\", too"};
    }
  }
  return {};
}

}  // namespace convene::plan
