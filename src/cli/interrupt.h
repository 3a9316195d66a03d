// Ctrl-C as a question to ask instead of the end of the program, for as long as an object lives.
// At most one of them at a time.
#pragma once

#include <csignal>

namespace convene::cli {

enum class SecondPress {
  kEndsProgram,  // if the first one was not cleared; and reads that Ctrl-C interrupts fail
  kIsTheSame,    // Ctrl-C never ends the program, and system calls go on
};

class InterruptWatch {
 public:
  explicit InterruptWatch(SecondPress second);
  ~InterruptWatch();  // Ctrl-C does again what it did before
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  // Whether Ctrl-C was pressed since the last Clear.
  bool pressed() const;
  void Clear();

 private:
  struct sigaction before_;
};

}  // namespace convene::cli
