// What ranks have of the experts after they have moved is, bit for bit, what they load in that
// division, in every format; and after they have moved back, what they had before.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "checkpoint/checkpoint.h"
#include "comm/threads/thread_group.h"
#include "runtime/expert_mover.h"
#include "weights/load_weights.h"
#include "weights/weight_layout.h"

namespace convene::runtime {
namespace {

using kernels::WeightFormat;
using strategy::Layout;
using strategy::Phase;
using weights::FfnWeights;

checkpoint::Checkpoint Fixture(const std::string& name) {
  auto checkpoint = checkpoint::Checkpoint::Open(CONVENE_SOURCE_DIR "/tests/golden/models/" + name);
  CHECK(checkpoint.ok(), "{}", checkpoint.error().message);
  return *std::move(checkpoint);
}

std::vector<std::byte> BytesOf(const std::vector<FfnWeights>& experts) {
  std::vector<std::byte> bytes;
  for (const FfnWeights& expert : experts) {
    for (const kernels::PackedMatrix* matrix : {&expert.up, &expert.down}) {
      bytes.insert(bytes.end(), matrix->data, matrix->data + matrix->size_bytes());
    }
  }
  return bytes;
}

// A rank's weights of a fixture, with what it would have loaded in each phase.
class Rank {
 public:
  Rank(const checkpoint::Checkpoint& checkpoint, const weights::WeightFormats& formats,
       const ExpertMover::Phases& phases, bool beside, comm::Group& group)
      : checkpoint_(checkpoint),
        formats_(formats),
        share_(weights::ShareOf(phases.prefill, phases.decode, beside, group.rank())),
        pool_({0}),
        weights_(Load(share_)) {
    store_ = std::make_unique<weights::PhasedWeights>(weights_, checkpoint.spec(), share_);
    auto mover = ExpertMover::Create(*store_, phases, group, &pool_, ledger_);
    CHECK(mover.ok(), "{}", mover.error().message);
    mover_ = *std::move(mover);
    group_ = &group;
  }

  // Returns what was sent.
  int64_t MoveTo(Phase phase) {
    int64_t expected = 0;
    const auto before = static_cast<int64_t>(group_->sent_bytes());
    for (int layer = 0; layer < checkpoint_.spec().num_layers(); ++layer) {
      if (!checkpoint_.spec().layers[layer].moe) continue;
      expected += mover_->SentBytes(layer, phase);
      group_->Wait(*mover_->Start(layer, phase));
    }
    store_->Use(phase);
    EXPECT_EQ(static_cast<int64_t>(group_->sent_bytes()) - before, expected);
    return expected;
  }

  // What is leased is what the rank would have loaded.
  void ExpectWhatIsLoadedFor(Phase phase) {
    const weights::Share share =
        phase == Phase::kDecode ? weights::InDecode(share_) : WithoutDecode(share_);
    const weights::ModelWeights loaded = Load(share);
    for (int layer = 0; layer < checkpoint_.spec().num_layers(); ++layer) {
      if (!checkpoint_.spec().layers[layer].moe) continue;
      const weights::MoeWeights& expected = *loaded.layers[layer].moe;
      const weights::LayerId id{.layer = layer};
      ASSERT_EQ(store_->Experts(id).first, expected.first_expert);
      ASSERT_EQ(store_->Experts(id).size, std::ssize(expected.experts));
      const std::vector<int> all = {0};
      const auto leased = store_->LeaseExperts(id, all);
      ASSERT_TRUE(leased.ok());
      EXPECT_TRUE(BytesOf(**leased) == BytesOf(expected.experts))
          << "rank " << group_->rank() << ", layer " << layer;
      for (size_t i = 0; i < expected.experts.size(); ++i) {
        EXPECT_EQ((**leased)[i].up_bias, expected.experts[i].up_bias);
        EXPECT_EQ((**leased)[i].down_bias, expected.experts[i].down_bias);
      }
    }
  }

  uint64_t exchange_bytes() const { return ledger_.reserved()[memory::Use::kExchange]; }
  uint64_t weight_bytes() const { return weights_.storage.size_bytes(); }
  const weights::ExpertRooms& rooms() const { return weights_.rooms; }

 private:
  static weights::Share WithoutDecode(weights::Share share) {
    share.decode.reset();
    return share;
  }
  weights::ModelWeights Load(const weights::Share& share) {
    auto weights = weights::LoadWeights(checkpoint_, formats_, share, hardware::NumaPolicy::kAuto,
                                        pool_, ledger_, {});
    CHECK(weights.ok(), "{}", weights.error().message);
    return *std::move(weights);
  }

