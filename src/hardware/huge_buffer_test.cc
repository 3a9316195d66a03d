#include "hardware/huge_buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace convene::hardware {
namespace {

using ::testing::HasSubstr;

TEST(HugeBuffer, IsAlignedZeroedAndWritable) {
  for (const size_t size_bytes :
       {size_t{1}, size_t{4096}, kHugePageBytes, 3 * kHugePageBytes + 5}) {
    const Result<HugeBuffer> buffer = HugeBuffer::Allocate(size_bytes, "the test");
    ASSERT_TRUE(buffer);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % kHugePageBytes, 0u);
    ASSERT_EQ(buffer->bytes().size(), size_bytes);
    EXPECT_TRUE(
        std::ranges::all_of(buffer->bytes(), [](std::byte b) { return b == std::byte{0}; }));
    std::memset(buffer->data(), 0x5a, size_bytes);
    EXPECT_EQ(buffer->bytes().back(), std::byte{0x5a});
  }
}

TEST(HugeBuffer, OfNothingIsEmpty) {
  const Result<HugeBuffer> buffer = HugeBuffer::Allocate(0, "the test");
  ASSERT_TRUE(buffer);
  EXPECT_TRUE(buffer->bytes().empty());
  EXPECT_EQ(buffer->huge_page_bytes(), 0u);
}

TEST(HugeBuffer, TooLargeIsAnErrorWithPurposeSizeAndWhatIsAvailable) {
  for (const size_t size_bytes : {size_t{1} << 60, ~size_t{0}}) {
    const Result<HugeBuffer> buffer = HugeBuffer::Allocate(size_bytes, "the KV cache");
    ASSERT_FALSE(buffer);
    EXPECT_THAT(buffer.error().message, HasSubstr("the KV cache"));
    EXPECT_THAT(buffer.error().message, HasSubstr("EiB"));
    EXPECT_THAT(buffer.error().message, HasSubstr("available"));
    EXPECT_EQ(buffer.error().kind, ErrorKind::kResourceExhausted);
  }
}

TEST(HugeBuffer, CountsAllThatAreAlive) {
  const size_t before = HugeBuffer::total_bytes();
  {
    const HugeBuffer first = *HugeBuffer::Allocate(100, "the test");
    HugeBuffer second = *HugeBuffer::Allocate(kHugePageBytes + 1, "the test");
    EXPECT_EQ(HugeBuffer::total_bytes() - before, kHugePageBytes + 101);
    second = HugeBuffer();
    EXPECT_EQ(HugeBuffer::total_bytes() - before, 100u);
  }
  EXPECT_EQ(HugeBuffer::total_bytes(), before);
}

TEST(HugeBuffer, MovesItsMemory) {
  HugeBuffer first = *HugeBuffer::Allocate(100, "the test");
  first.data()[7] = std::byte{7};
  const std::byte* data = first.data();
  HugeBuffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): what a move leaves
  HugeBuffer third = *HugeBuffer::Allocate(kHugePageBytes, "the test");
  third = std::move(second);
  EXPECT_EQ(third.size_bytes(), 100u);
  EXPECT_EQ(third.data()[7], std::byte{7});
  HugeBuffer& same = third;
  third = std::move(same);
  EXPECT_EQ(third.data(), data);
}

TEST(HugeBuffer, CountsItsOwnHugePagesOnly) {
  // Neighbours in the address space, as allocated one after the other: only the middle is written.
  const HugeBuffer before = *HugeBuffer::Allocate(4 * kHugePageBytes, "the test");
  const HugeBuffer middle = *HugeBuffer::Allocate(4 * kHugePageBytes, "the test");
  const HugeBuffer after = *HugeBuffer::Allocate(4 * kHugePageBytes, "the test");
  std::memset(middle.data(), 1, middle.size_bytes());
  EXPECT_EQ(before.huge_page_bytes(), 0u);
  EXPECT_EQ(after.huge_page_bytes(), 0u);
  // The kernel may grant none, but only whole ones.
  EXPECT_EQ(middle.huge_page_bytes() % kHugePageBytes, 0u);
  EXPECT_LE(middle.huge_page_bytes(), middle.size_bytes());
  RecordProperty("huge_page_bytes", static_cast<int>(middle.huge_page_bytes()));
}

size_t BytesInMemory(std::span<std::byte> part) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((part.size() + page - 1) / page);
  if (mincore(part.data(), part.size(), pages.data()) != 0) return 0;
  return page * static_cast<size_t>(std::ranges::count_if(pages, [](auto at) { return at & 1; }));
}

TEST(HugeBuffer, PagesCanBeTakenBeforeTheyAreWritten) {
  auto buffer = HugeBuffer::Allocate(4 * kHugePageBytes, "a test");
  ASSERT_TRUE(buffer);
  EXPECT_EQ(BytesInMemory(buffer->bytes()), 0u);
  buffer->data()[0] = std::byte{7};
  const std::span<std::byte> first = buffer->bytes().first(2 * kHugePageBytes - 5);
  if (!TakePages(first)) GTEST_SKIP() << "a kernel before Linux 5.14";
  EXPECT_GE(BytesInMemory(buffer->bytes()), first.size());
  EXPECT_EQ(BytesInMemory(buffer->bytes().last(kHugePageBytes)), 0u);
  EXPECT_EQ(buffer->data()[0], std::byte{7}) << "what was written stays";
  EXPECT_EQ(buffer->data()[kHugePageBytes], std::byte{0});
}

TEST(HugeBufferDeathTest, FaultsPastItsEnd) {
  const HugeBuffer buffer = *HugeBuffer::Allocate(kHugePageBytes, "the test");
  volatile std::byte* past = buffer.data() + kHugePageBytes;
  EXPECT_DEATH(static_cast<void>(*past), "");
}

}  // namespace
}  // namespace convene::hardware
