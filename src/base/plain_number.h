// Numbers as people write them: rounded, and never as powers of ten. Not an encoding to read back.
#pragma once

#include <string>

namespace convene {

// "20,750", "1,234,000", "12.5", "0.0004": `digits` that say something, without zeros behind a
// point. What is infinite or no number is "inf" or "nan".
std::string PlainNumber(double value, int digits = 4);

}  // namespace convene
