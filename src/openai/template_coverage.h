// Whether a chat template reads all that a conversation says, found by trying: what it would leave
// out without a word is an error.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "openai/body_fields.h"
#include "text/chat_template.h"

namespace convene::openai {

// A role of OpenAI's API that many templates do not know becomes the one that they have for it:
// "developer" is "system" where the template fails on the former's messages, or leaves them out.
// `render`: what the template makes of messages.
using RenderConversation = std::function<Result<std::string>(nlohmann::ordered_json messages)>;
void AdoptRoles(const RenderConversation& render, nlohmann::ordered_json* messages);

// `text`: what the template makes of `messages`, an array of objects whose tool_calls are arrays of
// objects with function.name. Errors:
// - a field of a message that changes nothing of the text, whatever its value, except for what
//   answers that are sent back have beside their text (annotations, reasoning and the like);
// - a call of a tool whose name is not in the text; a message of another role than assistant whose
//   content is not. One of the system or the user may be missing if it is there where the user's
//   turn behind it is the last one: templates may join the system's words to the last turn alone.
Status CheckAllIsRead(const text::ChatTemplate& chat_template,
                      const nlohmann::ordered_json& messages, const text::RenderOptions& options,
                      const std::string& text);

// Tools and variables of `options` that the template does not read anywhere are errors, too.
FieldStatus CheckOptionsAreRead(const text::ChatTemplate& chat_template,
                                const text::RenderOptions& options);

}  // namespace convene::openai
