// A template rendered by itself, for tests.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "jinja/interpreter.h"
#include "jinja/json_text.h"
#include "jinja/parser.h"
#include "jinja/run.h"
#include "jinja/scopes.h"

namespace convene::jinja {

// The text, or the error with its line after "error: ". The template may read `messages`.
inline std::string RenderOrError(std::string_view source, const Limits& limits = {}) {
  Result<Template> parsed = ParseTemplate(source);
  if (!parsed) return "error: " + parsed.error().message;
  if (const Status placed = PlaceVariables(*parsed); !placed) {
    return "error: " + placed.error().message;
  }
  Run run(limits, std::chrono::system_clock::time_point());
  const nlohmann::ordered_json message = {{"role", "user"}, {"content", "x"}};
  const Value context = FromJson(run, {{"messages", nlohmann::ordered_json::array({message})}});
  const std::string text = Interpreter(*parsed, context.AsDict(), run).Render();
  return run.failed() ? fmt::format("error: line {}: {}", run.line(), run.error()) : text;
}

}  // namespace convene::jinja
