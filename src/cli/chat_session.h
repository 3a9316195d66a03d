// A conversation with a model: its turns, the answers as they come, and what becomes of both. Does
// not read what people type (line_editor.h) nor know the commands (chat_input.h).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/interrupt.h"
#include "cli/sampling_options.h"
#include "engine/engine.h"
#include "text/chat_template.h"

namespace convene::cli {

class ChatSession {
 public:
  // All outlive the session.
  ChatSession(engine::Engine& engine, const text::ChatTemplate& chat_template,
              const SamplingFlags& sampling, InterruptWatch& interrupt);

  // What the model is told before the conversation, which goes on; empty: nothing. Error: the
  // model's template does not take it, and all is as before.
  Status SetSystem(const std::string& text);
  const std::string& system() const { return system_; }

  // Forgets the turns.
  void Reset();

  // The model's answer to `turn`, written to standard output as it comes. Ctrl-C ends the answer
  // where it is, and it stays in the conversation like that; without a word the turn is taken back.
  // Error: the conversation is as before.
  Status Say(const std::string& turn);

  // Another answer to the last turn; with --seed N the one of seed N + 1, then N + 2. Error: as
  // for Say, and if there is no turn.
  Status Regenerate();

  // Writes {"messages": [{"role", "content"}]} to the file `path`, of which "~/"
  // is the user's home. Error: nothing was said yet, the file cannot be written, or it was there
  // before this session.
  Status Save(std::string path);

  // Standard output takes no more, so that the conversation has to end.
  bool output_failed() const { return output_failed_; }

 private:
  nlohmann::ordered_json WithSystem(const std::string& system) const;
  Status Answer();
  Result<engine::Request> MakeRequest() const;
  Error ExplainFullContext(size_t num_tokens) const;
  Result<std::optional<std::string>> Generate(engine::Request request);
  Status Show(std::string_view text);

  engine::Engine& engine_;
  const text::ChatTemplate& chat_template_;
  const SamplingFlags& sampling_;
  InterruptWatch& interrupt_;
  std::string system_;
  nlohmann::ordered_json turns_ = nlohmann::ordered_json::array();  // of user and model in turn
  uint64_t num_regenerated_ = 0;                                    // of the last turn
  std::set<std::string> saved_paths_;
  bool output_failed_ = false;
};

}  // namespace convene::cli
