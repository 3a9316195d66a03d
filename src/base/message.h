// Messages to people, on standard error: errors, notes and progress. Not results, which go to
// standard output (cli/output.h).
//
// A message that cannot be written, because standard error is closed or its disk is full, is
// dropped: it is no reason to end the work.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <string_view>
#include <utility>

namespace convene {

// "convene: MESSAGE" as one line. Line breaks become spaces, control characters '?', since outside
// text in a message must not reach a terminal as commands.
void PrintError(std::string_view message);

// Information that nobody has to read; control characters but line breaks become '?'. Prints
// nothing after SilenceNotes.
void PrintNoteText(std::string_view text);

// PrintNoteText of a formatted text, which ends with its line break.
template <typename... Args>
void PrintNote(fmt::format_string<Args...> format, Args&&... args) {
  PrintNoteText(fmt::format(format, std::forward<Args>(args)...));
}

// From now on notes and progress are not printed (--quiet); errors still are. Before other threads
// print.
void SilenceNotes();

// A line of progress: at a terminal it is written over by the next one and vanishes at the end, in
// a log file it is a line now and then. One thread at a time.
class ProgressLine {
 public:
  using Clock = std::chrono::steady_clock;

  // `log_interval`: between lines where standard error is no terminal.
  explicit ProgressLine(Clock::duration log_interval);
  ~ProgressLine() { Close(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Whether enough time has passed since the line before (or the beginning) to show another one.
  bool IsDue() const { return Clock::now() - last_shown_ >= interval_; }

  // Shows `line`, which has no line break.
  void Show(std::string_view line);

  // Removes the line from the terminal, so that other messages can follow.
  void Close();

 private:
  bool is_terminal_;
  bool is_open_ = false;
  Clock::duration interval_;
  Clock::time_point last_shown_ = Clock::now();
};

}  // namespace convene
