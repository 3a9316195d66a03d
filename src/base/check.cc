#include "base/check.h"

#include <cstdlib>

#include "base/message.h"

namespace convene {

void FailCheck(const char* file, int line, const char* condition, const std::string& message) {
  PrintError(fmt::format("internal error at {}:{}: {}{}{}", file, line, condition,
                         message.empty() ? "" : ": ", message));
  std::abort();
}

}  // namespace convene
