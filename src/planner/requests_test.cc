#include "planner/requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "planner/workload.h"

namespace convene::planner {
namespace {

using ::testing::ElementsAre;

// As traces have them: a few are many times as long as most.
Requests SomeRequests(size_t count) {
  std::mt19937 random(7);
  std::vector<RequestLengths> each;
  for (size_t i = 0; i < count; ++i) {
    const auto length = [&](uint32_t most) { return static_cast<int>(1 + random() % most); };
    each.push_back({length(i % 16 == 0 ? 9000 : 700), length(i % 11 == 0 ? 2000 : 90)});
  }
  return each;
}

TEST(Requests, AreInTheOrderOfTheirPromptsWithWhatTheyComeTo) {
  const Requests requests = {{1000, 3}, {10, 1}, {30, 4}, {20, 900}};
  EXPECT_THAT(std::vector(requests.begin(), requests.end()),
              ElementsAre(RequestLengths{10, 1}, RequestLengths{20, 900}, RequestLengths{30, 4},
                          RequestLengths{1000, 3}));
  EXPECT_EQ(requests.sums(), (RequestSums{4, 1060, 908}));
  EXPECT_EQ(requests.longest_prompt(), 1000);
  EXPECT_EQ(requests.longest(), 1003);
  EXPECT_EQ(requests.MeanOf(1, 3), (RequestLengths{25, 452}));
  EXPECT_TRUE(Requests(std::vector<RequestLengths>()).empty());
}

// A workload is copied for each value at which plans are asked about.
TEST(Requests, NoneHaveNoContext) {
  const Requests none(std::vector<RequestLengths>{});
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.mean_context(), 0);
}

TEST(Requests, CopiesShareThem) {
  const Workload workload{.requests = SomeRequests(100)};
  const Workload copy = workload;
  EXPECT_EQ(&copy.requests.front(), &workload.requests.front());
}

// Whoever has the parts alone prices the same sequences, for as many as the parts are made for and
// for fewer that divide these, and plans the same memory.
TEST(Requests, PartsSayOfThemWhatTheySayThemselves) {
  const Requests requests = SomeRequests(1009);
  for (const std::vector<int>& counts :
       std::vector<std::vector<int>>{{1}, {8}, {8, 5}, {300}, {2000}}) {
    const std::vector<RequestSums> parts = requests.InParts(counts);
    const Requests known(parts, requests.mean_context());
    EXPECT_EQ(known.sums(), requests.sums());
    EXPECT_EQ(known.longest(), requests.longest());
    EXPECT_EQ(known.longest_prompt(), requests.longest_prompt());
    EXPECT_EQ(known.mean_context(), requests.mean_context());
    const auto answer = [](const RequestLengths& one) { return one.gen_tokens; };
    EXPECT_EQ(answer(*std::ranges::max_element(known, {}, answer)),
              answer(*std::ranges::max_element(requests, {}, answer)));
    EXPECT_LE(parts.size(), std::max<size_t>(counts.front() + counts.back(), 1) + 6);
    for (const int count : counts) {
      for (int fewer = 1; fewer <= count; ++fewer) {
        if (count % fewer != 0) continue;
        EXPECT_EQ(TypicalSequences({.requests = known}, fewer),
                  TypicalSequences({.requests = requests}, fewer))
            << fewer << " of " << count;
      }
    }
  }
}

TEST(Requests, AreScaledEachByItself) {
  const Requests requests = {{1000, 3}, {10, 1}, {30, 4}};
  EXPECT_EQ(requests.Scaled(&RequestSums::prompt_tokens, 1), requests);
  EXPECT_EQ(requests.Scaled(&RequestSums::gen_tokens, 3), Requests({{1000, 9}, {10, 3}, {30, 12}}));
  EXPECT_EQ(requests.Scaled(&RequestSums::prompt_tokens, 0.01),
            Requests({{10, 3}, {1, 1}, {1, 4}}));
  const Requests many = SomeRequests(300);
  const Requests parts(many.InParts(std::vector{8}), many.mean_context());
  EXPECT_EQ(parts.Scaled(&RequestSums::gen_tokens, 1), parts);
}

TEST(Requests, ThoseThatAreTooLongAreLeftOut) {
  const Requests requests = {{1000, 3}, {10, 1}, {30, 4}};
  const auto is_long = [](const RequestLengths& one) { return one.prompt_tokens > 10; };
  EXPECT_EQ(requests.Without(is_long), Requests({{10, 1}}));
  EXPECT_TRUE(requests.Without([](const RequestLengths&) { return true; }).empty());
}

}  // namespace
}  // namespace convene::planner
