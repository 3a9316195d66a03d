#include "openai/response_stream.h"

#include <fmt/format.h>

#include <utility>

namespace convene::openai {
namespace {

using nlohmann::ordered_json;
using Kind = AnswerEvent::Kind;

ordered_json TextPart(const std::string& text) {
  return {{"type", "output_text"},
          {"annotations", ordered_json::array()},
          {"logprobs", ordered_json::array()},
          {"text", text}};
}

ordered_json ReasoningPart(const std::string& text) {
  return {{"type", "reasoning_text"}, {"text", text}};
}

}  // namespace

ResponseStream::ResponseStream(AnswerHead head, ordered_json repeated, Sink sink)
    : head_(std::move(head)), repeated_(std::move(repeated)), sink_(std::move(sink)) {}

void ResponseStream::Emit(const char* type, ordered_json event) {
  ordered_json whole = {{"type", type}, {"sequence_number", sequence_number_++}};
  whole.update(event);
  sink_(type, whole);
}

void ResponseStream::EmitOfItem(const char* type, ordered_json fields) {
  ordered_json event = {{"item_id", items_.back()["id"]}, {"output_index", items_.size() - 1}};
  event.update(fields);
  Emit(type, std::move(event));
}

ordered_json ResponseStream::Response() const {
  ordered_json response = {{"id", head_.id},
                           {"object", "response"},
                           {"created_at", head_.created},
                           {"status", status_},
                           {"background", false},
                           {"error", error_},
                           {"incomplete_details", incomplete_details_},
                           {"model", head_.model},
                           {"output", items_},
                           {"previous_response_id", nullptr},
                           {"store", false},
                           {"truncation", "disabled"},
                           {"usage", usage_}};
  response.update(repeated_);
  return response;
}

void ResponseStream::Begin() {
  Emit("response.created", {{"response", Response()}});
  Emit("response.in_progress", {{"response", Response()}});
}

void ResponseStream::OpenItem(Kind kind, const Answer& answer) {
  is_open_ = true;
  open_kind_ = kind;
  text_.clear();
  const char* prefix = kind == Kind::kReasoning ? "rs" : kind == Kind::kContent ? "msg" : "fc";
  ordered_json item = {{"id", fmt::format("{}_{}_{}", prefix, head_.id, items_.size())}};
  if (kind == Kind::kReasoning) {
    item.update(ordered_json{{"type", "reasoning"},
                             {"status", "in_progress"},
                             {"summary", ordered_json::array()},
                             {"content", ordered_json::array()}});
  } else if (kind == Kind::kContent) {
    item.update(ordered_json{{"type", "message"},
                             {"status", "in_progress"},
                             {"role", "assistant"},
                             {"content", ordered_json::array()}});
  } else {
    item.update(ordered_json{{"type", "function_call"},
                             {"status", "in_progress"},
                             {"call_id", answer.calls.back().id},
                             {"name", answer.calls.back().name},
                             {"arguments", ""}});
  }
  items_.push_back(std::move(item));
  Emit("response.output_item.added",
       {{"output_index", items_.size() - 1}, {"item", items_.back()}});
  if (kind == Kind::kCall) return;
  EmitOfItem("response.content_part.added",
             {{"content_index", 0},
              {"part", kind == Kind::kReasoning ? ReasoningPart("") : TextPart("")}});
}

void ResponseStream::CloseItem(const char* status) {
  if (!std::exchange(is_open_, false)) return;
  ordered_json& item = items_.back();
  if (open_kind_ == Kind::kCall) {
    item["arguments"] = text_;
    EmitOfItem("response.function_call_arguments.done",
               {{"name", item["name"]}, {"arguments", text_}});
  } else {
    const bool is_reasoning = open_kind_ == Kind::kReasoning;
    const ordered_json part = is_reasoning ? ReasoningPart(text_) : TextPart(text_);
    item["content"].push_back(part);
    ordered_json done = {{"content_index", 0}, {"text", text_}};
    if (!is_reasoning) done["logprobs"] = ordered_json::array();
    EmitOfItem(is_reasoning ? "response.reasoning_text.done" : "response.output_text.done",
               std::move(done));
    EmitOfItem("response.content_part.done", {{"content_index", 0}, {"part", part}});
  }
  item["status"] = status;
  Emit("response.output_item.done", {{"output_index", items_.size() - 1}, {"item", item}});
}

void ResponseStream::Take(const AnswerEvent& event, const Answer& answer) {
  const Kind kind = event.kind == Kind::kArguments ? Kind::kCall : event.kind;
  if (event.kind == Kind::kCall || !is_open_ || kind != open_kind_) {
    CloseItem("completed");
    OpenItem(kind, answer);
  }
  if (event.kind == Kind::kCall) return;
  text_ += event.text;
  if (kind == Kind::kCall) {
    return EmitOfItem("response.function_call_arguments.delta", {{"delta", event.text}});
  }
  ordered_json delta = {{"content_index", 0}, {"delta", event.text}};
  if (kind == Kind::kContent) delta["logprobs"] = ordered_json::array();
  EmitOfItem(
      kind == Kind::kReasoning ? "response.reasoning_text.delta" : "response.output_text.delta",
      std::move(delta));
}

void ResponseStream::Finish(const Answer& answer) {
  const bool is_cut = answer.finish == engine::FinishReason::kLength;
  CloseItem(is_cut ? "incomplete" : "completed");
  status_ = is_cut ? "incomplete" : "completed";
  if (is_cut) incomplete_details_ = {{"reason", "max_output_tokens"}};
  usage_ = {{"input_tokens", answer.num_prompt_tokens},
            {"input_tokens_details", {{"cached_tokens", answer.num_cached_tokens}}},
            {"output_tokens", answer.tokens.size()},
            {"output_tokens_details", {{"reasoning_tokens", answer.num_reasoning_tokens}}},
            {"total_tokens", answer.num_prompt_tokens + answer.tokens.size()}};
  Emit(is_cut ? "response.incomplete" : "response.completed", {{"response", Response()}});
}

void ResponseStream::Fail(const ApiError& error) {
  if (sequence_number_ == 0) Begin();
  CloseItem("incomplete");
  status_ = "failed";
  // It has no type beside the code.
  error_ = {{"code", error.code.value_or(error.type)}, {"message", error.message}};
  Emit("response.failed", {{"response", Response()}});
}

}  // namespace convene::openai
