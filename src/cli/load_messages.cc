#include "cli/load_messages.h"

#include <fmt/format.h>

#include "base/units.h"

namespace convene::cli {
namespace {

constexpr auto kLoadLogInterval = std::chrono::seconds(10);

}  // namespace

LoadMessages::LoadMessages() : line_(kLoadLogInterval) {}

engine::LoadObserver LoadMessages::observer() {
  return {
      .planned =
          [](const engine::ChosenFormats& chosen) {
            if (!chosen.reason.empty()) PrintNote("formats: {}\n", chosen.reason);
            PrintNote("memory: {}\n", chosen.memory.Describe());
          },
      .progress = [this](uint64_t done_bytes,
                         uint64_t total_bytes) { ShowProgress(done_bytes, total_bytes); },
      .packing = [this](uint64_t done_bytes,
                        uint64_t total_bytes) { Show("packing", done_bytes, total_bytes); },
      .decided =
          [this](const std::string& line) {
            line_.Close();
            PrintNote("{}\n", line);
          },
      .placed =
          [this](const std::string& line) {
            line_.Close();
            PrintNote("{}{}\n", line.starts_with("paged: ") ? "" : "loaded: ", line);
            loaded_bytes_ = 0;  // said
          },
      .disk_is_slow = [](const std::string& line) { PrintNote("note: {}\n", line); },
  };
}

void LoadMessages::ShowProgress(uint64_t done_bytes, uint64_t total_bytes) {
  if (done_bytes == total_bytes) loaded_bytes_ = total_bytes;
  Show("loading", done_bytes, total_bytes);
}

void LoadMessages::Show(const char* what, uint64_t done_bytes, uint64_t total_bytes) {
  if (total_bytes == 0 || !line_.IsDue()) return;
  line_.Show(fmt::format("{}: {:3.0f} % of {}", what,
                         100.0 * static_cast<double>(done_bytes) / static_cast<double>(total_bytes),
                         FormatBytes(total_bytes)));
}

void LoadMessages::Finish() {
  line_.Close();
  if (loaded_bytes_ == 0) return;
  const double elapsed_s = std::chrono::duration<double>(Clock::now() - start_).count();
  PrintNote("loaded: {} of weights in {:.1f} s\n", FormatBytes(loaded_bytes_), elapsed_s);
}

}  // namespace convene::cli
