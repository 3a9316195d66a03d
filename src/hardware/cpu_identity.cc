#include "hardware/cpu_identity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#if defined(__x86_64__)
#include <cpuid.h>

#include <cstring>
#endif

#include "base/quote.h"
#include "base/units.h"

namespace convene::hardware {
namespace {

std::string WordsOfCaches(const CpuIdentity& cpu) {
  if (cpu.cache_bytes.empty()) return "caches of unknown sizes";
  std::vector<std::string> sizes;
  for (const uint64_t bytes : cpu.cache_bytes) sizes.push_back(FormatBytes(bytes));
  return fmt::format("caches of {}", fmt::join(sizes, ", "));
}

std::string WordsOf(const CpuIdentity& cpu) {
  return cpu.cpuid.empty() ? NameOf(cpu)
                           : fmt::format("{} ({})", NameOf(cpu), Printable(cpu.cpuid));
}

}  // namespace

std::string NameOf(const CpuIdentity& cpu) {
  return cpu.name.empty() ? "a CPU without a name" : Printable(cpu.name);
}

int FamilyOf(uint32_t signature) {
  constexpr uint32_t kExtended = 0xf;  // then the extended family is added
  const uint32_t family = (signature >> 8) & 0xf;
  return static_cast<int>(family == kExtended ? family + ((signature >> 20) & 0xff) : family);
}

std::string DescribeCpuid(const std::string& vendor, uint32_t signature) {
  constexpr int kFamilyOfIntel =
      6;  // whose models have the extended bits, as those from 15 on have
  const int family = FamilyOf(signature);
  uint32_t model = (signature >> 4) & 0xf;
  if (family == kFamilyOfIntel || family >= 0xf) model += ((signature >> 16) & 0xf) << 4;
  return fmt::format("{} family {} model {} stepping {}", vendor, family, model, signature & 0xf);
}

std::string ReadCpuid() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0) return {};
  char vendor[12];
  std::memcpy(vendor, &ebx, 4);
  std::memcpy(vendor + 4, &edx, 4);
  std::memcpy(vendor + 8, &ecx, 4);
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return {};
  return DescribeCpuid(std::string(vendor, sizeof(vendor)), eax);
#else
  return {};
#endif
}

std::string WhyAnotherCpu(const CpuIdentity& measured, const CpuIdentity& here) {
  if (here.name.empty() && here.cpuid.empty()) {
    return "this CPU has neither a name nor a CPUID by which it could be told from others";
  }
  if (measured.name == here.name && measured.cpuid.empty() && !here.cpuid.empty()) {
    return fmt::format(
        "it does not say on which kind of {} it was measured, as those of earlier "
        "versions do not",
        here.name.empty() ? "CPU" : Printable(here.name));
  }
  if (measured.name != here.name || measured.cpuid != here.cpuid) {
    return fmt::format("it was measured on {}, and this is {}", WordsOf(measured), WordsOf(here));
  }
  if (measured.cache_bytes != here.cache_bytes) {
    return fmt::format("it was measured with {}, and this CPU has {}", WordsOfCaches(measured),
                       WordsOfCaches(here));
  }
  return {};
}

}  // namespace convene::hardware
