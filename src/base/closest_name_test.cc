#include "base/closest_name.h"

#include <gtest/gtest.h>

#include <vector>

namespace convene {
namespace {

const std::vector<std::string> kNames = {"run",    "chat",     "batch", "tokenize", "detokenize",
                                         "report", "quantize", "bench", "prompt",   "prompt-file"};

TEST(ClosestName, ForgivesALetterLeftOutAddedReplacedOrExchanged) {
  EXPECT_EQ(ClosestName("promt", kNames), "prompt");
  EXPECT_EQ(ClosestName("prompts", kNames), "prompt");
  EXPECT_EQ(ClosestName("chst", kNames), "chat");
  EXPECT_EQ(ClosestName("rnu", kNames), "run");
  EXPECT_EQ(ClosestName("prompt_file", kNames), "prompt-file");
  EXPECT_EQ(ClosestName("quantise", kNames), "quantize");
}

TEST(ClosestName, TakesAPartOfOneNameOnly) {
  EXPECT_EQ(ClosestName("quant", kNames), "quantize");
  EXPECT_EQ(ClosestName("detok", kNames), "detokenize");
  EXPECT_EQ(ClosestName("token", kNames), "") << "two names contain it";
}

TEST(ClosestName, HasNoneForOtherWords) {
  EXPECT_EQ(ClosestName("serve", kNames), "");
  EXPECT_EQ(ClosestName("x", kNames), "");
  EXPECT_EQ(ClosestName("", kNames), "");
  EXPECT_EQ(ClosestName(std::string(100000, 'x'), kNames), "");
  EXPECT_EQ(ClosestName("run", {}), "");
}

TEST(DidYouMean, FollowsAMessage) {
  EXPECT_EQ(DidYouMean("rnu", kNames), "; did you mean run?");
  EXPECT_EQ(DidYouMean("serve", kNames), "");
}

}  // namespace
}  // namespace convene
