// Steps whose weights go through a device layer by layer: the bits of resident ones, in all orders.
#include "tests/offloaded_steps.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <utility>

#include "evaluate/invented_model.h"
#include "memory/failing_lane_test.h"
#include "tests/wrapped_device.h"

namespace convene {
namespace {

using schedule::LaneKind;
using schedule::TaskKind;
using strategy::OffloadOrder;

evaluate::ModelShape Shape(int layers) {
  return {.hidden = 64,
          .heads = 4,
          .kv_heads = 2,
          .layers = layers,
          .experts = 8,
          .top_k = 2,
          .intermediate = 64,
          .shared_intermediate = 64,
          .vocab = 96};
}

class Model {
 public:
  Model(const evaluate::ModelShape& shape, kernels::WeightFormat weights)
      : formats_(runtime::DefaultFormats(weights)) {
    auto model = evaluate::InventedModel::Create(evaluate::InventSpec(shape), formats_.weights,
                                                 {1, 1, 1, 1}, 0, ledger_);
    EXPECT_TRUE(model.ok());
    model_ = *std::move(model);
  }

  const weights::ModelWeights& weights() const { return model_->model_weights(); }
  const runtime::Formats& formats() const { return formats_; }

 private:
  runtime::Formats formats_;
  memory::Ledger ledger_;
  std::unique_ptr<evaluate::InventedModel> model_;
};

TEST(OffloadedSteps, GiveTheBitsOfResidentOnesInAllOrders) {
  for (const int layers : {2, 3}) {
    const Model model(Shape(layers), kernels::WeightFormat::kBf16);
    Resident resident(model.weights(), model.formats(), /*num_sequences=*/5);
    for (const OffloadOrder order : strategy::kOffloadOrders) {
      for (const int micro_batches : {1, 2, 3, 5}) {
        ExpectSameBits(resident, {.order = order, .micro_batches = micro_batches});
      }
    }
  }
}

TEST(OffloadedSteps, ReadPromptsWhereTheHostAttends) {
  for (const kernels::WeightFormat format :
       {kernels::WeightFormat::kBf16, kernels::WeightFormat::kInt8}) {
    const Model model(Shape(3), format);
    Resident resident(model.weights(), model.formats(), /*num_sequences=*/5);
    for (const OffloadOrder order : strategy::kOffloadOrders) {
      if (!strategy::AttendsOnHost(order)) continue;
      for (const int micro_batches : {1, 3, 4}) {
        ExpectSameBits(resident, {.order = order, .micro_batches = micro_batches},
                       /*reads_prompts=*/true);
      }
    }
    ExpectSameBits(resident, {.micro_batches = 3, .pinned_pages = 0}, /*reads_prompts=*/true);
  }
}

TEST(OffloadedSteps, HaveMicroBatchesWithoutRowsWhereThereAreFewSequences) {
  const Model model(Shape(2), kernels::WeightFormat::kInt8);
  Resident resident(model.weights(), model.formats(), /*num_sequences=*/2);
  for (const OffloadOrder order : strategy::kOffloadOrders) {
    for (const int micro_batches : {3, 7}) {
      ExpectSameBits(resident, {.order = order, .micro_batches = micro_batches});
    }
  }
}

TEST(OffloadedSteps, ReuseEachPinnedBuffer) {
  const Model model(Shape(3), kernels::WeightFormat::kBf16);
  Resident resident(model.weights(), model.formats(), /*num_sequences=*/5);
  for (const int pinned : {1, 2, 4}) {
    ExpectSameBits(resident,
                   {.micro_batches = 3, .pinned_pages = pinned, .lead = std::min(2, pinned)});
  }
}

TEST(OffloadedSteps, StageNothingWhereTheWeightsArePinned) {
  const Model model(Shape(3), kernels::WeightFormat::kBf16);
  Resident resident(model.weights(), model.formats(), /*num_sequences=*/5);
  for (const int micro_batches : {1, 2, 3}) {
    ExpectSameBits(resident, {.micro_batches = micro_batches, .pinned_pages = 0});
  }
}

TEST(OffloadedSteps, HaveHostAttentionAndAllCopiesOnLanesOfTheirOwn) {
  const Model model(Shape(2), kernels::WeightFormat::kBf16);
  Resident resident(model.weights(), model.formats(), /*num_sequences=*/5);
  const std::unique_ptr<device::KvCache> cache = resident.HostCache();
  const auto lanes_of = [&](OffloadOrder order) {
    auto steps = resident.Offload({.order = order, .micro_batches = 2}, *cache);
    EXPECT_TRUE(steps.ok());
    EXPECT_TRUE(steps->Forward(resident.StepAt(0), [](int, int, auto) {}).ok());
    std::set<std::pair<LaneKind, TaskKind>> lanes;
    const auto& tasks = steps->schedule().tasks;
    for (size_t id = 0; id < tasks.size(); ++id) {
      EXPECT_GE(steps->timeline().tasks[id].end, steps->timeline().tasks[id].start);
      if (tasks[id].lane.kind != LaneKind::kCompute) {
        lanes.emplace(tasks[id].lane.kind, tasks[id].kind);
      }
    }
    return lanes;
  };
  using Lanes = std::set<std::pair<LaneKind, TaskKind>>;
  const Lanes of_host = {{LaneKind::kHost, TaskKind::kAttend},
                         {LaneKind::kLoad, TaskKind::kSendHidden},
                         {LaneKind::kLoad, TaskKind::kLoadPage},
                         {LaneKind::kStore, TaskKind::kSendQkv}};
  Lanes of_cgo = of_host;
  of_cgo.emplace(LaneKind::kStage, TaskKind::kStagePage);
  EXPECT_EQ(lanes_of(OffloadOrder::kCgo), of_cgo);
  EXPECT_EQ(lanes_of(OffloadOrder::kS2), of_host);
  EXPECT_EQ(lanes_of(OffloadOrder::kS3), of_host);
  EXPECT_EQ(lanes_of(OffloadOrder::kS4), (Lanes{{LaneKind::kLoad, TaskKind::kLoadPage},
                                                {LaneKind::kLoad, TaskKind::kReadKv},
                                                {LaneKind::kStore, TaskKind::kWriteKv}}));
  EXPECT_EQ(lanes_of(OffloadOrder::kLayerwise), (Lanes{{LaneKind::kLoad, TaskKind::kLoadPage}}));
}

TEST(OffloadedSteps, StreamDenseLayersToo) {
  evaluate::ModelShape shape = Shape(3);
  shape.dense_intermediate = 128;
  const Model model(shape, kernels::WeightFormat::kInt8);
  Resident resident(model.weights(), model.formats(), /*num_sequences=*/3);
  for (const OffloadOrder order : strategy::kOffloadOrders) {
    ExpectSameBits(resident, {.order = order, .micro_batches = 2});
  }
}

class FailingDevice final : public WrappedDevice {
 public:
  FailingDevice(std::unique_ptr<device::Device> cpu, const std::atomic<bool>& fails)
      : WrappedDevice(std::move(cpu)), fails_(fails) {}
  Result<std::unique_ptr<memory::CopyLane>> CreateCopyLane() override {
    return std::unique_ptr<memory::CopyLane>(std::make_unique<memory::FailingLane>(fails_));
  }

