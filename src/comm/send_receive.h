// One rank's bytes to one other: an all-to-all in which nobody else has anything to say.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/group.h"

namespace convene::comm {

// Collective. `send` of rank `from` arrives in `receive` of rank `to`, of the same size there; both
// are ignored on other ranks. from == to copies.
inline std::unique_ptr<Exchange> StartSendReceive(Group& group, int queue, int from, int to,
                                                  std::span<const std::byte> send,
                                                  std::span<std::byte> receive, std::string what) {
  std::vector<std::span<const std::byte>> sends(static_cast<size_t>(group.size()));
  std::vector<std::span<std::byte>> receives(sends.size());
  if (group.rank() == from) sends[static_cast<size_t>(to)] = send;
  if (group.rank() == to) receives[static_cast<size_t>(from)] = receive;
  return group.StartAllToAll(queue, sends, receives, std::move(what));
}

}  // namespace convene::comm
