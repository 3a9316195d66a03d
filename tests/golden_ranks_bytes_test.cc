// What ranks really send, counted where it leaves them, against the schedule's own formula and
// against the volumes that docs/ranks.md gives of each layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include "tests/golden_ranks.h"

namespace convene {
namespace {

using schedule::TaskKind;

// 48 float32 numbers a row; two of eight experts per token; norms of queries and keys over all
// heads.
const std::filesystem::path kFixture =
    std::filesystem::path(CONVENE_SOURCE_DIR) / "tests/golden/models/olmoe_plain";
constexpr double kRowBytes = 48 * 4;
// Activations are padded to 64 numbers, and travel so where they are gathered; published models
// have rows that need no padding.
constexpr double kPaddedBytes = 64 * 4;
constexpr int kTopK = 2;
constexpr int kVocab = 128;

struct Bytes {
  double counted = 0;
  double scheduled = 0;
  double constant = 0;  // of these: what does not depend on rows
};

double ValueOf(const runtime::RecordedStep& step, const schedule::Size& size) {
  if (size.kind == schedule::SizeKind::kOne) return 1;
  for (const auto& [known, value] : step.sizes) {
    if (known == size) return value;
  }
  ADD_FAILURE() << "nobody told " << schedule::Name(size.kind);
  return 0;
}

std::map<TaskKind, Bytes> BytesByKind(const runtime::RecordedStep& step) {
  std::map<TaskKind, Bytes> bytes;
  EXPECT_EQ(step.sent_bytes.size(), step.schedule->tasks.size());
  for (size_t id = 0; id < step.schedule->tasks.size(); ++id) {
    const schedule::Task& task = step.schedule->tasks[id];
    if (!schedule::IsCollective(task.kind)) {
      EXPECT_EQ(step.sent_bytes[id], 0);
      continue;
    }
    Bytes& of_kind = bytes[task.kind];
    of_kind.counted += static_cast<double>(step.sent_bytes[id]);
    for (const schedule::Term& term : task.work.link_bytes) {
      const double value = term.factor * ValueOf(step, term.size);
      of_kind.scheduled += value;
      if (term.size.kind == schedule::SizeKind::kOne) of_kind.constant += value;
    }
  }
  return bytes;
}

double Sent(const runtime::RecordedStep& step, schedule::SizeKind kind) {
  double sum = 0;
  for (const auto& [size, value] : step.sizes) sum += size.kind == kind ? value : 0;
  return sum;
}

class GoldenRanksBytes : public testing::TestWithParam<Division> {
 protected:
  // Steps whose logits are all wanted, so that no row is left out of the last layer.
  std::vector<runtime::RecordedStep> Steps() {
    const auto checkpoint = checkpoint::Checkpoint::Open(kFixture.string());
    CHECK(checkpoint.ok(), "{}", checkpoint.error().message);
    const DividedOptions divided{.division = GetParam(), .record = true};
    if (!Fits(*checkpoint, divided)) return {};
    Work work;
    for (const char* name : {"prompt_300", "prompt_17", "prompt_1"}) {
      work.prompts.push_back(ReadNpy<int32_t>(kFixture / (std::string(name) + ".tokens.npy")));
    }
    std::vector<runtime::RecordedStep> steps;
    RunPrompts(*checkpoint, divided, work,
               [&](const runtime::RecordedStep& step) { steps.push_back(step); });
    EXPECT_FALSE(steps.empty());
    return steps;
  }
};

TEST_P(GoldenRanksBytes, AreThoseOfTheSchedule) {
  for (const runtime::RecordedStep& step : Steps()) {
    for (const auto& [kind, bytes] : BytesByKind(step)) {
      if (kind != TaskKind::kDispatch) {
        const bool is_padded = kind == TaskKind::kGatherNormed || kind == TaskKind::kGatherRows ||
                               kind == TaskKind::kPassRows;
        const double of_rows = bytes.scheduled - bytes.constant;
        // Chunks of a divided head are of unequal sizes, and of equal ones in the schedule.
        EXPECT_NEAR(bytes.counted,
                    bytes.constant + of_rows * (is_padded ? kPaddedBytes / kRowBytes : 1), 1e-6)
            << schedule::Name(kind);
        continue;
      }
      // The schedule has experts of a row on average, 6 bytes each, and blocks without padding.
      const double rows = Sent(step, schedule::SizeKind::kSent);
      EXPECT_GE(bytes.counted, rows * (kRowBytes + 1 + 6));
      EXPECT_GE(bytes.scheduled, rows * (kRowBytes + 1));
      const double blocks = static_cast<double>(step.schedule->tasks.size() * 4);
      EXPECT_NEAR(bytes.counted, bytes.scheduled, rows * 6 * kTopK + 3 * blocks);
    }
  }
}

// P of docs/ranks.md: all rows once, in each of the two layers.
TEST_P(GoldenRanksBytes, AreTheVolumesThatTheDocumentsGive) {
  const strategy::Layout& layout = GetParam().layout;
  const int num_ranks = layout.num_ranks();
  for (const runtime::RecordedStep& step : Steps()) {
    std::map<TaskKind, Bytes> bytes = BytesByKind(step);
    const double rows = 2 * static_cast<double>(step.num_tokens);
    const double p = rows * kRowBytes;
    EXPECT_EQ(bytes[TaskKind::kScatterSums].counted, p * (layout.attention_tp - 1));
    EXPECT_EQ(bytes[TaskKind::kGatherNormed].counted,
              rows * kPaddedBytes * (layout.attention_tp - 1));
    if (layout.divides_head) {
      const strategy::Roles roles = layout;
      const int others = kVocab - roles.of(0).head->TokensOf(kVocab).size;
      const Bytes& logits = bytes[TaskKind::kGatherLogits];
      EXPECT_EQ(logits.counted, logits.constant + rows / 2 * others * 4);
    }
    const double combined = bytes[TaskKind::kCombine].counted;
    const double dispatched = bytes[TaskKind::kDispatch].counted;
    if (num_ranks == 1 || layout.stages > 1) {
      EXPECT_EQ(dispatched + combined, 0);
      // The residual stream of each row from stage to stage, in float32.
      EXPECT_EQ(bytes[TaskKind::kPassRows].counted, rows / 2 * kPaddedBytes * (num_ranks - 1));
    } else if (layout.disaggregates) {
      // Each row once to each rank that has an expert of it, and its sum back: none is its own.
      EXPECT_GE(combined, p);
      EXPECT_LE(combined, p * std::min(kTopK, layout.expert_ep));
      EXPECT_GT(dispatched, combined);
    } else if (layout.expert_ep == 1) {
      // Slices: each row to all others and back. Beside a row that is dispatched: how many experts,
      // and a number and a weight of each.
      EXPECT_EQ(combined, p * (num_ranks - 1));
      const double beside = rows * (num_ranks - 1) * (1 + 6 * kTopK);
      EXPECT_NEAR(dispatched, combined + beside,
                  3 * static_cast<double>(step.schedule->tasks.size() * 4));
    } else {
      // Each row at most once per rank with an expert of it; its own is not among those.
      const double visits = std::min(kTopK * layout.expert_tp, num_ranks);
      EXPECT_LE(combined, p * visits);
      EXPECT_GT(combined, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Divisions, GoldenRanksBytes, testing::ValuesIn(Divisions()),
                         [](const auto& param_info) { return param_info.param.name; });

std::vector<Division> DisaggregatedDivisions() {
  using strategy::ChunkCut;
  return {
      {"one_to_two", {.attention_dp = 1, .expert_ep = 2, .disaggregates = true}},
      {"two_to_two_two_micro_batches",
       {.attention_dp = 2, .expert_ep = 2, .disaggregates = true},
       {.micro_batches = 2}},
      {"two_to_one_two_chunks",
       {.attention_dp = 2, .expert_ep = 1, .disaggregates = true},
       {2, ChunkCut::kTokens, true}},
      {"tp2_to_two", {.attention_tp = 2, .expert_ep = 2, .disaggregates = true}},
  };
}

INSTANTIATE_TEST_SUITE_P(Disaggregated, GoldenRanksBytes,
                         testing::ValuesIn(DisaggregatedDivisions()),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace convene
