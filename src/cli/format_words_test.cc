#include "cli/format_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene::cli {
namespace {

using kernels::ActivationFormat;
using kernels::KvFormat;
using kernels::WeightFormat;

TEST(FormatWord, IsTheWeightsAndWhatElseIsWished) {
  engine::FormatWishes wishes = *ParseFormatWord("int8");
  EXPECT_EQ(wishes.weights, WeightFormat::kInt8);
  EXPECT_FALSE(wishes.activations);
  EXPECT_FALSE(wishes.kv);
  wishes = *ParseFormatWord("int4:128:kv=int8:act=bf16");
  EXPECT_EQ(wishes.weights, WeightFormat::kInt4);
  EXPECT_EQ(wishes.int4_group, 128);
  EXPECT_EQ(wishes.activations, ActivationFormat::kBf16);
  EXPECT_EQ(wishes.kv, KvFormat::kInt8);
  EXPECT_EQ(ParseFormatWord("f32")->weights, WeightFormat::kF32);
}

TEST(FormatWord, WithAnythingElseIsRejectedByName) {
  for (const char* word :
       {"", "auto", "int3", "int8:64", "int4:16", "int4:64:32", "int8:act", "int8:act=f32",
        "int8:act=int8:act=int8", "int8:kv=bf16:kv=bf16", "int8:", "int8:=int8", "bf16:act=int8",
        "f32:kv=int8", "int8:act=xint8"}) {
    const Result<engine::FormatWishes> wishes = ParseFormatWord(word);
    ASSERT_FALSE(wishes.ok()) << word;
    EXPECT_THAT(wishes.error().message, testing::HasSubstr("int8")) << word;
  }
}

}  // namespace
}  // namespace convene::cli
