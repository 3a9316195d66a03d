// Bytes and rates as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace convene {

// "512 B", "1.5 KiB", "13.8 GiB": powers of 1,024, three significant digits.
std::string FormatBytes(uint64_t size_bytes);

// The bytes that "6GiB", "2.94 GB" or "512 MiB" means: KiB, MiB, GiB and TiB are powers of 1,024,
// kB (KB), MB, GB and TB of 1,000, B is a byte; capitals do not matter. Error: it means none, less
// than a byte, or more than 64 bits hold.
Result<uint64_t> ParseBytes(std::string_view text);

// "6,919,161,856": thousands separated by commas.
std::string FormatCount(uint64_t count);

// "1 thread", "0 threads", "2,048 threads": FormatCount and the noun, whose plural ends in s.
std::string FormatCount(uint64_t count, std::string_view noun);

// "12.3 %", of a share of one.
std::string FormatPercent(double share);

}  // namespace convene
