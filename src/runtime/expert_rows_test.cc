#include "device/expert_rows.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <tuple>

#include "comm/threads/thread_group.h"
#include "hardware/thread_pool.h"
#include "runtime/executor.h"
#include "strategy/step.h"

namespace convene::runtime {
namespace {

using device::ChunkSlots;
using device::ExchangeMemory;
using device::ExpertPair;
using device::ExpertRows;
using device::WorkRow;
using schedule::Task;
using strategy::ChunkCut;
using strategy::Layout;
using strategy::Pipeline;
using enum schedule::TaskKind;

// The experts that the rows of each rank choose in one layer.
struct Routing {
  int num_experts = 0;
  int top_k = 0;
  std::vector<std::vector<int32_t>> experts = {};  // by rank: (rows, top_k)

  int num_rows(int rank) const { return static_cast<int>(std::ssize(experts[rank])) / top_k; }
};

Routing RandomRouting(int num_experts, int top_k, const std::vector<int>& rows,
                      std::mt19937& random) {
  Routing routing{.num_experts = num_experts, .top_k = top_k};
  std::vector<int32_t> all(static_cast<size_t>(num_experts));
  for (int i = 0; i < num_experts; ++i) all[i] = i;
  for (const int num_rows : rows) {
    std::vector<int32_t>& experts = routing.experts.emplace_back();
    for (int row = 0; row < num_rows; ++row) {
      std::shuffle(all.begin(), all.end(), random);
      std::sort(all.begin(), all.begin() + top_k);
      experts.insert(experts.end(), all.begin(), all.begin() + top_k);
    }
  }
  return routing;
}

Routing AllToOne(int num_experts, int expert, const std::vector<int>& rows) {
  Routing routing{.num_experts = num_experts, .top_k = 1};
  for (const int num_rows : rows) {
    routing.experts.emplace_back(static_cast<size_t>(num_rows), expert);
  }
  return routing;
}

// Whose output: a row of a rank, and what a rank's slice of an expert makes of it. Sums of these
// numbers tell which of them are in.
int64_t OutputOf(int rank, int row, int expert, int slice) {
  uint64_t hash = 1;
  for (const int part : {rank, row, expert, slice}) {
    hash = (hash ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return static_cast<int64_t>(hash >> 16);
}

float WeightOf(int row, int expert) { return static_cast<float>(row) + 0.001f * float(expert); }

// What is dispatched of a row.
struct RowName {
  int32_t rank = 0;
  int32_t row = 0;
};

// Does what feed_forward.h does, with numbers in the place of rows.
class NumberWork : public LaneWork {
 public:
  NumberWork(const Layout& layout, const Pipeline& pipeline, const std::vector<Routing>& layers,
             comm::Group* group, hardware::ThreadPool* pool)
      : layout_(layout),
        pool_(pool),
        rank_(group != nullptr ? group->rank() : 0),
        layers_(layers),
        num_chunks_(pipeline.chunks),
        storage_(static_cast<size_t>(ExpertRows::MemoryBytes(OptionsOf(layout, pipeline, layers)))),
        memory_(storage_),
        rows_(OptionsOf(layout, pipeline, layers), group, memory_) {
    EXPECT_EQ(memory_.left_bytes(), 0);
  }

  // Buffers have room for what these layers need and no more.
  ExpertRows::Options OptionsOf(const Layout& layout, const Pipeline& pipeline,
                                const std::vector<Routing>& layers) const {
    ExpertRows::Options options{.roles = layout,
                                .pipeline = pipeline,
                                .rank = rank_,
                                .dispatch_row_bytes = sizeof(RowName),
                                .return_row_bytes = sizeof(int64_t)};
    for (const Routing& routing : layers) {
      const strategy::Roles roles = layout;
      const int share = roles.expert_split().MostExperts(routing.num_experts);
      for (int rank = 0; rank < layout.num_ranks(); ++rank) {
        const int64_t rows = routing.num_rows(rank);
        options.most_rows = std::max(options.most_rows, rows);
        options.most_pairs = std::max(options.most_pairs, rows * std::min(routing.top_k, share));
      }
    }
    options.most_padded_rows = options.most_rows;
    options.pool = pool_;
    return options;
  }

  void Compute(const Task& task) override {
    if (task.layer < 0) return;
    const Routing& routing = layers_[task.layer];
    switch (task.kind) {
      case kRoute:
        return Route(task.layer, routing);
      case kExperts:
        return Experts(task.chunk);
      case kReduce:
        for (const ExpertRows::Returning& returning : rows_.Returns(task.chunk)) {
          const int64_t sum = SumOf(rows_.work_rows()[returning.work_row]);
          std::memcpy(returning.to, &sum, sizeof(sum));
        }
        return;
      case kFinish:
        return Finish(routing);
      default:
        return;
    }
  }

  std::unique_ptr<comm::Exchange> Start(const Task& task) override {
    switch (task.kind) {
      case kCounts:
        return rows_.StartCounts();
      case kDispatch:
        return rows_.StartDispatch(task.chunk);
      case kCombine:
        return rows_.StartCombine(task.chunk);
      default:
        return nullptr;
    }
  }

  int num_finished() const { return num_finished_; }
  // Rank, row and expert of each slot, in the order of slots, and ranks and rows as they went out;
  // of all steps.
  const std::vector<std::tuple<int, int, int>>& slots() const { return all_slots_; }
  const std::vector<int>& outgoing() const { return all_outgoing_; }

 private:
  void Route(int layer, const Routing& routing) {
    const std::vector<int32_t>& experts = routing.experts[rank_];
    weights_.clear();
    for (size_t i = 0; i < experts.size(); ++i) {
      weights_.push_back(WeightOf(static_cast<int>(i) / routing.top_k, experts[i]));
    }
    outputs_.clear();
    computed_.clear();
    rows_.Begin(layer, routing.num_experts, routing.top_k, experts, weights_);
    for (const ExpertRows::Outgoing& outgoing : rows_.outgoing()) {
      const RowName name{rank_, outgoing.row};
      std::memcpy(outgoing.to, &name, sizeof(name));
      all_outgoing_.push_back(outgoing.row);
    }
  }

  RowName NameOf(const WorkRow& work) const {
    RowName name{rank_, work.row};
    if (work.data != nullptr) std::memcpy(&name, work.data, sizeof(name));
    return name;
  }

  void Experts(int chunk) {
    const std::vector<int32_t> first_slot = rows_.Select(chunk).first_slot;
    const ChunkSlots& slots = rows_.Select(chunk);  // what arrived does not arrive again
    EXPECT_EQ(slots.first_slot, first_slot);
    ASSERT_EQ(std::ssize(slots.first_slot), rows_.num_local_experts() + 1);
    ASSERT_EQ(slots.first_slot.front(), std::ssize(outputs_)) << "slots of another chunk";
    ASSERT_EQ(slots.first_slot.back() - slots.first_slot.front(), std::ssize(slots.work_row));
    const int slice = strategy::Roles(layout_).of(rank_).experts->slice;
    const bool brings_rows = chunk < num_chunks_;
    const std::vector<int> wanted = brings_rows ? rows_.WantedExperts(chunk) : std::vector<int>();
    EXPECT_TRUE(std::ranges::is_sorted(wanted));
    for (int local = 0; local < rows_.num_local_experts(); ++local) {
      const int expert = rows_.first_expert() + local;
      if (brings_rows && slots.first_slot[local] < slots.first_slot[local + 1]) {
        EXPECT_TRUE(std::ranges::binary_search(wanted, expert)) << "expert " << expert;
      }
      for (int32_t slot = slots.first_slot[local]; slot < slots.first_slot[local + 1]; ++slot) {
        const WorkRow& work = rows_.work_rows()[slots.work_row[slot - slots.first_slot.front()]];
        const RowName name = NameOf(work);
        const bool is_new = computed_.emplace(name.rank, name.row, expert).second;
        EXPECT_TRUE(is_new) << "twice: expert " << expert << " of row " << name.row;
        CheckPair(work, name, expert, slot);
        all_slots_.emplace_back(name.rank, name.row, expert);
        outputs_.push_back(OutputOf(name.rank, name.row, expert, slice));
      }
    }
  }

  void CheckPair(const WorkRow& work, const RowName& name, int expert, int32_t slot) const {
    const auto begin = rows_.pairs().begin() + work.first_pair;
    const auto pair = std::find_if(begin, begin + work.num_pairs,
                                   [&](const ExpertPair& one) { return one.expert == expert; });
    ASSERT_NE(pair, begin + work.num_pairs);
    EXPECT_EQ(pair->slot, slot);
    EXPECT_EQ(pair->weight, WeightOf(name.row, expert));
  }

  int64_t SumOf(const WorkRow& work) const {
    int64_t sum = 0;
    for (int i = work.first_pair; i < work.first_pair + work.num_pairs; ++i) {
      const int32_t slot = rows_.pairs()[i].slot;
      EXPECT_GE(slot, 0) << "returned before it is computed";
      EXPECT_LT(slot, std::ssize(outputs_)) << "returned before it is computed";
      sum += outputs_.at(static_cast<size_t>(slot));
    }
    return sum;
  }

  void Finish(const Routing& routing) {
    ++num_finished_;
    ExpectAllComputedHere(routing);
    std::vector<ExpertRows::Partial> partials(static_cast<size_t>(layout_.num_ranks()));
    for (int row = 0; row < routing.num_rows(rank_); ++row) {
      int64_t sum = 0;
      const WorkRow* own = rows_.own_work(row);
      if (own != nullptr) sum += SumOf(*own);
      const int count = rows_.Partials(row, partials.data());
      for (int i = 0; i < count; ++i) {
        int64_t partial = 0;
        std::memcpy(&partial, partials[i].data, sizeof(partial));
        sum += partial;
      }
      int64_t expected = 0;
      for (int i = 0; i < routing.top_k; ++i) {
        const int32_t expert = routing.experts[rank_][row * routing.top_k + i];
        for (int slice = 0; slice < layout_.expert_tp; ++slice) {
          expected += OutputOf(rank_, row, expert, slice);
        }
      }
      EXPECT_EQ(sum, expected) << "row " << row << " of rank " << rank_;
    }
  }

  // Everybody's pairs with an expert of this rank, and no others.
  void ExpectAllComputedHere(const Routing& routing) const {
    size_t num_expected = 0;
    for (int rank = 0; rank < layout_.num_ranks(); ++rank) {
      int num_rows = 0;
      for (int row = 0; row < routing.num_rows(rank); ++row) {
        int num_pairs = 0;
        for (int i = 0; i < routing.top_k; ++i) {
          const int32_t expert = routing.experts[rank][row * routing.top_k + i];
          const int local = expert - rows_.first_expert();
          if (local < 0 || local >= rows_.num_local_experts()) continue;
          ++num_pairs;
          EXPECT_TRUE(computed_.contains({rank, row, expert})) << expert << " of row " << row;
        }
        num_expected += static_cast<size_t>(num_pairs);
        num_rows += num_pairs > 0;
      }
      if (rank == rank_) continue;
      // Each of its rows comes once, and returns once.
      int64_t num_returned = 0;
      for (int chunk = 0; chunk < num_chunks_; ++chunk) {
        num_returned += rows_.returned_rows(rank, chunk);
      }
      EXPECT_EQ(num_returned, num_rows) << "from rank " << rank;
    }
    EXPECT_EQ(computed_.size(), num_expected);
  }

  Layout layout_;
  hardware::ThreadPool* pool_;
  int rank_;
  const std::vector<Routing>& layers_;
  int num_chunks_;
  std::vector<std::byte> storage_;
  ExchangeMemory memory_;
  ExpertRows rows_;
  std::vector<float> weights_;
  std::vector<int64_t> outputs_;                  // by slot
  std::set<std::tuple<int, int, int>> computed_;  // rank, row, expert
  int num_finished_ = 0;
  std::vector<std::tuple<int, int, int>> all_slots_;
  std::vector<int> all_outgoing_;
};

model::ModelSpec SpecOf(const std::vector<Routing>& layers) {
  model::ModelSpec spec;
  spec.vocab_size = 8;
  spec.hidden_size = 4;
  for (const Routing& routing : layers) {
    model::LayerSpec layer;
    layer.moe.emplace();
    layer.attention = {.num_heads = 8, .num_kv_heads = 8, .head_dim = 2, .value_dim = 2};
    layer.moe->num_experts = routing.num_experts;
    layer.moe->top_k = routing.top_k;
    layer.moe->intermediate_size = 8;
    spec.layers.push_back(layer);
  }
  return spec;
}

// What a rank did, in its order.
struct Order {
  std::vector<std::tuple<int, int, int>> slots;
  std::vector<int> outgoing;

  bool operator==(const Order&) const = default;
};

// Two steps over these layers, the grouping by so many threads of each rank (0: no pool). By rank.
std::vector<Order> ExpectEveryPairOnce(const Layout& layout, const Pipeline& pipeline,
                                       const std::vector<Routing>& layers, int num_threads = 0) {
  SCOPED_TRACE(fmt::format("tp {} dp {} ep {} slices {}, {} chunks of {}", layout.attention_tp,
                           layout.attention_dp, layout.expert_ep, layout.expert_tp, pipeline.chunks,
                           pipeline.cut == ChunkCut::kTokens ? "tokens" : "experts"));
  const model::ModelSpec spec = SpecOf(layers);
  const schedule::Schedule schedule =
      strategy::BuildStep(spec, {.roles = layout, .pipeline = pipeline});
  std::vector<Order> orders(static_cast<size_t>(layout.num_ranks()));
  const auto run_rank = [&](comm::Group* group) {
    const int rank = group != nullptr ? group->rank() : 0;
    std::optional<hardware::ThreadPool> pool;
    if (num_threads > 0) pool.emplace(std::vector<int>(static_cast<size_t>(num_threads), 0));
    NumberWork work(layout, pipeline, layers, group, pool ? &*pool : nullptr);
    const RankProgram program(schedule, rank);
    Executor executor(/*background=*/pipeline.overlap, {{0}});
    for (int step = 0; step < 2; ++step) EXPECT_TRUE(executor.Run(program, work).ok());
    EXPECT_EQ(work.num_finished(), 2 * std::ssize(layers));
    orders[rank] = {work.slots(), work.outgoing()};
  };
  if (layout.num_ranks() == 1) {
    run_rank(nullptr);
  } else {
    comm::RunOnThreads(layout.num_ranks(), [&](comm::Group& group) { run_rank(&group); });
  }
  return orders;
}

std::vector<Layout> Layouts() {
  return {{1, 1, 1, 1},        {1, 2, 2, 1}, {1, 2, 1, 2},         {2, 1, 2, 1},
          {1, 3, 3, 1},        {1, 3, 1, 3}, {1, 4, 4, 1},         {2, 2, 2, 2},
          {1, 4, 2, 2},        {1, 6, 3, 2}, {1, 2, 2, 1, {3, 1}}, {1, 3, 3, 1, {1, 3, 2}},
          {1, 4, 2, 2, {1, 4}}};
}

std::vector<Pipeline> Pipelines() {
  std::vector<Pipeline> pipelines = {{1, ChunkCut::kTokens, true}, {1, ChunkCut::kTokens, false}};
  for (int chunks = 2; chunks <= 5; ++chunks) {
    pipelines.push_back({chunks, ChunkCut::kTokens, true});
    pipelines.push_back({chunks, ChunkCut::kExperts, true});
  }
  pipelines.push_back({.chunks = 3, .cut = ChunkCut::kExperts, .cuts = {0.1, 0.9}});
  pipelines.push_back({.chunks = 4, .cut = ChunkCut::kExperts, .cuts = {0.5, 0.75, 0.8}});
  return pipelines;
}

TEST(ExpertRows, ComputeEveryPairOnceAndReturnItsSumToItsRow) {
  std::mt19937 random(7);
  for (const Layout& layout : Layouts()) {
    for (const Pipeline& pipeline : Pipelines()) {
      const auto rows = [&](int most) {
        std::vector<int> counts;
        for (int rank = 0; rank < layout.num_ranks(); ++rank) {
          counts.push_back(static_cast<int>(random() % static_cast<unsigned>(most + 1)));
        }
        return counts;
      };
      // Layers that differ, so that buffers are used again for more and for less.
      ExpectEveryPairOnce(
          layout, pipeline,
          {RandomRouting(7, 3, rows(20), random), RandomRouting(16, 4, rows(9), random),
           RandomRouting(6, 6, rows(30), random)});
    }
  }
}

TEST(ExpertRows, HaveTheSameOrderHoweverManyThreadsGroupThem) {
  std::mt19937 random(9);
  for (const Layout& layout : {Layout{1, 1, 1, 1}, Layout{1, 2, 2, 1}, Layout{1, 4, 2, 2}}) {
    // So many pairs that each thread has some, the last ones fewer.
    const std::vector<int> rows(static_cast<size_t>(layout.num_ranks()), 3001);
    const std::vector<Routing> layers = {RandomRouting(9, 5, rows, random),
                                         RandomRouting(7, 7, rows, random)};
    for (const Pipeline& pipeline :
         {Pipeline{}, Pipeline{2, ChunkCut::kTokens}, Pipeline{2, ChunkCut::kExperts}}) {
      const std::vector<Order> alone = ExpectEveryPairOnce(layout, pipeline, layers);
      EXPECT_FALSE(alone.front().slots.empty());
      for (const int num_threads : {1, 2, 3}) {
        EXPECT_EQ(ExpectEveryPairOnce(layout, pipeline, layers, num_threads), alone)
            << num_threads << " threads";
      }
    }
  }
}

TEST(ExpertRows, MayBeOneTokenAltogether) {
  std::mt19937 random(8);
  for (const Layout& layout : Layouts()) {
    for (const Pipeline& pipeline : Pipelines()) {
      for (const int with_token : {0, layout.num_ranks() - 1}) {
        std::vector<int> rows(static_cast<size_t>(layout.num_ranks()), 0);
        rows[with_token] = 1;
        ExpectEveryPairOnce(layout, pipeline, {RandomRouting(8, 2, rows, random)});
      }
    }
  }
}

TEST(ExpertRows, MayBeNone) {
  for (const Layout& layout : Layouts()) {
    for (const Pipeline& pipeline : Pipelines()) {
      std::vector<int> rows(static_cast<size_t>(layout.num_ranks()), 0);
      ExpectEveryPairOnce(layout, pipeline, {AllToOne(8, 0, rows)});
    }
  }
}

TEST(ExpertRows, MayAllGoToOneExpert) {
  for (const Layout& layout : Layouts()) {
    for (const Pipeline& pipeline : Pipelines()) {
      std::vector<int> rows(static_cast<size_t>(layout.num_ranks()), 11);
      rows[0] = 0;  // a rank without tokens of its own
      ExpectEveryPairOnce(layout, pipeline, {AllToOne(8, 0, rows), AllToOne(8, 7, rows)});
    }
  }
}

}  // namespace
}  // namespace convene::runtime
