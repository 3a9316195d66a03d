// Steps whose keys and values lie on a disk: what is read and written when.
#include "strategy/spilled_kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "schedule/hazards.h"

namespace convene::strategy {
namespace {

using schedule::LaneKind;
using schedule::Task;
using schedule::TaskId;
using enum schedule::TaskKind;

model::ModelSpec Model(int num_layers) {
  model::ModelSpec spec;
  spec.hidden_size = 64;
  spec.vocab_size = 100;
  for (int layer = 0; layer < num_layers; ++layer) {
    model::LayerSpec& one = spec.layers.emplace_back();
    one.attention = {.num_heads = 2, .num_kv_heads = 2, .head_dim = 32, .value_dim = 32};
    one.moe = model::MoeSpec{.num_experts = 8, .top_k = 2, .intermediate_size = 32};
  }
  return spec;
}

std::vector<TaskId> TasksOf(const schedule::Schedule& schedule, schedule::TaskKind kind) {
  std::vector<TaskId> found;
  for (TaskId id = 0; id < std::ssize(schedule.tasks); ++id) {
    if (schedule.tasks[id].kind == kind) found.push_back(id);
  }
  return found;
}

bool WaitsFor(const Task& task, TaskId before) {
  return std::ranges::find(task.after, before) != task.after.end();
}

TEST(SpilledAttention, EveryPartIsReadBeforeItsAttentionAndWrittenBehindIt) {
  constexpr int kLayers = 3;
  for (const bool pages : {false, true}) {
    for (const SpilledKv& spilled :
         {SpilledKv{.parts = 1, .depth = 1}, SpilledKv{.parts = 1, .depth = 2},
          SpilledKv{.parts = 5, .depth = 2}, SpilledKv{.parts = 2, .depth = 99}}) {
      StepOptions options{.spilled_kv = spilled};
      if (pages) options.paging = Paging{.chunks = 2, .depth = 3};
      const schedule::Schedule schedule = BuildStep(Model(kLayers), options);
      EXPECT_TRUE(TasksOf(schedule, kAttention).empty());
      EXPECT_EQ(TasksOf(schedule, kPreAttention).size(), size_t{kLayers});
      EXPECT_EQ(TasksOf(schedule, kPostAttention).size(), size_t{kLayers});
      const std::vector<TaskId> reads = TasksOf(schedule, kReadKv);
      const std::vector<TaskId> attends = TasksOf(schedule, kAttend);
      const std::vector<TaskId> writes = TasksOf(schedule, kWriteKv);
      ASSERT_EQ(std::ssize(reads), kLayers * spilled.parts);
      ASSERT_EQ(attends.size(), reads.size());
      ASSERT_EQ(writes.size(), reads.size());
      const TaskId embedded = TasksOf(schedule, kEmbed).front();
      for (size_t i = 0; i < reads.size(); ++i) {
        const Task& read = schedule.tasks[reads[i]];
        EXPECT_EQ(read.lane.kind, LaneKind::kLoad);
        EXPECT_EQ(schedule.tasks[writes[i]].lane.kind, LaneKind::kLoad);
        for (const TaskId other : {attends[i], writes[i]}) {
          EXPECT_EQ(schedule.tasks[other].layer, read.layer);
          EXPECT_EQ(schedule.tasks[other].chunk, read.chunk);
        }
        EXPECT_TRUE(WaitsFor(schedule.tasks[attends[i]], reads[i]));
        EXPECT_TRUE(WaitsFor(schedule.tasks[writes[i]], attends[i]));
        // A buffer is used again once it was written; nothing is read before the step is known.
        const auto depth = static_cast<size_t>(spilled.depth);
        EXPECT_TRUE(WaitsFor(read, i < depth ? embedded : writes[i - depth]));
        EXPECT_FALSE(read.work.disk_bytes.empty());
        EXPECT_FALSE(schedule.tasks[writes[i]].work.disk_bytes.empty());
      }
    }
  }
}

TEST(SpilledAttention, ReadsOfExpertsAndOfKeysAndValuesTakeTurnsOnOneLane) {
  const schedule::Schedule schedule = BuildStep(
      Model(3),
      {.paging = Paging{.chunks = 2, .depth = 3}, .spilled_kv = SpilledKv{.parts = 3, .depth = 3}});
  // While experts of a layer are computed, keys and values of the next one are on their way.
  std::vector<TaskId> lane;
  for (TaskId id = 0; id < std::ssize(schedule.tasks); ++id) {
    if (schedule.tasks[id].lane.kind == LaneKind::kLoad) lane.push_back(id);
  }
  const auto place = [&](schedule::TaskKind kind, int layer, int chunk) {
    const auto at = std::ranges::find_if(lane, [&](TaskId id) {
      const Task& task = schedule.tasks[id];
      return task.kind == kind && task.layer == layer && task.chunk == chunk;
    });
    EXPECT_NE(at, lane.end());
    return at - lane.begin();
  };
  EXPECT_LT(place(kReadPages, 0, 1), place(kReadKv, 0, 0)) << "experts are read between steps";
  EXPECT_LT(place(kReadKv, 1, 2), place(kReadPages, 2, 0));
  EXPECT_LT(place(kReadPages, 2, 0), place(kReadKv, 2, 0));
  EXPECT_LT(place(kReadKv, 2, 0), place(kReadPages, 2, 1));
}

TEST(SpilledAttention, TheHazardCheckerMissesEachReadThatIsNotWaitedFor) {
  const schedule::Schedule whole =
      BuildStep(Model(2), {.spilled_kv = SpilledKv{.parts = 2, .depth = 3}});
  for (const auto& [kind, before] : {std::pair{kAttend, kReadKv}, std::pair{kWriteKv, kAttend}}) {
    for (const TaskId id : TasksOf(whole, kind)) {
      schedule::Schedule broken = whole;
      std::erase_if(broken.tasks[id].after, [&, before = before](TaskId other) {
        return broken.tasks[other].kind == before;
      });
      EXPECT_FALSE(schedule::CheckHazards(broken).ok()) << Label(whole.tasks[id]);
    }
  }
}

// In tokens of a layer: what a disk moves of a step that generates.
TEST(SpilledAttention, CountsWhatTheDiskMoves) {
  const model::ModelSpec spec = Model(1);
  const schedule::Schedule schedule =
      BuildStep(spec, {.spilled_kv = SpilledKv{.parts = 4, .depth = 2, .missing = 0.75}});
  // 10 sequences of 300 tokens, the last of which is new.
  const auto size = [](const schedule::Size& of) {
    return of.kind == schedule::SizeKind::kCached ? 10 * 300.0 : 10.0;
  };
  const auto bytes = [&](schedule::TaskKind kind) {
    double sum = 0;
    for (const TaskId id : TasksOf(schedule, kind)) {
      for (const schedule::Term& term : schedule.tasks[id].work.disk_bytes) {
        sum += term.factor * size(term.size);
      }
    }
    return sum;
  };
  const double token_bytes = 2 * (32 + 32) * 2;  // heads, channels, bf16
  EXPECT_DOUBLE_EQ(bytes(kReadKv), 0.75 * token_bytes * 10 * (299 + 32));
  EXPECT_DOUBLE_EQ(bytes(kWriteKv), 0.75 * token_bytes * 10 * 64);
}

TEST(SpilledAttention, ReadsWhatAWindowSees) {
  model::ModelSpec spec = Model(2);
  for (model::LayerSpec& layer : spec.layers) layer.attention.window = 128;
  // The last layer goes on with the wanted rows, whose windows are not all that is read.
  const schedule::Schedule schedule =
      BuildStep(spec, {.prunes_last_layer = true, .spilled_kv = SpilledKv{.parts = 1}});
  for (const TaskId id : TasksOf(schedule, kReadKv)) {
    const Task& task = schedule.tasks[id];
    const schedule::Size& seen = task.work.disk_bytes.front().size;
    EXPECT_EQ(seen.kind, schedule::SizeKind::kCached);
    EXPECT_EQ(seen.layer, task.layer);
    EXPECT_FALSE(seen.wanted);
  }
}

// As much as attention in one piece, which is what costs are measured of.
TEST(SpilledKv, PiecesOfAttentionDoTheWorkOfAll) {
  const model::ModelSpec spec = Model(2);
  constexpr int kParts = 3;
  const StepOptions options{.spilled_kv = SpilledKv{.parts = kParts}};
  const auto sum = [](const std::vector<schedule::Term>& terms) {
    double value = 0;
    for (const schedule::Term& term : terms) {
      value += term.factor * (term.size.kind == schedule::SizeKind::kOne ? 1 : 7);
    }
    return value;
  };
  for (int layer = 0; layer < 2; ++layer) {
    const LayerWork work(spec, spec.layers[layer], layer, options);
    const schedule::Work whole = work.Attention(0, /*is_projected=*/false);
    double flops = sum(work.BeforeParts(0).flops) + sum(work.BehindParts(0).flops);
    double bytes = sum(work.BeforeParts(0).memory_bytes) + sum(work.BehindParts(0).memory_bytes);
    for (int part = 0; part < kParts; ++part) {
      flops += sum(work.AttendPart(0).flops);
      bytes += sum(work.AttendPart(0).memory_bytes);
    }
    EXPECT_DOUBLE_EQ(flops, sum(whole.flops));
    EXPECT_DOUBLE_EQ(bytes, sum(whole.memory_bytes));
  }
}

}  // namespace
}  // namespace convene::strategy
