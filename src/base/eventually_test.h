// Waiting in tests for what another thread or process does: with an end, so that a fault fails a
// test and does not hang it. No times are measured here.
#pragma once

#include <chrono>
#include <thread>

namespace convene {

// Whether `holds()` became true: asked every few milliseconds, for a minute, which a busy machine
// needs now and then.
template <typename Holds>
bool Eventually(Holds holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace convene