  const checkpoint::Checkpoint& checkpoint_;
  weights::WeightFormats formats_;
  weights::Share share_;
  memory::Ledger ledger_;
  hardware::ThreadPool pool_;
  weights::ModelWeights weights_;
  std::unique_ptr<weights::PhasedWeights> store_;
  std::unique_ptr<ExpertMover> mover_;
  comm::Group* group_ = nullptr;
};

struct Case {
  std::string name;
  Layout prefill;
  Layout decode;
};

class ExpertMoverTest : public testing::TestWithParam<Case> {
 protected:
  void MoveThereAndBack(const std::string& fixture, const weights::WeightFormats& formats,
                        ExpertMover::Phases phases, bool beside) {
    SCOPED_TRACE(fmt::format("{}, {} (group {})", fixture, Name(formats.matrices), formats.group));
    const checkpoint::Checkpoint checkpoint = Fixture(fixture);
    const auto share = weights::ShareOf(phases.prefill, phases.decode, beside, 0);
    if (!weights::WidestSpec(checkpoint.spec(), share, formats)) return;
    ++num_tried_;
    comm::RunOnThreads(phases.prefill.num_ranks(), [&](comm::Group& group) {
      Rank rank(checkpoint, formats, phases, beside, group);
      rank.ExpectWhatIsLoadedFor(Phase::kPrefill);
      for (int i = 0; i < 2; ++i) {
        rank.MoveTo(Phase::kDecode);
        rank.ExpectWhatIsLoadedFor(Phase::kDecode);
        rank.MoveTo(Phase::kPrefill);
        rank.ExpectWhatIsLoadedFor(Phase::kPrefill);
      }
    });
  }

  int num_tried_ = 0;
};

TEST_P(ExpertMoverTest, GivesTheBytesThatEachDivisionLoads) {
  const ExpertMover::Phases phases = {GetParam().prefill, GetParam().decode};
  const weights::WeightFormats formats[] = {{WeightFormat::kF32},
                                            {WeightFormat::kBf16},
                                            {WeightFormat::kInt8},
                                            {WeightFormat::kInt4, 32}};
  for (const char* fixture :
       {"olmoe_plain", "gpt_oss_plain", "deepseek_v2_groups", "switch_plain", "mixtral_plain"}) {
    for (const weights::WeightFormats& format : formats) {
      MoveThereAndBack(fixture, format, phases, /*beside=*/false);
    }
  }
  EXPECT_GT(num_tried_, 8);
  // Wide enough for slices of several groups.
  for (const int group : {32, 64}) {
    MoveThereAndBack("../../../models/demo", {WeightFormat::kInt4, group}, phases,
                     /*beside=*/false);
  }
}

TEST_P(ExpertMoverTest, InRoundsOfFewPiecesToo) {
  const ExpertMover::Phases phases = {GetParam().prefill, GetParam().decode,
                                      /*most_round_bytes=*/1};
  MoveThereAndBack("olmoe_plain", {WeightFormat::kBf16}, phases, /*beside=*/false);
  MoveThereAndBack("mixtral_plain", {WeightFormat::kInt4, 32}, phases, /*beside=*/false);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ExpertMoverTest,
                         testing::Values(Case{"ep2_to_tp2", {1, 2, 2, 1}, {1, 2, 1, 2}},
                                         Case{"tp2_to_ep2", {2, 1, 1, 2}, {2, 1, 2, 1}},
                                         Case{"ep2_to_ep3_1", {1, 2, 2, 1}, {1, 2, 2, 1, {3, 1}}},
                                         Case{"ep3_to_tp3", {1, 3, 3, 1}, {1, 3, 1, 3}},
                                         Case{"ep4_to_ep2tp2", {1, 4, 4, 1}, {1, 4, 2, 2}},
                                         Case{"ep2tp2_to_tp4", {2, 2, 2, 2}, {2, 2, 1, 4}}),
                         [](const auto& param_info) { return param_info.param.name; });

TEST(ExpertMover, TakesNoMoreMemoryThanItsRoundsNeed) {
  const checkpoint::Checkpoint checkpoint = Fixture("olmoe_plain");
  const weights::WeightFormats formats = {WeightFormat::kF32};
  const ExpertMover::Phases all = {Layout{1, 2, 2, 1}, Layout{1, 2, 1, 2}};
  const ExpertMover::Phases few = {all.prefill, all.decode, /*most_round_bytes=*/1};
  const uint64_t most = ExpertMover::StagingBytes(checkpoint.spec(), formats, all);
  const uint64_t least = ExpertMover::StagingBytes(checkpoint.spec(), formats, few);
  EXPECT_LT(least, most);
  EXPECT_LE(most, uint64_t{2} * ExpertMover::kMostRoundBytes);
  // Half of each expert goes to the other rank: two buffers for one of them, at least.
  const model::MoeSpec& moe = *checkpoint.spec().layers[0].moe;
  EXPECT_EQ(least, 2 * weights::SizeBytes(weights::FfnOf(formats, moe.activation,
                                                         checkpoint.spec().hidden_size,
                                                         moe.intermediate_size / 2)));
  comm::RunOnThreads(2, [&](comm::Group& group) {
    const weights::Share share =
        weights::ShareOf(all.prefill, all.decode, /*beside=*/false, group.rank());
    const auto local = *weights::LocalSpec(checkpoint.spec(), share, formats);
    const weights::ExpertRooms rooms = weights::RoomsOf(checkpoint.spec(), formats, share);
    const Rank rank(checkpoint, formats, few, /*beside=*/false, group);
    EXPECT_EQ(rank.exchange_bytes(), least);
    EXPECT_EQ(rank.rooms().num_free, 1);
    EXPECT_EQ(rank.weight_bytes(), weights::PackedSizeBytes(local, formats, share, rooms));
    const Rank both(checkpoint, formats, few, /*beside=*/true, group);
    EXPECT_EQ(both.rooms().num_free, 0) << "both divisions of each layer were read into their own";
  });
}

}  // namespace
}  // namespace convene::runtime
