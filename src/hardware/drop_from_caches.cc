#include "hardware/drop_from_caches.h"

#include <cpuid.h>

#include <cstdint>

namespace convene::hardware {
namespace {

constexpr size_t kCacheLineBytes = 64;

// Lines in any order: ten times as fast as the other one.
[[gnu::target("clflushopt")]] void DropInAnyOrder(std::span<const std::byte> bytes) {
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  for (uintptr_t line = address & ~(kCacheLineBytes - 1); line < address + bytes.size();
       line += kCacheLineBytes) {
    __builtin_ia32_clflushopt(reinterpret_cast<void*>(line));
  }
  __builtin_ia32_sfence();
}

void DropInOrder(std::span<const std::byte> bytes) {
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  for (uintptr_t line = address & ~(kCacheLineBytes - 1); line < address + bytes.size();
       line += kCacheLineBytes) {
    __builtin_ia32_clflush(reinterpret_cast<const void*>(line));
  }
  __builtin_ia32_mfence();
}

bool CanDropInAnyOrder() {
  constexpr unsigned kFeatures = 7;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(kFeatures, 0, &eax, &ebx, &ecx, &edx) != 0 &&
         (ebx & bit_CLFLUSHOPT) != 0;
}

}  // namespace

void DropFromCaches(std::span<const std::byte> bytes) {
  static const bool can_drop_in_any_order = CanDropInAnyOrder();
  return can_drop_in_any_order ? DropInAnyOrder(bytes) : DropInOrder(bytes);
}

}  // namespace convene::hardware
