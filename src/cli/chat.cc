#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/environment.h"
#include "base/message.h"
#include "cli/chat_input.h"
#include "cli/chat_session.h"
#include "cli/chat_terminal.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/sampling_options.h"
#include "engine/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace convene::cli {
namespace {

constexpr const char* kHistoryFile = "/chat_history";

// A line of a pipe or file; nothing at its end.
std::optional<std::string> ReadPipedLine() {
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

// What was typed in earlier sessions. Without it a conversation goes on all the same.
std::optional<TurnHistory> LoadHistory() {
  Result<TurnHistory> history = TurnHistory::Load(CacheDirectory() + kHistoryFile);
  if (history) return *std::move(history);
  PrintNote("what is typed is not kept for the next session: {}\n", history.error().message);
  return std::nullopt;
}

class Chat : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.add_option("--system", system_, "What the model is told before the conversation");
    AddSamplingOptions(app, sampling_, "what the context holds");
    AddContextOption(app, model_options_);
    AddModelOptions(app, model_options_);
  }

  std::string model_directory() const override { return model_options_.directory; }

  Status Run() override {
    // First what is small and may be wrong.
    if (const Status checked = CheckSampling(sampling_); !checked) return checked;
    Result<text::Tokenizer> tokenizer = text::Tokenizer::Load(model_options_.directory);
    if (!tokenizer) return tokenizer.error();
    const Result<text::ChatTemplate> chat_template =
        text::ChatTemplate::Load(model_options_.directory);
    if (!chat_template) return chat_template.error();
    // What is typed while the model loads waits for the first prompt.
    if (isatty(STDIN_FILENO) == 1) terminal_.emplace();
    Result<std::unique_ptr<engine::LoadedModel>> model = LoadModel(model_options_, ranks());
    if (!model) return model.error();
    NoteUnknownFields((*model)->generation_config());
    if (terminal_) terminal_->StandBeforeNewHandlers();
    engine::Engine engine(*std::move(model), *std::move(tokenizer), /*max_sequences=*/1);
    InterruptWatch interrupt(terminal_ ? SecondPress::kIsTheSame : SecondPress::kEndsProgram);
    ChatSession session(engine, *chat_template, sampling_, interrupt);
    if (!system_.empty()) {
      if (const Status told = session.SetSystem(system_); !told) return told;
    }
    return model_options_.watch->WriteAfter(Converse(session));
  }

 private:
  Status Converse(ChatSession& session) {
    std::optional<LineEditor> editor;
    if (terminal_) {
      editor.emplace(*terminal_, LoadHistory());
      PrintNoteText("Ctrl-C ends an answer; /help shows the commands and keys; /quit leaves.\n");
    }
    int num_refused = 0;
    while (const std::optional<std::string> line = editor ? editor->Read() : ReadPipedLine()) {
      const ChatInput input = ParseChatInput(*line);
      if (input.kind == ChatInput::Kind::kQuit) break;
      const Status done = Act(input, session);
      if (done) continue;
      // A person can change the turn or start over; without the turn a file is another one.
      const bool is_turn = input.kind == ChatInput::Kind::kText;
      if (session.output_failed() || (is_turn && !editor)) return done;
      PrintError(done.error().message);
      ++num_refused;
    }
    if (editor) return {};
    if (std::ferror(stdin) != 0) return Error{"cannot read standard input: give a file or a pipe"};
    if (num_refused == 0) return {};
    return Error{"commands in the input were refused, as said above; the turns were answered"};
  }

  Status Act(const ChatInput& input, ChatSession& session) {
    switch (input.kind) {
      case ChatInput::Kind::kText:
        return session.Say(input.text);
      case ChatInput::Kind::kRegenerate:
        return session.Regenerate();
      case ChatInput::Kind::kReset:
        session.Reset();
        return {};
      case ChatInput::Kind::kSystem:
        return TellSystem(input.text, session);
      case ChatInput::Kind::kSave:
        return session.Save(input.text);
      case ChatInput::Kind::kHelp:
        return Tell(ChatHelp());
      case ChatInput::Kind::kRefused:
        return Error{input.text};
      case ChatInput::Kind::kNothing:
      case ChatInput::Kind::kQuit:
        return {};
    }
    return {};
  }

  Status TellSystem(const std::string& text, ChatSession& session) const {
    if (!text.empty()) return session.SetSystem(text == "-" ? "" : text);
    if (session.system().empty())
      return Tell("the model is told nothing before the conversation\n");
    return Tell(session.system() + "\n");
  }

  // What a person has asked for, with --quiet as well. Of a pipe standard output has the answers
  // alone.
  Status Tell(std::string_view text) const {
    if (!terminal_) {
      PrintNoteText(text);
      return {};
    }
    return ShowOutput(text);
  }

  ModelOptions model_options_;
  SamplingFlags sampling_;
  std::string system_;
  std::optional<ChatTerminal> terminal_;
};

}  // namespace

std::unique_ptr<Command> MakeChat() { return std::make_unique<Chat>(); }

}  // namespace convene::cli
