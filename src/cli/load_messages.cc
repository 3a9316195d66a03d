#include "cli/load_messages.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "base/units.h"

namespace convene::cli {
namespace {

constexpr auto kTerminalInterval = std::chrono::milliseconds(100);
constexpr auto kLogInterval = std::chrono::seconds(10);

}  // namespace

LoadMessages::LoadMessages()
    : is_terminal_(isatty(STDERR_FILENO) == 1), start_(Clock::now()), last_shown_(start_) {}

engine::LoadObserver LoadMessages::observer() {
  return {
      .planned =
          [](const engine::ChosenFormats& chosen) {
            if (!chosen.reason.empty()) fmt::print(stderr, "formats: {}\n", chosen.reason);
            fmt::print(stderr, "memory: {}\n", chosen.memory.Describe());
          },
      .progress = [this](uint64_t done_bytes,
                         uint64_t total_bytes) { ShowProgress(done_bytes, total_bytes); },
      .decided =
          [this](const std::string& line) {
            if (line_is_open_) fmt::print(stderr, "\r\x1b[K");
            line_is_open_ = false;
            fmt::print(stderr, "{}\n", line);
          },
  };
}

void LoadMessages::ShowProgress(uint64_t done_bytes, uint64_t total_bytes) {
  const Clock::time_point now = Clock::now();
  if (done_bytes == total_bytes) loaded_bytes_ = total_bytes;
  const bool is_due =
      is_terminal_ ? now - last_shown_ >= kTerminalInterval : now - last_shown_ >= kLogInterval;
  if (!is_due || total_bytes == 0) return;
  last_shown_ = now;
  fmt::print(stderr, "{}loading: {:3.0f} % of {}{}", is_terminal_ ? "\r" : "",
             100.0 * static_cast<double>(done_bytes) / static_cast<double>(total_bytes),
             FormatBytes(total_bytes), is_terminal_ ? "" : "\n");
  line_is_open_ = is_terminal_;
}

void LoadMessages::Finish() {
  if (line_is_open_) fmt::print(stderr, "\r\x1b[K");
  line_is_open_ = false;
  if (loaded_bytes_ == 0) return;
  const double elapsed_s = std::chrono::duration<double>(Clock::now() - start_).count();
  fmt::print(stderr, "loaded: {} of weights in {:.1f} s\n", FormatBytes(loaded_bytes_), elapsed_s);
}

}  // namespace convene::cli
