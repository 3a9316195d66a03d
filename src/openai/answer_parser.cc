#include "openai/answer_parser.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "openai/call_parameters.h"

namespace convene::openai {
namespace {

using Kind = AnswerEvent::Kind;

constexpr std::string_view kSpace = " \n\r\t";
constexpr const char* kFenceBegin = "\n```json\n";
constexpr const char* kFenceEnd = "\n```";

// Length of the longest end of `text` with which a marker begins.
size_t HeldBackBytes(std::string_view text, const std::vector<std::string>& markers) {
  size_t longest = 0;
  for (const std::string& marker : markers) {
    for (size_t size = std::min(marker.size() - 1, text.size()); size > longest; --size) {
      if (text.ends_with(std::string_view(marker).substr(0, size))) longest = size;
    }
  }
  return longest;
}

// How many bytes at the end of `text` begin a character that is not whole.
size_t CutBytes(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const std::string_view tail = text.substr(text.size() - back);
    if ((static_cast<unsigned char>(tail[0]) & 0xc0) == 0x80) continue;
    const Utf8Unit unit = NextUtf8(tail);
    return unit.kind == Utf8Kind::kCut && unit.length == back ? back : 0;
  }
  return 0;
}

// The word behind `before` in `text`.
std::string_view WordBehind(std::string_view text, std::string_view before) {
  const size_t at = text.find(before);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = text.substr(at + before.size());
  return rest.substr(0, rest.find_first_of(" \n\r\t<"));
}

// Kimi's names are "functions.NAME:NUMBER", others are the name itself.
std::string_view FunctionOf(std::string_view name) {
  const size_t begin = name.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  name = name.substr(begin, name.find_last_not_of(kSpace) - begin + 1);
  constexpr std::string_view kPrefix = "functions.";
  if (!name.starts_with(kPrefix)) return name;
  name.remove_prefix(kPrefix.size());
  return name.substr(0, name.find(':'));
}

}  // namespace

AnswerParser::AnswerParser(AnswerReading reading) : reading_(std::move(reading)) {
  const AnswerSyntax& syntax = reading_.syntax;
  state_ = syntax.calls == CallForm::kChannels               ? State::kHeader
           : reading_.begins_in_reasoning && syntax.thinks() ? State::kReasoning
                                                             : State::kContent;
  drops_space_ = state_ == State::kReasoning;
}

std::vector<AnswerEvent> AnswerParser::Push(std::string_view piece) {
  std::string text = std::exchange(cut_character_, {});
  text += piece;
  const size_t num_cut = CutBytes(text);
  cut_character_ = text.substr(text.size() - num_cut);
  buffer_.append(text, 0, text.size() - num_cut);
  Run();
  return std::exchange(events_, {});
}

std::vector<AnswerEvent> AnswerParser::Finish() {
  buffer_ += std::exchange(cut_character_, {});
  is_finishing_ = true;
  Run();
  FinishState();
  return std::exchange(events_, {});
}

bool AnswerParser::is_reasoning() const {
  return state_ == State::kReasoning ||
         (state_ == State::kMessage && message_kind_ == Kind::kReasoning);
}

void AnswerParser::Run() {
  while (!buffer_.empty() && Step()) {
  }
}

// Whether something was understood, so that there may be more.
bool AnswerParser::Step() {
  switch (state_) {
    case State::kContent:
      return StepContent();
    case State::kReasoning:
      return StepReasoning();
    case State::kArray:
      return StepArray();
    case State::kObject:
      return StepObject();
    case State::kAfterObject:
      return StepAfterObject();
    case State::kSection:
    case State::kName:
    case State::kFencedName:
      return StepNamed();
    case State::kArguments:
      return StepArguments();
    case State::kFunction:
      return StepFunction();
    case State::kKey:
    case State::kBeforeValue:
    case State::kValue:
    case State::kAfterValue:
      return StepParameter();
    case State::kHeader:
      return StepHeader();
    case State::kMessage:
      return StepMessage();
  }
  return false;
}

