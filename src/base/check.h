// CHECK and DCHECK: what must hold unless convene itself is wrong. Not for bad input, which is a
// Result.
#pragma once

#include <fmt/format.h>

#include <string>

namespace convene {

// Prints place, condition and message, then ends the process (and with it the whole job: one rank
// that unwinds while its peers wait in a collective would be a deadlock).
[[noreturn]] void FailCheck(const char* file, int line, const char* condition,
                            const std::string& message);

}  // namespace convene

// CHECK(condition) or CHECK(condition, "format {}", value).
#define CHECK(condition, ...)                        \
  (__builtin_expect(static_cast<bool>(condition), 1) \
       ? static_cast<void>(0)                        \
       : ::convene::FailCheck(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)))

// For hot loops: checked except in release builds.
#ifdef NDEBUG
#define DCHECK(condition, ...) static_cast<void>(sizeof(static_cast<bool>(condition)))
#else
#define DCHECK(...) CHECK(__VA_ARGS__)
#endif
