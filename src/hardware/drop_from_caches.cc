#include "hardware/drop_from_caches.h"

#include <immintrin.h>

#include <cstdint>

namespace convene::hardware {
namespace {

constexpr size_t kCacheLineBytes = 64;

// Lines in any order: ten times as fast as the other one.
[[gnu::target("clflushopt")]] void DropInAnyOrder(std::span<const std::byte> bytes) {
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  for (uintptr_t line = address & ~(kCacheLineBytes - 1); line < address + bytes.size();
       line += kCacheLineBytes) {
    _mm_clflushopt(reinterpret_cast<void*>(line));
  }
  _mm_sfence();
}

void DropInOrder(std::span<const std::byte> bytes) {
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  for (uintptr_t line = address & ~(kCacheLineBytes - 1); line < address + bytes.size();
       line += kCacheLineBytes) {
    _mm_clflush(reinterpret_cast<const void*>(line));
  }
  _mm_mfence();
}

}  // namespace

void DropFromCaches(std::span<const std::byte> bytes) {
  if (__builtin_cpu_supports("clflushopt")) return DropInAnyOrder(bytes);
  DropInOrder(bytes);
}

}  // namespace convene::hardware
