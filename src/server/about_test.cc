#include "server/about.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene::server {
namespace {

using ::testing::HasSubstr;

TEST(About, WhatIsFullIsNamedByItsOwnOption) {
  EXPECT_THAT(QueueFull(7).message, HasSubstr("(7, --max-queue)"));
  EXPECT_THAT(BodiesFull(4096).message, HasSubstr("4096 bytes together (8 times --max-body)"));
  for (const openai::ApiError& error : {QueueFull(7), BodiesFull(4096)}) {
    EXPECT_EQ(error.status, 429);
    EXPECT_EQ(error.retry_after_s, kRetryAfterS);
  }
}

}  // namespace
}  // namespace convene::server
