#include "openai/tool_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/quote.h"

namespace convene::openai {
namespace {

using nlohmann::ordered_json;

// The name of a tool; nothing where it has none.
const std::string* NameOfTool(const ordered_json& tool) {
  if (tool.value("type", ordered_json()) != "function") return nullptr;
  const auto function = tool.find("function");
  if (function == tool.end() || !function->is_object()) return nullptr;
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string()) return nullptr;
  const auto* text = name->get_ptr<const std::string*>();
  return text->empty() ? nullptr : text;
}

// What is wrong with the function of a tool that has a name; empty: nothing.
std::string WrongInFunction(const ordered_json& function) {
  const ordered_json strict = function.value("strict", ordered_json());
  if (!strict.is_null() && !strict.is_boolean()) return "strict must be true or false";
  const ordered_json parameters = function.value("parameters", ordered_json());
  if (parameters.is_null()) return "";
  if (!parameters.is_object()) return "parameters must be a schema, an object";
  const ordered_json type = parameters.value("type", ordered_json("object"));
  if (type == "object") return "";
  return fmt::format("parameters must have the type \"object\", not {}", type.dump());
}

// A field of `object` that is not among those; nothing: there is none.
std::optional<std::string> OtherField(const ordered_json& object,
                                      std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::find(known, name) == known.end()) return name;
  }
  return std::nullopt;
}

}  // namespace

void ReadTools(FieldReader& body, ordered_json* parsed) {
  const ordered_json* tools = body.Find("tools");
  if (tools == nullptr) return;
  if (!tools->is_array()) return body.Fail("tools", "must be an array");
  for (const ordered_json& tool : *tools) {
    if (!tool.is_object()) return body.Fail("tools", "must be an array of objects");
    if (NameOfTool(tool) == nullptr) {
      return body.Fail("tools",
                       "must have objects alone such as {\"type\": \"function\", \"function\": "
                       "{\"name\": \"f\", \"parameters\": {...}}}");
    }
    const std::string wrong = WrongInFunction(tool["function"]);
    if (wrong.empty()) continue;
    return body.Fail("tools",
                     fmt::format("has the function {}, whose {}", Quote(*NameOfTool(tool)), wrong));
  }
  if (!tools->empty()) *parsed = *tools;
}

void ReadToolChoice(FieldReader& body, BodyOrigin origin, GenerationBody* parsed) {
  parsed->parallel_calls = body.Bool("parallel_tool_calls").value_or(true);
  const ordered_json* choice = body.Find("tool_choice");
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {  // what the model does not know it does not call
    parsed->tool_choice = ToolChoice::kNone;
    parsed->tools = nullptr;
    return;
  }
  if (origin == BodyOrigin::kBatchLine) {
    return body.Fail("tool_choice", "must be absent, auto or none: a server can enforce calls");
  }
  const std::string* name = choice->is_object() ? NameOfTool(*choice) : nullptr;
  if (*choice != "required" && name == nullptr) {
    return body.Fail("tool_choice",
                     "must be auto, none, required, or an object such as {\"type\": "
                     "\"function\", \"function\": {\"name\": \"f\"}}");
  }
  if (name != nullptr) {
    auto other = OtherField(*choice, {"type", "function"});
    if (!other) other = OtherField((*choice)["function"], {"name"});
    if (other) {
      return body.Fail("tool_choice",
                       fmt::format("has the field {}, which is not known", Quote(*other)));
    }
  }
  parsed->tool_choice = name != nullptr ? ToolChoice::kNamed : ToolChoice::kRequired;
  if (parsed->tools.empty()) return body.Fail("tool_choice", "needs tools that can be called");
  if (name == nullptr) return;
  parsed->named_tool = *name;
  for (const ordered_json& tool : parsed->tools) {
    if (*NameOfTool(tool) == *name) return;
  }
  body.Fail("tool_choice", fmt::format("names {}, which is not among tools", Quote(*name)));
}

}  // namespace convene::openai
