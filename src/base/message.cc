#include "base/message.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>

#include "base/quote.h"

namespace convene {
namespace {

constexpr auto kTerminalInterval = std::chrono::milliseconds(100);
constexpr std::string_view kEraseLine = "\r\x1b[K";

std::atomic<bool> notes_are_silent = false;

// Written whole, so that lines of several threads or ranks do not mix.
void Write(std::string_view text) {
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
  static_cast<void>(std::fflush(stderr));
}

}  // namespace

void PrintError(std::string_view message) {
  std::string line(message);
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  Write("convene: " + Printable(line) + "\n");
}

void PrintNoteText(std::string_view text) {
  if (!notes_are_silent) Write(Printable(text, "\n\t"));
}

void SilenceNotes() { notes_are_silent = true; }

ProgressLine::ProgressLine(Clock::duration log_interval)
    : is_terminal_(isatty(STDERR_FILENO) == 1),
      interval_(is_terminal_ ? Clock::duration(kTerminalInterval) : log_interval) {}

void ProgressLine::Show(std::string_view line) {
  last_shown_ = Clock::now();
  if (notes_are_silent) return;
  is_open_ = is_terminal_;
  Write(is_terminal_ ? std::string(kEraseLine) + Printable(line) : Printable(line) + "\n");
}

void ProgressLine::Close() {
  if (is_open_) Write(kEraseLine);
  is_open_ = false;
}

}  // namespace convene
