#include "base/digest.h"

#include <bit>
#include <cstring>

namespace convene {
namespace {

// Words of 64 bits in the byte order of x86 and ARM.
static_assert(std::endian::native == std::endian::little);

// Bits without a pattern: those of pi's fraction.
constexpr uint64_t kKeys[] = {0x243f6a8885a308d3, 0x13198a2e03707345, 0xa4093822299f31d1,
                              0x082efa98ec4e6c89, 0x452821e638d01377, 0xbe5466cf34e90c6d,
                              0xc0ac29b7c97c50dd, 0x3f84d5b5b5470917};

uint64_t Word(const std::byte* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

// All 128 bits of the product, folded: every bit of both factors moves about half of the result.
uint64_t Fold(uint64_t a, uint64_t b) {
  __extension__ using Product = unsigned __int128;
  const Product product = static_cast<Product>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// 16 bytes into a sum that was before them.
uint64_t Mix(uint64_t sum, const std::byte* bytes, int lane) {
  return std::rotl(sum, 29) ^
         Fold(Word(bytes) ^ kKeys[2 * lane], Word(bytes + 8) ^ sum ^ kKeys[2 * lane + 1]);
}

}  // namespace

uint64_t DigestOf(std::span<const std::byte> bytes) {
  // Four sums at the same time, since each waits for its multiplication.
  constexpr size_t kLanes = 4;
  constexpr size_t kBlock = 16 * kLanes;
  // Not the keys that Mix adds to them: a factor of zero would hide the other one.
  uint64_t sums[kLanes] = {kKeys[6], kKeys[4], kKeys[2], kKeys[0]};
  const std::byte* data = bytes.data();
  size_t left = bytes.size();
  for (; left >= kBlock; left -= kBlock, data += kBlock) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] = Mix(sums[lane], data + 16 * lane, static_cast<int>(lane));
    }
  }
  if (left > 0) {
    // Zeros behind the end; the length, below, tells them from zeros before it.
    std::byte last[kBlock] = {};
    std::memcpy(last, data, left);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] = Mix(sums[lane], last + 16 * lane, static_cast<int>(lane));
    }
  }
  uint64_t digest = bytes.size() ^ kKeys[0];
  for (size_t lane = 0; lane < kLanes; ++lane) {
    digest = std::rotl(digest, 23) ^ Fold(digest ^ kKeys[lane], sums[lane] ^ kKeys[lane + 4]);
  }
  digest = Fold(digest ^ kKeys[2], kKeys[6]);
  return digest == 0 ? 1 : digest;
}

}  // namespace convene
