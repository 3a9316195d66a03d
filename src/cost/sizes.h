// Where the value of a Size comes from: an expectation before a run, or what was counted in it.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>

#include "schedule/schedule.h"

namespace convene::cost {

// Not asked for SizeKind::kOne.
using Sizes = std::function<double(const schedule::Size&)>;

inline double Value(const schedule::Amount& amount, const Sizes& sizes) {
  double value = 0;
  for (const schedule::Term& term : amount) {
    value +=
        term.size.kind == schedule::SizeKind::kOne ? term.factor : term.factor * sizes(term.size);
  }
  return value;
}

// Sizes that were counted in a step. A Sizes may refer to it: [&](const Size& s) { return
// recorded.at(s); }.
class RecordedSizes {
 public:
  void Set(const schedule::Size& size, double value) { values_[size] = value; }

  // 0 where nothing was recorded.
  double at(const schedule::Size& size) const {
    const auto it = values_.find(size);
    return it == values_.end() ? 0 : it->second;
  }

 private:
  struct Hash {
    size_t operator()(const schedule::Size& size) const {
      uint64_t hash = static_cast<uint64_t>(size.kind);
      for (const int part :
           {size.layer, size.chunk, size.from, size.to, size.micro_batch, int{size.wanted}}) {
        hash = (hash ^ static_cast<uint32_t>(part)) * 0x9e3779b97f4a7c15u;
      }
      return hash ^ (hash >> 32);
    }
  };
  std::unordered_map<schedule::Size, double, Hash> values_;
};

}  // namespace convene::cost
