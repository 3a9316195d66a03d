#include "schedule/task_table.h"

#include <array>
#include <vector>

namespace convene::schedule {
namespace {

Access Reads(Thing thing, Reach reach = Reach::kOne) { return {thing, false, reach}; }
Access Writes(Thing thing, Reach reach = Reach::kOne) { return {thing, true, reach}; }

struct Row {
  TaskKind kind;
  std::string_view name;
  std::vector<Access> accesses = {};
  enum { kTask, kCollective, kCopy } sort = kTask;
};

const std::vector<Row>& Rows() {
  using enum TaskKind;
  using enum Reach;
  static const std::vector<Row> rows = {
      // Of a step.
      {kEmbed, "embed", {Writes(Thing::kHidden)}},
      {kPassRows, "pass_rows", {Writes(Thing::kHidden)}, Row::kCollective},
      // Each rank says there whether its tasks have failed, so that its experts must be done.
      {kGatherRows,
       "gather_rows",
       {Reads(Thing::kNormed), Reads(Thing::kSlots, kAllChunks), Writes(Thing::kGathered)},
       Row::kCollective},
      {kHead, "head", {Reads(Thing::kNormed), Reads(Thing::kGathered), Writes(Thing::kLogits)}},
      {kGatherLogits,
       "gather_logits",
       {Reads(Thing::kLogits), Writes(Thing::kLogitsIn)},
       Row::kCollective},
      {kJoinLogits, "join_logits", {Reads(Thing::kLogits), Reads(Thing::kLogitsIn)}},
      // Attention.
      {kNormalize, "normalize", {Writes(Thing::kHidden), Writes(Thing::kNormed)}},
      {kGatherNormed, "gather_normed", {Writes(Thing::kNormed)}, Row::kCollective},
      {kProject, "project", {Reads(Thing::kNormed), Writes(Thing::kQkv), Writes(Thing::kSquares)}},
      {kNormSums, "norm_sums", {Writes(Thing::kSquares)}, Row::kCollective},
      {kAttention,
       "attention",
       {Writes(Thing::kHidden), Writes(Thing::kNormed), Writes(Thing::kQkv), Reads(Thing::kSquares),
        Writes(Thing::kAttended), Writes(Thing::kPartial), Writes(Thing::kPartialsOut),
        Writes(Thing::kCache)}},
      {kScatterSums,
       "scatter_sums",
       {Reads(Thing::kPartialsOut), Writes(Thing::kPartialsIn)},
       Row::kCollective},
      {kAddPartials,
       "add_partials",
       {Reads(Thing::kPartial), Reads(Thing::kPartialsIn), Writes(Thing::kHidden)}},
      {kPreAttention,
       "pre_attention",
       {Reads(Thing::kHidden), Writes(Thing::kNormed), Writes(Thing::kQkv)}},
      {kAttend,
       "attend",
       {Reads(Thing::kQkv), Reads(Thing::kHostQkv), Writes(Thing::kAttended),
        Writes(Thing::kHostAttended), Writes(Thing::kCache), Writes(Thing::kHeldKv)}},
      {kPostAttention, "post_attention", {Reads(Thing::kAttended), Writes(Thing::kHidden)}},
      {kCrossStore,
       "cross_store",
       {Reads(Thing::kNormed), Reads(Thing::kGathered), Writes(Thing::kQkv),
        Writes(Thing::kCache, kAllLayers)}},
      // Feed-forward.
      {kDense,
       "dense",
       {Writes(Thing::kHidden), Writes(Thing::kNormed), Reads(Thing::kPages),
        Writes(Thing::kPartial), Writes(Thing::kPartialsOut)}},
      {kRoute,
       "route",
       {Reads(Thing::kHidden), Writes(Thing::kNormed), Writes(Thing::kRouting),
        Writes(Thing::kCountsOut), Writes(Thing::kWork), Writes(Thing::kOutgoing, kAllChunks),
        Writes(Thing::kPrediction)}},
      {kCounts, "counts", {Reads(Thing::kCountsOut), Writes(Thing::kCountsIn)}, Row::kCollective},
      {kDispatch,
       "dispatch",
       {Reads(Thing::kCountsOut), Reads(Thing::kCountsIn), Reads(Thing::kOutgoing),
        Writes(Thing::kIncoming)},
       Row::kCollective},
      {kShared, "shared", {Reads(Thing::kNormed), Writes(Thing::kShared)}},
      {kExperts,
       "experts",
       {Reads(Thing::kNormed), Reads(Thing::kRouting), Reads(Thing::kIncoming),
        Reads(Thing::kPages), Reads(Thing::kHeldPages), Reads(Thing::kDivision),
        Writes(Thing::kWork), Writes(Thing::kSlots)}},
      {kReduce,
       "reduce",
       {Reads(Thing::kWork), Reads(Thing::kSlots, kAllChunks), Writes(Thing::kSumsOut)}},
      {kCombine,
       "combine",
       {Reads(Thing::kRouting), Reads(Thing::kSumsOut), Writes(Thing::kSumsIn)},
       Row::kCollective},
      {kFinish,
       "finish",
       {Reads(Thing::kWork), Reads(Thing::kRouting), Reads(Thing::kSlots, kAllChunks),
        Reads(Thing::kSumsIn, kAllChunks), Reads(Thing::kShared), Writes(Thing::kHidden)}},
      // Between two phases, when nothing else is under way.
      {kMoveExperts, "move_experts", {}, Row::kCollective},
      // Also in a step, once its experts have been computed with.
      {kLoadExperts, "load_experts", {Writes(Thing::kDivision)}, Row::kCopy},
      // Copies between tiers.
      {kSendHidden,
       "send_hidden",
       {Reads(Thing::kHostAttended), Writes(Thing::kAttended)},
       Row::kCopy},
      {kSendQkv, "send_qkv", {Reads(Thing::kQkv), Writes(Thing::kHostQkv)}, Row::kCopy},
      {kLoadPage, "load_page", {Reads(Thing::kPinned), Writes(Thing::kPages)}, Row::kCopy},
      {kStagePage, "stage_page", {Writes(Thing::kPinned)}, Row::kCopy},
      {kReadPages, "read_pages", {Writes(Thing::kHeldPages)}, Row::kCopy},
      {kReadChosen,
       "read_chosen",
       {Reads(Thing::kRouting), Reads(Thing::kIncoming), Writes(Thing::kHeldPages)},
       Row::kCopy},
      {kReadPredicted, "read_predicted", {Reads(Thing::kPrediction)}, Row::kCopy},
      {kReadNext, "read_next", {}, Row::kCopy},
      {kReadKv, "read_kv", {Writes(Thing::kHeldKv)}, Row::kCopy},
      {kWriteKv, "write_kv", {Reads(Thing::kHeldKv)}, Row::kCopy},
  };
  return rows;
}

}  // namespace

const TaskTraits& TraitsOf(TaskKind kind) {
  static const auto table = [] {
    std::array<TaskTraits, kNumTaskKinds> traits;
    for (const Row& row : Rows()) {
      traits[static_cast<size_t>(row.kind)] = {.name = row.name,
                                               .is_collective = row.sort == Row::kCollective,
                                               .is_copy = row.sort == Row::kCopy,
                                               .accesses = row.accesses};
    }
    return traits;
  }();
  return table.at(static_cast<size_t>(kind));
}

std::string_view Name(TaskKind kind) { return TraitsOf(kind).name; }
bool IsCollective(TaskKind kind) { return TraitsOf(kind).is_collective; }
bool IsCommunication(TaskKind kind) {
  return TraitsOf(kind).is_collective || TraitsOf(kind).is_copy;
}

}  // namespace convene::schedule
