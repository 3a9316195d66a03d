// What a person means by a line of a conversation: a text for the model or a command, as /help
// lists them. Does nothing about it.
#pragma once

#include <string>
#include <string_view>

namespace convene::cli {

struct ChatInput {
  enum class Kind { kText, kNothing, kHelp, kReset, kSystem, kRegenerate, kSave, kQuit, kRefused };
  Kind kind = Kind::kNothing;
  // The text for the model; the words behind the command; or why it is refused.
  std::string text = {};
};

// A line that begins with "/" is a command, and with "//" a text that begins with "/". Of a text of
// several lines only /system is one, since pasted sources begin with "/*" and "//", too.
ChatInput ParseChatInput(std::string_view line);

// The commands and keys, a line each. Keys are for a terminal.
std::string_view ChatHelp();

}  // namespace convene::cli