 private:
  const std::atomic<bool>& fails_;
};

TEST(OffloadedSteps, FailWithACopyAndTheNextOneIsRight) {
  std::atomic<bool> fails = false;
  hardware::ThreadPool pool({0});
  for (const int layers : {2, 3}) {
    const Model model(Shape(layers), kernels::WeightFormat::kBf16);
    Resident resident(model.weights(), model.formats(), /*num_sequences=*/5,
                      std::make_unique<FailingDevice>(
                          device::MakeCpuDevice(**kernels::ChooseKernels(), pool), fails));
    const std::unique_ptr<device::KvCache> cache = resident.HostCache();
    auto steps = resident.Offload({.micro_batches = 2, .pinned_pages = 0}, *cache);
    ASSERT_TRUE(steps.ok()) << steps.error().message;
    for (int index = 0; index < Resident::kSteps; ++index) {
      fails = true;
      const Status failed = steps->Forward(resident.StepAt(index), [](int, int, auto) {});
      fails = false;
      ASSERT_FALSE(failed.ok());
      EXPECT_NE(failed.error().message.find("the copy failed"), std::string::npos);
      EXPECT_EQ(LogitsOf(*steps, resident.StepAt(index)), resident.logits()[index])
          << "step " << index;
    }
  }
}

TEST(OffloadedSteps, RefuseLatentAttention) {
  hardware::ThreadPool pool({0});
  const auto device = device::MakeCpuDevice(**kernels::ChooseKernels(), pool);
  memory::Ledger ledger;
  evaluate::ModelShape shape = Shape(2);
  shape.latent = 32;
  const Model model(shape, kernels::WeightFormat::kBf16);
  const auto cache =
      device->CreateKvCache(model.weights().spec, kernels::KvFormat::kBf16, 1, ledger);
  ASSERT_TRUE(cache.ok());
  const auto steps = runtime::OffloadedSteps::Create(model.weights(), *device, *device, **cache,
                                                     {.context = 64}, {ledger, ledger});
  ASSERT_FALSE(steps.ok());
  EXPECT_NE(steps.error().message.find("latent attention"), std::string::npos);
}

}  // namespace
}  // namespace convene