bool AnswerParser::StepContent() {
  const AnswerSyntax& syntax = reading_.syntax;
  const bool has_sections = syntax.calls == CallForm::kArray || syntax.calls == CallForm::kNamed;
  const std::string& begin = has_sections ? syntax.section_begin : syntax.call_begin;
  std::vector<std::string> markers;
  if (!begin.empty()) markers.push_back(begin);
  // Only what an answer begins with is reasoning; later the word may be spoken of.
  const bool may_think = syntax.thinks() && !has_content_;
  if (may_think) markers.push_back(syntax.think_begin);
  if (markers.empty()) {  // no space needs to be held back
    EmitTrimmed(Kind::kContent, std::exchange(buffer_, {}));
    if (!drops_space_) Emit(Kind::kContent, std::exchange(held_space_, {}));
    return false;
  }
  std::string text;
  const std::optional<size_t> found = TakeUntil(markers, &text);
  if (text.find_first_not_of(kSpace) != std::string::npos) has_content_ = true;
  if (found && markers[*found] == syntax.think_begin) {
    if (has_content_) {
      EmitTrimmed(Kind::kContent, text + syntax.think_begin);
    } else {
      held_space_.clear();
      Enter(State::kReasoning);
    }
    return true;
  }
  EmitTrimmed(Kind::kContent, text);
  if (!found) return false;
  const std::string space = std::exchange(held_space_, {});
  Enter(syntax.calls == CallForm::kNamed        ? State::kSection
        : syntax.calls == CallForm::kArray      ? State::kArray
        : syntax.calls == CallForm::kParameters ? State::kFunction
                                                : State::kObject);
  opening_ = space + begin;
  return true;
}

bool AnswerParser::StepReasoning() {
  std::string text;
  const std::optional<size_t> found = TakeUntil({reading_.syntax.think_end}, &text);
  EmitTrimmed(Kind::kReasoning, text);
  if (!found) return false;
  has_content_ = true;  // there is one reasoning
  Enter(State::kContent);
  return true;
}

bool AnswerParser::StepArray() {
  if (!SkipSpace()) return false;
  if (buffer_.front() != '[') {
    GiveUpObject();
    return true;
  }
  buffer_.erase(0, 1);
  const std::string opening = opening_ + "[";
  Enter(State::kObject);
  opening_ = opening;
  return true;
}

bool AnswerParser::StepObject() {
  for (size_t i = 0; i < buffer_.size(); ++i) {
    const CallScanner::State scanned = scanner_.Push(buffer_[i]);
    if (scanned == CallScanner::State::kFailed) {
      // What follows a call that has begun may be said: it begins behind the whole character.
      const std::string_view failed = std::string_view(buffer_).substr(i);
      buffer_.erase(0, i + (has_begun_call_ ? NextUtf8(failed).length : 1));
      GiveUpObject();
      return true;
    }
    if (!has_begun_call_ && scanner_.name()) {
      Emit(Kind::kCall, *scanner_.name());
      has_begun_call_ = true;
    }
    if (scanned == CallScanner::State::kMore) continue;
    buffer_.erase(0, i + 1);
    Emit(Kind::kArguments, scanner_.TakeArguments());
    Enter(State::kAfterObject);
    return true;
  }
  buffer_.clear();
  if (has_begun_call_) Emit(Kind::kArguments, scanner_.TakeArguments());
  return false;
}

// The JSON was none. A call that has begun ends there; otherwise all of it was said.
void AnswerParser::GiveUpObject() {
  if (has_begun_call_) {
    Emit(Kind::kArguments, scanner_.TakeArguments());
    return Enter(State::kAfterObject);
  }
  state_ = State::kContent;
  drops_space_ = false;
  EmitTrimmed(Kind::kContent, opening_ + scanner_.raw());
}

bool AnswerParser::StepAfterObject() {
  const AnswerSyntax& syntax = reading_.syntax;
  if (syntax.calls == CallForm::kObjects) {
    std::string ignored;  // between the object and the end of the call
    const std::optional<size_t> found = TakeUntil({syntax.call_end}, &ignored);
    if (found) Enter(State::kContent);
    return found.has_value();
  }
  if (!SkipSpace()) return false;
  const char byte = buffer_.front();
  if (byte == ',') {
    buffer_.erase(0, 1);
    Enter(State::kObject);
    return true;
  }
  if (byte == ']') buffer_.erase(0, 1);
  Enter(State::kContent);
  return true;
}

