// Symbols: the variables of one block of a template while they are being placed (Jinja's class of
// that name). It exists only at parse time.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "jinja/syntax.h"

namespace convene::jinja {

// What has slots of its own: the template, a macro, the test of a `for`. Blocks next to each other
// share a slot for variables of the same name and level, as the generated Python shares locals.
class FunctionSlots {
 public:
  explicit FunctionSlots(const FunctionSlots* parent) : parent_(parent) {}
  int SlotOf(int level, const std::string& name);
  int num_slots() const { return static_cast<int>(slots_.size()); }
  const FunctionSlots* parent() const { return parent_; }

 private:
  const FunctionSlots* parent_;
  std::map<std::pair<int, std::string>, int> slots_;
};

class Symbols {
 public:
  Symbols(const Symbols* parent, FunctionSlots* function)
      : parent_(parent), function_(function), level_(parent ? parent->level_ + 1 : 0) {}

  int DeclareParameter(const std::string& name);
  void Store(const std::string& name);
  void Read(const std::string& name);

  // Variables first stored since `mark` were stored under a condition: before that, they are what
  // they are outside.
  size_t mark() const { return stored_in_order_.size(); }
  void MakeConditional(size_t mark);

  // The variable as seen from this block. Precondition: it was declared, stored or read here or
  // further out.
  Place Find(const std::string& name) const;
  Scope MakeScope() const;
  FunctionSlots* function() const { return function_; }

 private:
  struct Entry {
    int slot;
    std::optional<Load::Action> action;  // none: a parameter
  };
  const Symbols* Owner(const std::string& name) const;
  void Define(const std::string& name, std::optional<Load::Action> action);

  const Symbols* parent_;
  FunctionSlots* function_;
  int level_;
  std::map<std::string, Entry> entries_;
  std::set<std::string> stored_;
  std::vector<std::string> stored_in_order_;
};

}  // namespace convene::jinja
