// Renders a conversation in the form of OpenAI's chat API, which differs from what chat templates
// read: contents may be lists of parts, and the arguments of tool calls are JSON text; and what the
// template would swallow is an error. Transformers' own form is chat_template.h.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "text/chat_template.h"

namespace convene::openai {

// `messages` is an array of objects, as ChatTemplate::Render takes them, but
// - where a content is a list of text parts and the template does not read parts, it becomes their
//   texts with a line break between;
// - where the arguments of a tool call are the text of a JSON object, they become that object (no
//   text: an empty one), as transformers documents it. A template that fails on objects, because it
//   appends arguments to text, gets them as they came;
// - a content of null, or none at all, which the API has beside tool calls, becomes "" where the
//   template fails without;
// - the role developer becomes system where the template knows that alone.
// Errors: a part that is no text; a call of a tool without name; what the template does not read of
// messages (template_coverage.h; of options it is checked apart, since these are other fields); and
// those of ChatTemplate::Render.
Result<std::string> RenderMessages(const text::ChatTemplate& chat_template,
                                   const nlohmann::ordered_json& messages,
                                   const text::RenderOptions& options);

// Whether the template reads contents that are lists of parts, found by trying: it writes the text
// of a part. One that prints the list as it is, keys and all, does not read parts.
bool ReadsContentParts(const text::ChatTemplate& chat_template, const text::RenderOptions& options);

}  // namespace convene::openai
