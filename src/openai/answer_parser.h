// Takes the text of an answer apart, piece by piece as it is generated: what the model thinks, what
// it says, and which tools it calls with which arguments. However the text is cut into pieces, the
// events put together are the same. It knows no JSON of answers (answer.h).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "openai/answer_syntax.h"
#include "openai/call_scanner.h"

namespace convene::openai {

struct AnswerEvent {
  enum class Kind : uint8_t {
    kReasoning,
    kContent,
    kCall,       // a call begins; the text is the name of its function
    kArguments,  // of the last call: a piece of JSON text, as the model wrote it
  };
  Kind kind = Kind::kContent;
  std::string text;
  std::string id = {};  // of kCall, where the model's form has ids; each comes once
};

class AnswerParser {
 public:
  explicit AnswerParser(AnswerReading reading);

  // What `piece` makes certain. Beginnings of markers and of characters are held back until it is
  // known what they are. Of what looks like a call and is none, the text is content.
  std::vector<AnswerEvent> Push(std::string_view piece);
  // The rest, when the answer has ended. Nothing may be pushed afterwards.
  std::vector<AnswerEvent> Finish();

  bool is_reasoning() const;

 private:
  enum class State : uint8_t {
    kContent,
    kReasoning,
    kArray,        // before the bracket of an array of calls
    kObject,       // the JSON of a call
    kAfterObject,  // what ends it, or the next one of an array
    kSection,      // between calls with names
    kName,         // before the separator
    kFencedName,   // behind a separator, before the fence
    kArguments,    // behind a separator or fence
    kFunction,     // a name, before the first key
    kKey,
    kBeforeValue,
    kValue,
    kAfterValue,  // before the next key, or the end
    kHeader,      // of a message in a channel
    kMessage,     // its text
  };

  void Run();
  bool Step();
  bool StepContent();
  bool StepReasoning();
  bool StepArray();
  bool StepObject();
  bool StepAfterObject();
  bool StepNamed();
  bool StepArguments();
  bool StepFunction();
  bool StepParameter();
  void EmitParameter();
  bool StepHeader();
  bool StepMessage();
  void BeginMessage();
  void GiveUpObject();
  std::string NumberedId(const std::string& function);
  void FinishState();

  // The text before the first of `markers`, and which one it is; without one in sight as much as
  // cannot be the beginning of one.
  std::optional<size_t> TakeUntil(const std::vector<std::string>& markers, std::string* text);
  bool SkipSpace();
  void Emit(AnswerEvent::Kind kind, std::string_view text);
  void EmitTrimmed(AnswerEvent::Kind kind, std::string_view text);
  void Enter(State state);

  AnswerReading reading_;
  State state_;
  std::string cut_character_;  // the beginning of a character, of which the rest is to come
  std::string buffer_;         // not yet understood
  std::string held_space_;     // at the end of what was said; dropped before a marker
  std::string name_;           // of a call or of a channel's header, so far
  std::string function_;       // of kParameters, with the key of the value that is read
  std::string key_;
  bool has_parameters_ = false;
  CallScanner scanner_;
  bool has_begun_call_ = false;  // kCall was emitted for the one that is read
  std::string opening_;          // before the JSON of a call, should it be none
  bool has_said_anything_ = false;
  bool has_content_ = false;  // reasoning comes before
  bool drops_space_ = false;  // at the beginning of what follows
  bool is_finishing_ = false;
  AnswerEvent::Kind message_kind_ = AnswerEvent::Kind::kContent;  // of kMessage
  size_t num_calls_ = 0;
  std::set<std::string> ids_;  // of calls
  std::vector<AnswerEvent> events_;
};

}  // namespace convene::openai
