// A number that tells models apart without reading all of them: from what their files say they hold
// and from samples of it. No proof of equality, and no protection against intent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace convene::checkpoint {

class Fingerprint {
 public:
  void Add(std::span<const std::byte> bytes) {
    // FNV-1a
    for (const std::byte byte : bytes) {
      hash_ = (hash_ ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
    }
  }
  void Add(uint64_t number) { Add(std::as_bytes(std::span(&number, 1))); }

  // Some bytes of the beginning, the middle and the end, and how many there are.
  void AddSamples(std::span<const std::byte> bytes) {
    constexpr size_t kSample = 64;
    Add(bytes.size());
    if (bytes.size() <= 3 * kSample) return Add(bytes);
    Add(bytes.first(kSample));
    Add(bytes.subspan(bytes.size() / 2, kSample));
    Add(bytes.last(kSample));
  }

  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace convene::checkpoint
