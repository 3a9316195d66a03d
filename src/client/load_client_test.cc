#include "client/load_client.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace convene::client {
namespace {

TEST(LoadPrompt, DiffersBetweenLoadsClientsRequestsAndSeeds) {
  std::set<std::string> beginnings;
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{1} << 32}) {
    for (int load_idx = 0; load_idx < 3; ++load_idx) {
      const LoadOptions options = {
          .url = {}, .model = {}, .prompt_words = 8, .seed = seed, .load_idx = load_idx};
      for (int i = 0; i < 9; ++i) beginnings.insert(LoadPrompt(options, i / 3, i % 3));
      EXPECT_EQ(LoadPrompt(options, 1, 2), LoadPrompt(options, 1, 2));
    }
  }
  EXPECT_EQ(beginnings.size(), 81u);
}

}  // namespace
}  // namespace convene::client
