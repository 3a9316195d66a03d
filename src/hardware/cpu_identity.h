// Which kind of CPU a machine has, as far as it tells, and whether another one is of the same kind.
// It is not what the CPU can do: that is isa.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace convene::hardware {

// A virtual machine may give CPUs of different kinds the same name ("AMD EPYC"), and the same
// instructions and numbers of CPUs are found on many: what was measured on one is not true of
// another.
struct CpuIdentity {
  std::string name = {};   // "AMD EPYC 9654 96-Core Processor"; empty: not known
  std::string cpuid = {};  // "AuthenticAMD family 26 model 2 stepping 1"; empty: no CPUID here
  // Of one cache for data of each level, the nearest to the core first; of all cores of the machine
  // that the system shows, whatever the affinity mask says. Where cores differ: of the largest.
  std::vector<uint64_t> cache_bytes = {};

  bool operator==(const CpuIdentity&) const = default;
};

// For messages: the name, or that there is none.
std::string NameOf(const CpuIdentity& cpu);

// "GenuineIntel family 6 model 143 stepping 8" of the vendor and what leaf 1 of CPUID gives in EAX,
// with the extended family and model as the manufacturers say to add them.
std::string DescribeCpuid(const std::string& vendor, uint32_t signature);

// That of the calling thread's CPU. Empty: the architecture has no CPUID.
std::string ReadCpuid();

// The family of such a signature.
int FamilyOf(uint32_t signature);

// Why what was measured on a CPU of the one kind says nothing of one of the other, as "it was
// measured on A, and this is B"; empty: they are of the same kind, as far as both tell. What has
// neither a name nor a CPUID is like nothing, itself included.
std::string WhyAnotherCpu(const CpuIdentity& measured, const CpuIdentity& here);

}  // namespace convene::hardware
