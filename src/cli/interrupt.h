// Ctrl-C as a question to ask instead of the end of the program, for as long as an object lives.
// At most one of them at a time.
#pragma once

#include <csignal>

namespace convene::cli {

class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();  // Ctrl-C does again what it did before
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  // Whether Ctrl-C was pressed since the last Clear. Pressed once more before it is cleared, it
  // ends the program. Reads from a terminal that it interrupts fail.
  bool pressed() const;
  void Clear();

 private:
  struct sigaction before_;
};

}  // namespace convene::cli