bool AnswerParser::StepNamed() {
  const AnswerSyntax& syntax = reading_.syntax;
  std::string text;
  if (state_ == State::kSection) {
    const std::optional<size_t> found = TakeUntil({syntax.call_begin, syntax.section_end}, &text);
    EmitTrimmed(Kind::kContent, text);
    if (found) Enter(*found == 0 ? State::kName : State::kContent);
    return found.has_value();
  }
  const bool is_fenced = state_ == State::kFencedName;
  const std::optional<size_t> found =
      TakeUntil({is_fenced ? kFenceBegin : syntax.separator, syntax.call_end}, &text);
  name_ += text;
  if (!found) return false;
  if (*found == 0 && !is_fenced && syntax.has_fences && name_ == "function") {
    Enter(State::kFencedName);
    return true;
  }
  const std::string function(FunctionOf(name_));
  if (*found == 1 || function.empty()) {  // no call; what it was is said
    EmitTrimmed(Kind::kContent, name_);
    Enter(State::kSection);
    return true;
  }
  Emit(Kind::kCall, function);
  if (syntax.has_numbers) events_.back().id = NumberedId(function);
  Enter(State::kArguments);
  return true;
}

// What name_ is, functions.NAME:NUMBER. Where the model has written no number, or one that another
// call has, it is the next one that is free.
std::string AnswerParser::NumberedId(const std::string& function) {
  const std::string beginning = "functions." + function + ":";
  const size_t at = name_.find(':');
  size_t end = at == std::string::npos ? at : name_.find_first_not_of("0123456789", at + 1);
  std::string number = at == std::string::npos ? "" : name_.substr(at + 1, end - at - 1);
  for (size_t next = num_calls_; number.empty() || ids_.contains(beginning + number); ++next) {
    number = std::to_string(next);
  }
  ++num_calls_;
  ids_.insert(beginning + number);
  return beginning + number;
}

bool AnswerParser::StepArguments() {
  const AnswerSyntax& syntax = reading_.syntax;
  std::vector<std::string> ends = {syntax.call_end};
  if (syntax.has_fences) ends.push_back(kFenceEnd + syntax.call_end);
  std::string text;
  const std::optional<size_t> found = TakeUntil(ends, &text);
  EmitTrimmed(Kind::kArguments, text);
  if (found) Enter(State::kSection);
  return found.has_value();
}

bool AnswerParser::StepFunction() {
  const AnswerSyntax& syntax = reading_.syntax;
  std::string text;
  const std::optional<size_t> found = TakeUntil({syntax.key_begin, syntax.call_end}, &text);
  name_ += text;
  if (!found) return false;
  const std::string_view function = NameBetween(name_, syntax.name_begin, syntax.name_end);
  if (function.empty()) {  // no call; what it was is said
    const std::string raw = opening_ + name_ + (*found == 0 ? syntax.key_begin : syntax.call_end);
    Enter(State::kContent);
    drops_space_ = false;
    EmitTrimmed(Kind::kContent, raw);
    return true;
  }
  function_ = function;
  has_parameters_ = false;
  Emit(Kind::kCall, function_);
  if (*found == 1) Emit(Kind::kArguments, "{}");
  Enter(*found == 0 ? State::kKey : State::kContent);
  return true;
}

bool AnswerParser::StepParameter() {
  const AnswerSyntax& syntax = reading_.syntax;
  const bool is_after = state_ == State::kAfterValue;
  std::vector<std::string> ends = {state_ == State::kKey           ? syntax.key_end
                                   : state_ == State::kBeforeValue ? syntax.value_begin
                                   : state_ == State::kValue       ? syntax.value_end
                                                                   : syntax.key_begin};
  if (is_after) ends.push_back(syntax.call_end);
  std::string text;
  const std::optional<size_t> found = TakeUntil(ends, &text);
  name_ += text;
  if (!found) return false;
  if (is_after) {
    if (*found == 1) Emit(Kind::kArguments, "}");
    Enter(*found == 1 ? State::kContent : State::kKey);
  } else if (state_ == State::kKey) {
    key_ = name_;
    Enter(syntax.value_begin.empty() ? State::kValue : State::kBeforeValue);
  } else if (state_ == State::kBeforeValue) {
    Enter(State::kValue);
  } else {
    EmitParameter();
    Enter(State::kAfterValue);
  }
  return true;
}

// name_ is its value, of which a line break at either end is the form's.
void AnswerParser::EmitParameter() {
  std::string_view value = name_;
  if (value.starts_with('\n')) value.remove_prefix(1);
  if (value.ends_with('\n')) value.remove_suffix(1);
  Emit(Kind::kArguments, has_parameters_ ? ", " : "{");
  has_parameters_ = true;
  const auto types = reading_.parameter_types.find({function_, key_});
  Emit(Kind::kArguments,
       JsonOfParameter(key_, Only(JsonType::kString)) + ": " +
           JsonOfParameter(value,
                           types == reading_.parameter_types.end() ? AnyType() : types->second));
}

