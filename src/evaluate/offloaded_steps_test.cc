#include "evaluate/offloaded_steps.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <set>

#include "device/cpu/cpu_device.h"
#include "evaluate/invented_model.h"
#include "kernels/choose_kernels.h"
#include "runtime/formats.h"
#include "runtime/transformer.h"

namespace convene::evaluate {
namespace {

using device::kKvBlockTokens;
using device::SequenceStep;
using schedule::LaneKind;
using schedule::TaskKind;
using strategy::OffloadOrder;

constexpr int kSteps = 4;
constexpr int kBlocksPerSequence = 2;

ModelShape Shape(int layers) {
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

// Logits of each sequence, by step.
using Logits = std::vector<std::vector<std::vector<float>>>;

// A model, a few prompts of different lengths, whose last tokens cross a block, and what generated
// tokens give with everything resident.
class Resident {
 public:
  Resident(int layers, int num_sequences, kernels::WeightFormat weights)
      : formats_(runtime::DefaultFormats(weights)),
        pool_({0}),
        device_(device::MakeCpuDevice(**kernels::ChooseKernels(), pool_)),
        host_(device::MakeCpuDevice(**kernels::ChooseKernels(), pool_)) {
    auto model = InventedModel::Create(InventSpec(Shape(layers)), formats_.weights, {1, 1, 1, 1}, 0,
                                       ledger_);
    EXPECT_TRUE(model.ok());
    model_ = *std::move(model);
    for (int i = 0; i < num_sequences; ++i) {
      std::vector<int32_t>& tokens = tokens_.emplace_back(static_cast<size_t>(58 + 3 * i));
      for (size_t j = 0; j < tokens.size(); ++j) {
        tokens[j] = static_cast<int32_t>((j * 7 + static_cast<size_t>(i) * 13) % 96);
      }
      prompt_lengths_.push_back(static_cast<int>(tokens.size()));
      blocks_.emplace_back(kBlocksPerSequence);
      std::iota(blocks_.back().begin(), blocks_.back().end(), i * kBlocksPerSequence);
    }
    Run();
  }

  // The prompts' keys and values in a cache of the host.
  std::unique_ptr<device::KvCache> HostCache() {
    auto cache = host_->CreateKvCache(model_->whole_spec(), formats_.kv, num_blocks(), ledger_);
    EXPECT_TRUE(cache.ok());
    size_t place = 0;
    for (int layer = 0; layer < (*cache)->num_layers(); ++layer) {
      for (int block = 0; block < num_blocks(); ++block) {
        const std::vector<std::byte>& bytes = of_prompts_[place++];
        std::memcpy((*cache)->Address(layer, block), bytes.data(), bytes.size());
      }
    }
    return *std::move(cache);
  }

  Result<std::unique_ptr<OffloadedSteps>> Offload(const strategy::OffloadPipeline& pipeline,
                                                  device::KvCache& cache) {
    return OffloadedSteps::Create(model_->model_weights(), *device_, *host_, cache,
                                  {.pipeline = pipeline,
                                   .max_sequences = num_sequences(),
                                   .context = kBlocksPerSequence * kKvBlockTokens,
                                   .activations = formats_.activations,
                                   .kv = formats_.kv,
                                   .cpus = {.compute = {0}}},
                                  ledger_);
  }

  // Sequences of generated token `index`, each with that one token.
  std::vector<SequenceStep> StepAt(int index) const {
    std::vector<SequenceStep> step;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const auto position = static_cast<size_t>(prompt_lengths_[i] + index);
      step.push_back({.tokens = std::span(tokens_[i]).subspan(position, 1),
                      .first_position = static_cast<int>(position),
                      .blocks = blocks_[i],
                      .prompt_length = prompt_lengths_[i]});
    }
    return step;
  }

  const Logits& logits() const { return logits_; }
  int num_sequences() const { return static_cast<int>(tokens_.size()); }

 private:
  int num_blocks() const { return num_sequences() * kBlocksPerSequence; }

  void Run() {
    auto transformer = runtime::Transformer::Create(
        model_->weights(), *device_,
        {.num_kv_blocks = num_blocks(), .activations = formats_.activations, .kv = formats_.kv},
        ledger_);
    ASSERT_TRUE(transformer.ok());
    std::vector<SequenceStep> prompts;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      prompts.push_back({.tokens = tokens_[i],
                         .blocks = blocks_[i],
                         .prompt_length = prompt_lengths_[i],
                         .first_logits_token = prompt_lengths_[i] - 1});
    }
    std::vector<int32_t> next(tokens_.size());
    const auto choose = [&](int sequence, std::span<const float> logits) {
      next[sequence] =
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    };
    ASSERT_TRUE(
        transformer
            ->Forward(prompts, [&](int sequence, int,
                                   std::span<const float> logits) { choose(sequence, logits); })
            .ok());
    device::KvCache& cache = transformer->kv_cache();
    for (int layer = 0; layer < cache.num_layers(); ++layer) {
      for (int block = 0; block < num_blocks(); ++block) {
        const std::byte* const data = cache.Address(layer, block);
        of_prompts_.emplace_back(data, data + cache.BlockBytes(layer));
      }
    }
    for (int index = 0; index < kSteps; ++index) {
      for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i].push_back(next[i]);
      std::vector<std::vector<float>>& of_step = logits_.emplace_back(tokens_.size());
      ASSERT_TRUE(transformer
                      ->Forward(StepAt(index),
                                [&](int sequence, int, std::span<const float> logits) {
                                  of_step[sequence].assign(logits.begin(), logits.end());
                                  choose(sequence, logits);
                                })
                      .ok());
    }
  }

