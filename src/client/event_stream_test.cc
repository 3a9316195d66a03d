#include "client/event_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene::client {
namespace {

using ::testing::ElementsAre;

constexpr std::string_view kText =
    ": keep-alive\n\ndata: {\"a\": 1}\n\nevent: x\r\ndata:one\r\ndata:  two\r\nid: 4\r\n\r\n"
    "database: no\n\ndata\n\ndata: [DONE]\r\rdata: cut";

TEST(EventStream, GivesTheDataOfEventsHoweverTheyAreCut) {
  EventStream whole;
  EXPECT_THAT(whole.Push(kText), ElementsAre("{\"a\": 1}", "one\n two", "", "[DONE]"));
  for (size_t size = 1; size < 9; ++size) {
    EventStream stream;
    std::vector<std::string> events;
    for (size_t at = 0; at < kText.size(); at += size) {
      for (std::string& event : stream.Push(kText.substr(at, size))) {
        events.push_back(std::move(event));
      }
    }
    EXPECT_THAT(events, ElementsAre("{\"a\": 1}", "one\n two", "", "[DONE]")) << size;
    EXPECT_EQ(stream.pending_bytes(), std::string_view("data: cut").size());
  }
}

TEST(EventStream, GivesNothingForNothing) {
  EventStream stream;
  EXPECT_TRUE(stream.Push("").empty());
  EXPECT_TRUE(stream.Push("\n\n\r\n").empty());
  EXPECT_EQ(stream.pending_bytes(), 0u);
}

}  // namespace
}  // namespace convene::client
