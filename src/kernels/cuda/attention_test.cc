#include "kernels/cuda/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/attention_case_test.h"

namespace convene::kernels::cuda {
namespace {

AttentionCase CaseOf(int num_heads, int num_kv_heads, int key_dim, int value_dim,
                     int value_in_key = -1) {
  AttentionCase of;
  of.shape = {.num_heads = num_heads,
              .num_kv_heads = num_kv_heads,
              .key_dim = key_dim,
              .value_dim = value_dim,
              .value_in_key = value_in_key,
              .scale = 1 / std::sqrt(static_cast<float>(key_dim))};
  return of;
}

void ExpectAsDefined(const AttentionCase& of, const std::vector<CaseSequence>& sequences,
                     int every = 1) {
  const auto outputs = RunAttention(of, sequences);
  for (size_t i = 0; i < sequences.size(); ++i) {
    EXPECT_LE(WorstError(of, sequences[i], outputs[i], every), 1)
        << "heads " << of.shape.key_dim << "/" << of.shape.value_dim << ", sequence " << i;
  }
}

// A prompt, part of a longer one behind a span's end, few rows, one, and the first.
const std::vector<CaseSequence> kMixed = {{.seed = 1, .first = 0, .count = 70},
                                          {.seed = 2, .first = 500, .count = 33},
                                          {.seed = 3, .first = 190, .count = 3},
                                          {.seed = 4, .first = 1100, .count = 1},
                                          {.seed = 5, .first = 0, .count = 1}};

TEST(CudaAttention, IsAsDefinedForHeadsOfMostModels) {
  ExpectAsDefined(CaseOf(8, 2, 128, 128), kMixed, 7);
  ExpectAsDefined(CaseOf(4, 4, 64, 64), kMixed, 7);
  ExpectAsDefined(CaseOf(6, 1, 96, 96), kMixed, 7);
  ExpectAsDefined(CaseOf(8, 2, 80, 80), kMixed, 7);
  ExpectAsDefined(CaseOf(4, 2, 192, 128), kMixed, 7);
  ExpectAsDefined(CaseOf(4, 1, 256, 256), kMixed, 7);
}

TEST(CudaAttention, IsAsDefinedForSmallHeads) {
  for (const auto& [key_dim, value_dim] :
       {std::pair{8, 8}, {12, 12}, {16, 16}, {24, 16}, {32, 32}, {10, 6}, {7, 5}, {36, 20}}) {
    ExpectAsDefined(CaseOf(4, 2, key_dim, value_dim), kMixed, 7);
  }
}

TEST(CudaAttention, IsAsDefinedWhereValuesArePartOfKeys) {
  ExpectAsDefined(CaseOf(16, 1, 576, 512, 64),
                  {{.seed = 1, .first = 0, .count = 5}, {.seed = 2, .first = 530, .count = 1}}, 3);
  ExpectAsDefined(CaseOf(20, 1, 288, 256, 32), {{.seed = 1, .first = 60, .count = 6}}, 3);
  ExpectAsDefined(CaseOf(4, 1, 40, 32, 8), kMixed, 7);
  ExpectAsDefined(CaseOf(4, 1, 20, 16, 4), kMixed, 7);
  ExpectAsDefined(CaseOf(4, 1, 22, 16, 6), kMixed, 7);
}

TEST(CudaAttention, IsAsDefinedWithWindowsSinksAndBiases) {
  AttentionCase of = CaseOf(8, 2, 64, 64);
  of.shape.window = 100;
  ExpectAsDefined(of, kMixed, 7);
  of.sinks = {-2, 0, 1, 2, 3, 4, 8, 30};
  ExpectAsDefined(of, kMixed, 7);
  of.shape.window = 0;
  ExpectAsDefined(of, kMixed, 7);
  of.sinks.clear();
  of.bias_reach = 40;
  ExpectAsDefined(of, kMixed, 7);
  of.shape.window = 1;
  ExpectAsDefined(of, kMixed, 7);
}

TEST(CudaAttention, IsAsDefinedWhereAllRowsSeeAllKeys) {
  const std::vector<CaseSequence> sequences = {{.seed = 1, .count = 40, .num_keys = 40},
                                               {.seed = 2, .count = 1, .num_keys = 1000},
                                               {.seed = 3, .count = 20, .num_keys = 513},
                                               {.seed = 4, .count = 3, .num_keys = 64}};
  AttentionCase of = CaseOf(4, 2, 64, 64);
  ExpectAsDefined(of, sequences, 3);
  of.bias_reach = 20;
  ExpectAsDefined(of, sequences, 3);
}

// Rows [first, last of the cuts) of a sequence, whatever else there is, however they were cut and
// divided, bit by bit.
void ExpectIndependent(AttentionCase of, int first, const std::vector<int>& cuts) {
  const CaseSequence whole = {.seed = 9, .first = first, .count = cuts.back() - first};
  of.num_multiprocessors = 1;
  const std::vector<Bf16> alone = RunAttention(of, {whole})[0];
  EXPECT_LE(WorstError(of, whole, alone, 97), 1);
  for (const int num_multiprocessors : {1, 132}) {
    of.num_multiprocessors = num_multiprocessors;
    std::vector<Bf16> in_chunks;
    bool has_folds = false;
    int done = first;
    for (const int cut : cuts) {
      const AttentionStep step(of, {{.seed = 20, .first = 600, .count = 1},
                                    {.seed = 9, .first = done, .count = cut - done},
                                    {.seed = 21, .first = 0, .count = 20}});
      step.Run();
      const std::vector<Bf16> outputs = step.Outputs()[1];
      in_chunks.insert(in_chunks.end(), outputs.begin(), outputs.end());
      has_folds = has_folds || !step.plan().folds.empty();
      done = cut;
    }
    EXPECT_TRUE(has_folds || num_multiprocessors == 1 || of.shape.window > 0);
    ASSERT_EQ(in_chunks.size(), alone.size());
    EXPECT_EQ(in_chunks, alone) << "heads " << of.shape.key_dim << ", " << num_multiprocessors;
  }
}

TEST(CudaAttention, DependsOnTheSequenceAlone) {
  ExpectIndependent(CaseOf(8, 2, 128, 128), 470, {481, 482, 512, 610});
  ExpectIndependent(CaseOf(8, 2, 128, 128), 1010, {1024, 1030, 1031});
  ExpectIndependent(CaseOf(4, 1, 256, 256), 470, {513, 540, 541});
  ExpectIndependent(CaseOf(4, 2, 192, 128), 470, {513, 540, 541});
  ExpectIndependent(CaseOf(6, 2, 96, 80), 1010, {1020, 1050, 1051});
}

TEST(CudaAttention, DependsOnTheSequenceAloneWithWindowsSinksAndBiases) {
  const std::vector<int> cuts = {1, 64, 100, 513, 514, 570};
  AttentionCase of = CaseOf(4, 2, 64, 64);
  of.sinks = {-2, 0, 1, 30};
  ExpectIndependent(of, 0, cuts);
  of.shape.window = 128;
  of.bias_reach = 50;
  ExpectIndependent(of, 0, cuts);
  ExpectIndependent(CaseOf(4, 2, 12, 12), 0, cuts);
}

TEST(CudaAttention, DependsOnTheSequenceAloneWhereValuesArePartOfKeys) {
  ExpectIndependent(CaseOf(16, 1, 576, 512, 64), 505, {512, 514, 519, 520});
}

TEST(CudaAttention, HasNothingToDoWithoutRows) {
  const AttentionCase of = CaseOf(8, 2, 128, 128);
  EXPECT_TRUE(PlanAttention(of.shape, {}, 132).work.empty());
  const auto outputs = RunAttention(of, {{.count = 0}, {.first = 3, .count = 1}});
  EXPECT_TRUE(outputs[0].empty());
  EXPECT_EQ(outputs[1].size(), 8 * 128);
}

// Every row and span once, in memory of its own, no more of it than was promised.
void ExpectWholePlan(const AttentionCase& of, const std::vector<QueryRows>& sequences,
                     int context) {
  const AttentionPlan plan = PlanAttention(of.shape, sequences, 132);
  int num_rows = 0;
  std::map<std::tuple<int, int, int>, int> spans;  // of tiles
  std::map<std::tuple<int, int, int>, int> rows;
  const auto tile_of = [](const AttentionWork& work) {
    return std::tuple(work.sequence, work.kv_head, work.first_row);
  };
  for (const AttentionWork& work : plan.work) {
    spans[tile_of(work)] += work.num_spans;
    rows[tile_of(work)] = work.num_rows;
    EXPECT_LT(int64_t{work.partial} * kPartialUnit, plan.partial_floats + (work.partial < 0));
  }
  for (const AttentionWork& work : plan.folds) EXPECT_EQ(spans[tile_of(work)], work.num_spans);
  int64_t total = 0;
  for (const auto& [tile, count] : rows) total += count;
  int64_t expected = 0;
  for (const QueryRows& sequence : sequences) {
    num_rows += sequence.num_rows;
    expected += int64_t{sequence.num_rows} * of.shape.num_heads;
  }
  EXPECT_EQ(total, expected);
  EXPECT_LE(plan.partial_floats, MostPartialFloats(of.shape, num_rows, context));
}

TEST(CudaAttention, PlansAreWhole) {
  for (const AttentionCase& of :
       {CaseOf(32, 8, 128, 128), CaseOf(16, 1, 576, 512, 64), CaseOf(16, 8, 256, 256),
        CaseOf(64, 1, 96, 96), CaseOf(4, 4, 12, 12)}) {
    ExpectWholePlan(of, {{.num_rows = 2048}}, 2048);
    ExpectWholePlan(of, {{.num_rows = 1, .first_position = 99999}}, 100000);
    ExpectWholePlan(of, {{.num_rows = 9, .first_position = 9000}}, 10000);
    ExpectWholePlan(of, {{.num_rows = 100, .first_position = 30000}, {.num_rows = 1}}, 30100);
    std::vector<QueryRows> many(256);
    for (int i = 0; i < 256; ++i) {
      many[static_cast<size_t>(i)] = {.first_row = i, .num_rows = 1, .first_position = 40 * i};
    }
    ExpectWholePlan(of, many, 10240);
    for (QueryRows& rows : many) rows.num_rows = 17;
    ExpectWholePlan(of, many, 10240 + 17);
  }
}

}  // namespace
}  // namespace convene::kernels::cuda
