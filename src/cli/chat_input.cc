#include "cli/chat_input.h"

#include <fmt/format.h>

#include <vector>

#include "base/closest_name.h"
#include "base/quote.h"

namespace convene::cli {
namespace {

using Kind = ChatInput::Kind;

constexpr std::string_view kSpaces = " \t\n";

enum class Words { kNone, kMayFollow, kMustFollow };

struct ChatCommand {
  std::string_view name;
  Kind kind;
  Words words;
};

constexpr ChatCommand kChatCommands[] = {
    {"/help", Kind::kHelp, Words::kNone},          {"/reset", Kind::kReset, Words::kNone},
    {"/system", Kind::kSystem, Words::kMayFollow}, {"/regen", Kind::kRegenerate, Words::kNone},
    {"/save", Kind::kSave, Words::kMustFollow},    {"/quit", Kind::kQuit, Words::kNone},
    {"/exit", Kind::kQuit, Words::kNone},
};

constexpr std::string_view kHelp =
    "/reset        forgets the conversation\n"
    "/regen        answers the last turn again, otherwise if the model is sampled\n"
    "/system TEXT  what the model is told before the conversation (- removes it)\n"
    "/save FILE    writes the conversation as JSON\n"
    "/quit         leaves, as Ctrl-D does; /help says this\n"
    "//TEXT        is the text /TEXT, not a command\n"
    "Ctrl-C ends an answer or clears what was typed. Up finds what was typed before, Ctrl-R "
    "searches it.\n"
    "Alt-Enter or a backslash at the end of the line goes on in a new line; \"\"\" begins and ends "
    "a text of\nmany lines; a pasted text is one turn and can be changed before Enter sends it.\n";

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

ChatInput Refused(std::string message) { return {Kind::kRefused, std::move(message)}; }

ChatInput RefuseUnknown(std::string_view name) {
  std::vector<std::string> names;
  for (const ChatCommand& command : kChatCommands) names.emplace_back(command.name);
  return Refused(fmt::format(
      "there is no command {}{} (/help lists them; a text that begins with / is sent as //...)",
      Quote(name), DidYouMean(name, names)));
}

}  // namespace

ChatInput ParseChatInput(std::string_view line) {
  if (Trim(line).empty()) return {};
  const std::string text(line);
  if (!line.starts_with('/')) return {Kind::kText, text};
  const std::string_view name = line.substr(0, line.find_first_of(kSpaces));
  const std::string_view words = Trim(line.substr(name.size()));
  const bool is_one_line = Trim(line).find('\n') == std::string_view::npos;
  if (!is_one_line && name != "/system") return {Kind::kText, text};
  if (line.starts_with("//")) return {Kind::kText, text.substr(1)};
  for (const ChatCommand& command : kChatCommands) {
    if (command.name != name) continue;
    if (command.words == Words::kNone && !words.empty()) {
      return Refused(
          fmt::format("{} stands alone; {} behind it is not understood", name, Quote(words)));
    }
    if (command.words == Words::kMustFollow && words.empty()) {
      return Refused(fmt::format("{} needs the name of a file, as in {} talk.json", name, name));
    }
    return {command.kind, std::string(words)};
  }
  return RefuseUnknown(name);
}

std::string_view ChatHelp() { return kHelp; }

}  // namespace convene::cli
