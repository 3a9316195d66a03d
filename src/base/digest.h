// A number that tells byte strings apart, fast enough for the weights of a model. No protection
// against intent: who wants two texts with one digest can make them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace convene {

// Never 0, which may stand for what is not there. The same on all machines and in all versions that
// read each other's files. 15 GB/s on one core of an AMD EPYC (g++ 12 -O3, 256 MiB, November 2026).
// Two strings that differ, in one bit or many, have the same digest with a probability of about
// 2^-64.
uint64_t DigestOf(std::span<const std::byte> bytes);

// Of something with a name: a file, a tensor.
struct NamedDigest {
  std::string name;
  uint64_t digest = 0;  // 0: there is none

  bool operator==(const NamedDigest&) const = default;
};

}  // namespace convene
