// Rank 0's value on all ranks: where a clock or a file of its own decides what all do next.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/group.h"

namespace convene::comm {

// *Collective*. `what` names the exchange, as in Group.
template <typename T>
T FromRankZero(Group& group, T value, std::string what) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<std::byte> bytes(sizeof(T));
  std::memcpy(bytes.data(), &value, sizeof(T));
  group.Broadcast(0, &bytes, std::move(what));
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace convene::comm
