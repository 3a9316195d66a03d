#include "client/server_url.h"

#include <gtest/gtest.h>

namespace convene::client {
namespace {

TEST(ServerUrl, ReadsHostsPortsAndPaths) {
  const auto plain = ParseServerUrl("http://127.0.0.1:8080");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->host, "127.0.0.1");
  EXPECT_EQ(plain->port, "8080");
  EXPECT_EQ(plain->base, "");
  EXPECT_EQ(plain->authority(), "127.0.0.1:8080");
  const auto deep = ParseServerUrl("http://host/models/tale/v1/");
  ASSERT_TRUE(deep.ok());
  EXPECT_EQ(deep->port, "80");
  EXPECT_EQ(deep->base, "/models/tale");
  const auto ipv6 = ParseServerUrl("http://[::1]:81/v1");
  ASSERT_TRUE(ipv6.ok());
  EXPECT_EQ(ipv6->host, "::1");
  EXPECT_EQ(ipv6->port, "81");
  EXPECT_EQ(ipv6->base, "");
  EXPECT_EQ(ipv6->authority(), "[::1]:81");
}

TEST(ServerUrl, SaysWhatIsWrong) {
  for (const char* text :
       {"", "127.0.0.1:8080", "https://host", "http://", "http://:80", "http://host:0",
        "http://host:65536", "http://host:8o", "http://host:", "http://[::1", "http://[::1]x:80",
        "http://host/a b", "http://host/\r\nX: y", "http://host/?a", "http://me@host"}) {
    const auto parsed = ParseServerUrl(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_FALSE(parsed.error().message.empty());
  }
}

}  // namespace
}  // namespace convene::client
