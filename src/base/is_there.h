// Whether a file that may be missing is missing. Says nothing about whether it can be read.
#pragma once

#include <string>

namespace convene {

// False only where nothing has this name. A link that leads nowhere or in a circle is there, and so
// is what cannot be looked at: reading it says what is wrong, while taking it for absent would
// change what a program does without a word.
bool IsThere(const std::string& path);

}  // namespace convene