  runtime::Formats formats_;
  hardware::ThreadPool pool_;
  memory::Ledger ledger_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Device> host_;
  std::unique_ptr<InventedModel> model_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<int> prompt_lengths_;
  std::vector<std::vector<int32_t>> blocks_;
  std::vector<std::vector<std::byte>> of_prompts_;  // by layer and block
  Logits logits_;
};

void ExpectSameBits(Resident& resident, const strategy::OffloadPipeline& pipeline) {
  SCOPED_TRACE(testing::Message() << strategy::Name(pipeline.order) << ", "
                                  << pipeline.micro_batches << " micro-batches");
  const std::unique_ptr<device::KvCache> cache = resident.HostCache();
  const auto steps = resident.Offload(pipeline, *cache);
  ASSERT_TRUE(steps.ok()) << steps.error().message;
  for (int index = 0; index < kSteps; ++index) {
    std::vector<std::vector<float>> logits(static_cast<size_t>(resident.num_sequences()));
    const Status done = (*steps)->Forward(
        resident.StepAt(index), [&](int sequence, int, std::span<const float> of_sequence) {
          logits[sequence].assign(of_sequence.begin(), of_sequence.end());
        });
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_EQ(logits, resident.logits()[index]) << "step " << index;
  }
}

TEST(OffloadedSteps, GiveTheBitsOfResidentOnesInAllOrders) {
  for (const int layers : {2, 3}) {
    Resident resident(layers, /*num_sequences=*/5, kernels::WeightFormat::kBf16);
    for (const OffloadOrder order : strategy::kOffloadOrders) {
      for (const int micro_batches : {1, 2, 3, 5}) {
        ExpectSameBits(resident, {.order = order, .micro_batches = micro_batches});
      }
    }
  }
}

TEST(OffloadedSteps, HaveMicroBatchesWithoutRowsWhereThereAreFewSequences) {
  Resident resident(/*layers=*/2, /*num_sequences=*/2, kernels::WeightFormat::kInt8);
  for (const OffloadOrder order : strategy::kOffloadOrders) {
    for (const int micro_batches : {3, 7}) {
      ExpectSameBits(resident, {.order = order, .micro_batches = micro_batches});
    }
  }
}

TEST(OffloadedSteps, ReuseEachPinnedBuffer) {
  Resident resident(/*layers=*/3, /*num_sequences=*/5, kernels::WeightFormat::kBf16);
  for (const int pinned : {1, 2, 4}) {
    ExpectSameBits(resident,
                   {.micro_batches = 3, .pinned_pages = pinned, .lead = std::min(2, pinned)});
  }
}

TEST(OffloadedSteps, HaveHostAttentionAndAllCopiesOnLanesOfTheirOwn) {
  Resident resident(/*layers=*/2, /*num_sequences=*/5, kernels::WeightFormat::kBf16);
  const std::unique_ptr<device::KvCache> cache = resident.HostCache();
  const auto lanes_of = [&](OffloadOrder order) {
    const auto steps = resident.Offload({.order = order, .micro_batches = 2}, *cache);
    EXPECT_TRUE(steps.ok());
    EXPECT_TRUE((*steps)->Forward(resident.StepAt(0), [](int, int, auto) {}).ok());
    std::set<std::pair<LaneKind, TaskKind>> lanes;
    const auto& tasks = (*steps)->schedule().tasks;
    for (size_t id = 0; id < tasks.size(); ++id) {
      EXPECT_GE((*steps)->timeline().tasks[id].end, (*steps)->timeline().tasks[id].start);
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

TEST(OffloadedSteps, RefuseModelsThatTheyCannotStream) {
  hardware::ThreadPool pool({0});
  const auto device = device::MakeCpuDevice(**kernels::ChooseKernels(), pool);
  memory::Ledger ledger;
  const auto error_of = [&](const ModelShape& shape) {
    const auto model = InventedModel::Create(InventSpec(shape), {}, {1, 1, 1, 1}, 0, ledger);
    EXPECT_TRUE(model.ok());
    const auto cache =
        device->CreateKvCache((*model)->whole_spec(), kernels::KvFormat::kBf16, 1, ledger);
    EXPECT_TRUE(cache.ok());
    const auto steps = OffloadedSteps::Create((*model)->model_weights(), *device, *device, **cache,
                                              {.context = 64}, ledger);
    return steps.ok() ? "" : steps.error().message;
  };
  ModelShape dense = Shape(2);
  dense.dense_intermediate = 128;
  EXPECT_NE(error_of(dense).find("layers without experts"), std::string::npos);
  ModelShape latent = Shape(2);
  latent.latent = 32;
  EXPECT_NE(error_of(latent).find("latent attention"), std::string::npos);
}

}  // namespace
}  // namespace convene::evaluate
