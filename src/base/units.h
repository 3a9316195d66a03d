// Bytes and rates as people read them. Not for parsing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace convene {

// "512 B", "1.5 KiB", "13.8 GiB": powers of 1,024, three significant digits.
std::string FormatBytes(uint64_t size_bytes);

// "6,919,161,856": thousands separated by commas.
std::string FormatCount(uint64_t count);

// "1 thread", "0 threads", "2,048 threads": FormatCount and the noun, whose plural ends in s.
std::string FormatCount(uint64_t count, std::string_view noun);

}  // namespace convene
