// An answer in the form of /v1/responses: a response with items (reasoning, messages, calls of
// functions), whole or as the events by which it grows. Requests are read in responses_body.h.
// Events: https://platform.openai.com/docs/api-reference/responses-streaming
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "openai/answer.h"
#include "openai/api_error.h"

namespace convene::openai {

class ResponseStream {
 public:
  // Gets each event as it happens; its type is in it, too.
  using Sink = std::function<void(const std::string& type, const nlohmann::ordered_json& event)>;

  // `repeated`: GenerationBody::repeated.
  ResponseStream(AnswerHead head, nlohmann::ordered_json repeated, Sink sink);

  // Before anything else.
  void Begin();
  // A part of the answer; `answer` has it already.
  void Take(const AnswerEvent& event, const Answer& answer);
  // The answer is there; then the last event.
  void Finish(const Answer& answer);
  // It will not come. Begins where that was not done, since a stream begins with its response.
  void Fail(const ApiError& error);

  // As it is now.
  nlohmann::ordered_json Response() const;

 private:
  // The item that grows, of which there is at most one, is the last of items_.
  void OpenItem(AnswerEvent::Kind kind, const Answer& answer);
  void CloseItem(const char* status);
  void Emit(const char* type, nlohmann::ordered_json event);
  void EmitOfItem(const char* type, nlohmann::ordered_json fields);

  AnswerHead head_;
  nlohmann::ordered_json repeated_;
  Sink sink_;
  int sequence_number_ = 0;
  std::string status_ = "in_progress";
  nlohmann::ordered_json error_ = nullptr;
  nlohmann::ordered_json incomplete_details_ = nullptr;
  nlohmann::ordered_json usage_ = nullptr;
  nlohmann::ordered_json items_ = nlohmann::ordered_json::array();
  AnswerEvent::Kind open_kind_ = AnswerEvent::Kind::kContent;
  bool is_open_ = false;
  std::string text_;  // of the open item
};

}  // namespace convene::openai
