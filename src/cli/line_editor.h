// Reads what a person types at a terminal, with editing (as in a shell, by libedit and its
// ~/.editrc), history and pastes of any length. Knows no model and no commands.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/chat_terminal.h"
#include "cli/turn_history.h"

namespace convene::cli {

class LineEditor {
 public:
  // `terminal` outlives the editor. Without a history that can be read there is one of this
  // session alone.
  LineEditor(ChatTerminal& terminal, std::optional<TurnHistory> history);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // Asks until something is entered: a line, with Alt-Enter or a paste in it several; lines whose
  // last character is a backslash and the one after them; or all between two """, of which the
  // second ends a line. What is entered becomes part of the history. Nothing on Ctrl-D in an empty
  // line, or when the terminal is gone. Ctrl-C begins anew.
  std::optional<std::string> Read();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace convene::cli
