// Run: the state of one rendering that every operation needs: whether it failed, what it may still
// spend, and the values it made. It evaluates nothing itself.
//
// Failure is sticky. Nothing throws and few functions return a status: the first Fail() is kept,
// all later values are irrelevant, and whatever repeats work asks failed(), or Spend(), which fails
// too.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "jinja/limits.h"
#include "jinja/value.h"

namespace convene::jinja {

// The variables of one call of a macro (or of the template itself), by slot; `parent` are those of
// the place where the macro was defined.
struct Activation {
  std::vector<Value> slots;
  Activation* parent = nullptr;
  bool has_macros = false;  // macros were made in the call, and they may be called after it
  Charge charge;
};

class Run {
 public:
  Run(const Limits& limits, std::chrono::system_clock::time_point now)
      : limits_(limits), now_(now), live_{.limit = limits.max_live_bytes} {}
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Returns a value that nobody may rely on, so that callers can write `return run.Fail(...)`.
  Value Fail(std::string message);
  bool failed() const { return error_.has_value(); }
  // Precondition: failed().
  const std::string& error() const { return *error_; }
  // The line that a failure is reported for.
  int line() const { return error_ ? error_line_ : line_; }
  void set_line(int line) { line_ = line; }

  // Accounts for work; false once the rendering has failed or spent its limit.
  bool Spend(size_t steps = 1);
  // The same for working through this many bytes of text.
  bool SpendText(size_t size_bytes) { return Spend(1 + size_bytes / 16); }
  // False, with the failure set, unless a value of this size may still be made.
  bool MayAllocate(size_t size_bytes);

  const Limits& limits() const { return limits_; }
  std::chrono::system_clock::time_point now() const { return now_; }

  // The text must be valid UTF-8.
  Value String(std::string text, bool safe = false);
  Value NewList(Values values);
  Value NewTuple(Values values, bool is_group = false);
  Value NewIterator(Values values);
  Value NewMethod(Value self, const Builtin* entry);
  // Keys must be hashable; a repeated key keeps its first place and gets its last value.
  Value NewDict(std::vector<Dict::Entry> entries);
  Value NewUndefined(std::string message);
  Namespace* NewNamespace();
  void SetAttribute(Namespace& space, std::string_view name, Value value);
  std::unique_ptr<Activation> NewActivation(size_t num_slots, Activation* parent);
  std::shared_ptr<const Items> Share(Values values, bool is_group = false);

  // Keeps the variables of a call until the end, because a macro made in it refers to them.
  void Keep(std::unique_ptr<Activation> activation) { kept_.push_back(std::move(activation)); }
  // loop.changed() may remember the loop itself; the memory of such loops is cleared at the end.
  void RememberLoop(std::shared_ptr<Loop> loop) { loops_.push_back(std::move(loop)); }

 private:
  bool CheckDepth(int depth);

  const Limits limits_;
  const std::chrono::system_clock::time_point now_;
  LiveBytes live_;  // outlives the values below
  std::optional<std::string> error_;
  int error_line_ = 0;
  int line_ = 1;
  size_t steps_ = 0;
  std::deque<Namespace> namespaces_;
  std::vector<Charge> namespace_charges_;  // of their attributes, which may reach the end
  std::vector<std::unique_ptr<Activation>> kept_;
  std::vector<std::shared_ptr<Loop>> loops_;
};

}  // namespace convene::jinja
