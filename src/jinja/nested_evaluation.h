// The guard of the interpreter's recursion: what is evaluated within something else.
#pragma once

#include <fmt/format.h>

#include "jinja/interpreter.h"

namespace convene::jinja {

// While it lives, one level deeper. `ok` is false once the rendering failed or is too deep.
class Interpreter::Nested {
 public:
  explicit Nested(Interpreter& interpreter) : interpreter_(interpreter) {
    if (++interpreter.depth_ > kMaxEvaluationDepth) {
      interpreter.run_.Fail(fmt::format(
          "evaluation is nested deeper than {}; look for a macro that calls itself without end",
          kMaxEvaluationDepth));
    }
    ok = interpreter.run_.Spend();
  }
  ~Nested() { --interpreter_.depth_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;

  bool ok = false;

 private:
  Interpreter& interpreter_;
};

}  // namespace convene::jinja
