// Which of the names that exist a mistyped one was meant to be. Knows nothing of options and
// commands.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace convene {

// The name that `given` was probably meant to be: it differs in few letters, or only one name
// contains `given`. Empty if there is none.
std::string ClosestName(std::string_view given, std::span<const std::string> names);

// "; did you mean NAME?" to follow an error's message, or nothing if no name is close.
std::string DidYouMean(std::string_view given, std::span<const std::string> names);

}  // namespace convene
