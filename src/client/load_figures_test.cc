#include "client/load_figures.h"

#include <gtest/gtest.h>

namespace convene::client {
namespace {

TEST(LoadFigures, QuantilesAreValuesThatWereSeen) {
  EXPECT_FALSE(Quantile({}, 0.5));
  EXPECT_EQ(Quantile({3}, 0.99), 3);
  const std::vector<double> values = {1, 2, 3, 4};
  EXPECT_EQ(Quantile(values, 0), 1);
  EXPECT_EQ(Quantile(values, 0.5), 2);
  EXPECT_EQ(Quantile(values, 0.99), 4);
  EXPECT_EQ(Quantile(values, 1), 4);
}

TEST(LoadFigures, CountsTokensWhileAllClientsStream) {
  // Two clients: one streams from 1 to 5, the other from 2 to 6; a piece each half second, two
  // tokens a piece.
  LoadRecord record{.num_clients = 2,
                    .requests = {{.start_s = 0.5,
                                  .first_s = 1,
                                  .last_s = 5,
                                  .num_pieces = 9,
                                  .num_prompt_tokens = 7,
                                  .num_cached_tokens = 3,
                                  .num_tokens = 18},
                                 {.start_s = 0,
                                  .first_s = 2,
                                  .last_s = 6,
                                  .num_pieces = 9,
                                  .num_prompt_tokens = 9,
                                  .num_tokens = 18}},
                    .gaps_s = std::vector<float>(16, 0.5F),
                    .all_stream_from_s = 2,
                    .all_stream_to_s = 5,
                    .num_streamed = 2,
                    .total_s = 6};
  for (int i = 0; i < 9; ++i) record.pieces.push_back({0, 1 + 0.5 * i});
  for (int i = 0; i < 9; ++i) record.pieces.push_back({1, 2 + 0.5 * i});
  const LoadFigures figures = FiguresOf(record);
  EXPECT_EQ(figures.num_errors(), 0);
  EXPECT_EQ(figures.mean_prompt_tokens, 8);
  EXPECT_EQ(figures.mean_cached_tokens, 1.5);
  EXPECT_EQ(figures.first_token.median_s, 0.5);
  EXPECT_EQ(figures.first_token.max_s, 2);
  EXPECT_EQ(figures.gap.p99_s, 0.5);
  EXPECT_EQ(figures.all_stream_s, 3);
  ASSERT_TRUE(figures.tokens_per_s);
  EXPECT_DOUBLE_EQ(*figures.tokens_per_s, 8);  // two times 6 pieces in 3 s
  EXPECT_DOUBLE_EQ(figures.overall_tokens_per_s, 6);
}

// Steps of one second bring a piece to each of four clients, one a little after the other, in an
// order that changes: four pieces a second, whichever client is the first or the last.
TEST(LoadFigures, TheRateIsThatOfTheStepsWhicheverClientFrames) {
  LoadRecord record{.num_clients = 4, .num_streamed = 4, .total_s = 6};
  for (int step = 1; step <= 6; ++step) {
    for (int i = 0; i < 4; ++i) record.pieces.push_back({(i + step) % 4, step + 1e-4 * i});
  }
  record.requests.resize(4, {.first_s = 1, .num_pieces = 6, .num_tokens = 6});
  record.all_stream_from_s = 1 + 3e-4;
  record.all_stream_to_s = 6;
  const LoadFigures figures = FiguresOf(record);
  ASSERT_TRUE(figures.tokens_per_s);
  EXPECT_NEAR(*figures.tokens_per_s, 4, 1e-3);

  record.all_stream_to_s = 2;  // three of them saw one piece from then on
  EXPECT_FALSE(FiguresOf(record).tokens_per_s);
}

TEST(LoadFigures, ClientsThatNeverStreamedTogetherHaveNoRate) {
  LoadRecord record{.num_clients = 2,
                    .requests = {{.start_s = 0,
                                  .first_s = 1,
                                  .last_s = 2,
                                  .num_pieces = 2,
                                  .num_prompt_tokens = 1,
                                  .num_tokens = 2},
                                 {.start_s = 0, .first_s = {}, .error = "status 429"}},
                    .pieces = {{0, 1}, {0, 2}},
                    .all_stream_from_s = 1,
                    .all_stream_to_s = 2,
                    .num_streamed = 1,
                    .total_s = 2};
  const LoadFigures one_failed = FiguresOf(record);
  EXPECT_FALSE(one_failed.tokens_per_s);
  EXPECT_EQ(one_failed.num_errors(), 1);
  EXPECT_EQ(ToJson(one_failed)["errors_by_message"]["status 429"], 1);
  EXPECT_TRUE(ToJson(one_failed)["tokens_per_s_while_all_stream"].is_null());

  const LoadFigures nothing = FiguresOf({.num_clients = 1});
  EXPECT_FALSE(nothing.tokens_per_s);
  EXPECT_EQ(nothing.overall_tokens_per_s, 0);
  EXPECT_FALSE(nothing.first_token.median_s);
}

}  // namespace
}  // namespace convene::client