bool AnswerParser::StepHeader() {
  std::string text;
  const std::optional<size_t> found = TakeUntil({"<|message|>"}, &text);
  name_ += text;
  if (!found) return false;
  BeginMessage();
  return true;
}

// By its header, such as "<|channel|>commentary to=functions.f <|constrain|>json".
void AnswerParser::BeginMessage() {
  const std::string_view channel = WordBehind(name_, "<|channel|>");
  const std::string recipient(FunctionOf(WordBehind(name_, "to=")));
  if (!recipient.empty()) {
    Emit(Kind::kCall, recipient);
    message_kind_ = Kind::kArguments;
  } else {
    message_kind_ = channel == "analysis" ? Kind::kReasoning : Kind::kContent;
  }
  Enter(State::kMessage);
  drops_space_ = false;
}

bool AnswerParser::StepMessage() {
  std::string text;
  const std::optional<size_t> found =
      TakeUntil({"<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"}, &text);
  Emit(message_kind_, text);
  if (!found) return false;
  Enter(State::kHeader);
  if (*found == 4) name_ = "<|channel|>";
  return true;
}

void AnswerParser::FinishState() {
  switch (state_) {
    case State::kContent:
    case State::kReasoning:
      // Space behind calls is no content.
      if (!drops_space_) {
        Emit(state_ == State::kContent ? Kind::kContent : Kind::kReasoning, held_space_);
      }
      break;
    case State::kArray:
    case State::kObject:
      if (!has_begun_call_) GiveUpObject();
      Emit(Kind::kContent, std::exchange(held_space_, {}));
      break;
    case State::kName:
    case State::kFencedName:
      EmitTrimmed(Kind::kContent, name_);
      break;
    case State::kFunction:
      drops_space_ = false;
      Emit(Kind::kContent, opening_ + name_);
      break;
    case State::kHeader:
      // A model that does not know channels, or one that was cut off within a header.
      if (name_.find("<|") == std::string::npos && !has_said_anything_) {
        Emit(Kind::kContent, name_);
      }
      break;
    default:
      break;
  }
}

std::optional<size_t> AnswerParser::TakeUntil(const std::vector<std::string>& markers,
                                              std::string* text) {
  size_t begin = std::string::npos;
  std::optional<size_t> found;
  for (size_t i = 0; i < markers.size(); ++i) {
    const size_t at = buffer_.find(markers[i]);
    if (at >= begin) continue;
    begin = at;
    found = i;
  }
  // An earlier one may be under way, of which the end is to come.
  const size_t held = is_finishing_ ? 0 : HeldBackBytes(buffer_, markers);
  if (!found) {
    *text = buffer_.substr(0, buffer_.size() - held);
    buffer_.erase(0, text->size());
    return std::nullopt;
  }
  *text = buffer_.substr(0, begin);
  buffer_.erase(0, begin + markers[*found].size());
  return found;
}

bool AnswerParser::SkipSpace() {
  buffer_.erase(0, std::min(buffer_.find_first_not_of(kSpace), buffer_.size()));
  return !buffer_.empty();
}

void AnswerParser::Emit(Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (kind == Kind::kContent) has_content_ = true;
  has_said_anything_ = true;
  if (!events_.empty() && events_.back().kind == kind && kind != Kind::kCall) {
    events_.back().text += text;
  } else {
    events_.push_back({kind, std::string(text)});
  }
}

// Without space at the beginning where that is dropped, and at the end as long as it may be the
// end of all.
void AnswerParser::EmitTrimmed(Kind kind, std::string_view text) {
  if (drops_space_) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    if (text.empty()) return;
    drops_space_ = false;
  }
  std::string all = std::exchange(held_space_, {});
  all += text;
  const size_t end = all.find_last_not_of(kSpace) + 1;  // npos + 1: all is space
  held_space_ = all.substr(end);
  Emit(kind, std::string_view(all).substr(0, end));
}

// Behind a marker: space around it belongs to it.
void AnswerParser::Enter(State state) {
  state_ = state;
  held_space_.clear();
  name_.clear();
  drops_space_ = true;
  opening_.clear();
  scanner_ = {};
  has_begun_call_ = false;
}

}  // namespace convene::openai
