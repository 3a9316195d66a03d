// Any bytes as the answer of a model that comes in pieces: what it thinks, says and calls is the
// same however it is cut, and every call has a name.
//
// The first byte of an input says how the model writes calls and whether the prompt has begun to
// think, the second how long the pieces are; the rest is the answer.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "openai/answer_parser.h"

namespace {

using convene::openai::AnswerEvent;
using convene::openai::AnswerParser;
using convene::openai::AnswerReading;
using convene::openai::AnswerSyntax;
using convene::openai::CallForm;

const AnswerSyntax kSyntaxes[] = {
    {},
    {.calls = CallForm::kObjects,
     .call_begin = "<tool_call>",
     .call_end = "</tool_call>",
     .think_begin = "<think>",
     .think_end = "</think>"},
    {.calls = CallForm::kArray, .section_begin = "[TOOL_CALLS]"},
    {.calls = CallForm::kNamed,
     .section_begin = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .call_begin = "<｜tool▁call▁begin｜>",
     .separator = "<｜tool▁sep｜>",
     .call_end = "<｜tool▁call▁end｜>",
     .has_fences = true,
     .think_begin = "<think>",
     .think_end = "</think>"},
    {.calls = CallForm::kChannels},
    {.calls = CallForm::kParameters,
     .call_begin = "<tool_call>",
     .call_end = "</tool_call>",
     .name_begin = "<function=",
     .name_end = ">",
     .key_begin = "<parameter=",
     .key_end = ">",
     .value_end = "</parameter>"},
    {.calls = CallForm::kParameters,
     .call_begin = "<tool_call>",
     .call_end = "</tool_call>",
     .key_begin = "<arg_key>",
     .key_end = "</arg_key>",
     .value_begin = "<arg_value>",
     .value_end = "</arg_value>"},
    {.calls = CallForm::kNamed,
     .section_begin = "<|tool_calls_section_begin|>",
     .section_end = "<|tool_calls_section_end|>",
     .call_begin = "<|tool_call_begin|>",
     .separator = "<|tool_call_argument_begin|>",
     .call_end = "<|tool_call_end|>",
     .has_numbers = true},
};

void Add(const std::vector<AnswerEvent>& events, bool is_utf8, std::vector<AnswerEvent>* merged) {
  for (const AnswerEvent& event : events) {
    CHECK(!event.text.empty(), "an event that says nothing");
    CHECK(!is_utf8 || convene::ValidUtf8Prefix(event.text) == event.text.size(),
          "a character was cut: {}", event.text);
    const bool goes_on = !merged->empty() && merged->back().kind == event.kind &&
                         event.kind != AnswerEvent::Kind::kCall;
    if (goes_on) {
      merged->back().text += event.text;
    } else {
      CHECK(event.kind != AnswerEvent::Kind::kArguments ||
                (!merged->empty() && merged->back().kind == AnswerEvent::Kind::kCall),
            "arguments without a call");
      merged->push_back(event);
    }
  }
}

std::vector<AnswerEvent> Read(const AnswerReading& reading, std::string_view answer,
                              size_t piece_bytes) {
  const bool is_utf8 = convene::ValidUtf8Prefix(answer) == answer.size();
  AnswerParser parser(reading);
  std::vector<AnswerEvent> events;
  for (size_t at = 0; at < answer.size(); at += piece_bytes) {
    Add(parser.Push(answer.substr(at, piece_bytes)), is_utf8, &events);
  }
  Add(parser.Finish(), is_utf8, &events);
  return events;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const AnswerReading reading = {.syntax = kSyntaxes[data[0] % std::size(kSyntaxes)],
                                 .begins_in_reasoning = data[0] >= 128};
  constexpr size_t kMostBytes = 2000;
  const auto answer =
      std::string_view(reinterpret_cast<const char*>(data), size).substr(2, kMostBytes);
  const std::vector<AnswerEvent> whole = Read(reading, answer, answer.size() + 1);
  for (const size_t piece_bytes : {size_t{1}, size_t{1} + data[1] % 16}) {
    const std::vector<AnswerEvent> cut = Read(reading, answer, piece_bytes);
    CHECK(cut.size() == whole.size(), "{} parts instead of {}", cut.size(), whole.size());
    for (size_t i = 0; i < cut.size(); ++i) {
      CHECK(
          cut[i].kind == whole[i].kind && cut[i].text == whole[i].text && cut[i].id == whole[i].id,
          "{} {} instead of {} {}", cut[i].text, cut[i].id, whole[i].text, whole[i].id);
    }
  }
  return 0;
}
