// The terminal of a conversation, for as long as an object lives: what is typed while the model
// loads or speaks is not shown and waits for the next prompt, however long it is, and pasted text
// comes marked as such (bracketed paste). Reads nothing; the line editor does (line_editor.h).
//
// The terminal is as before on every way out: the destructor, signals that end or stop the program,
// an abort. At most one object at a time.
#pragma once

namespace convene::cli {

class ChatTerminal {
 public:
  // Of standard input, which is a terminal.
  ChatTerminal();
  ~ChatTerminal();
  ChatTerminal(const ChatTerminal&) = delete;
  ChatTerminal& operator=(const ChatTerminal&) = delete;

  // Where to write what the person shall see: standard error or standard output if it is a
  // terminal, else the one of standard input.
  int descriptor() const { return descriptor_; }

  // After others have installed handlers for signals that end the program: the terminal is given
  // back before those are called.
  void StandBeforeNewHandlers();

  // Stops the program as Ctrl-Z does, and its pipeline with it; returns when it goes on.
  void Stop();

  // Whether the program was stopped and went on, or the window has changed, since the last call.
  bool TakeContinued();
  bool TakeResized();

 private:
  int descriptor_;
};

// For who ends the program past all destructors: makes the terminal what it was before a
// ChatTerminal that there may be. Safe anywhere, also in a signal handler.
void GiveBackTerminal();

}  // namespace convene::cli
