#include "jinja/symbols.h"

#include "base/check.h"

namespace convene::jinja {

int FunctionSlots::SlotOf(int level, const std::string& name) {
  return slots_.try_emplace({level, name}, num_slots()).first->second;
}

void Symbols::Define(const std::string& name, std::optional<Load::Action> action) {
  entries_.insert_or_assign(name, Entry{.slot = function_->SlotOf(level_, name), .action = action});
}

int Symbols::DeclareParameter(const std::string& name) {
  if (stored_.insert(name).second) stored_in_order_.push_back(name);
  Define(name, std::nullopt);
  return entries_.at(name).slot;
}

void Symbols::Store(const std::string& name) {
  if (stored_.insert(name).second) stored_in_order_.push_back(name);
  if (entries_.contains(name)) return;
  const bool is_outside = parent_ != nullptr && parent_->Owner(name) != nullptr;
  Define(name, is_outside ? Load::Action::kCopy : Load::Action::kClear);
}

void Symbols::Read(const std::string& name) {
  if (Owner(name) == nullptr) Define(name, Load::Action::kResolve);
}

void Symbols::MakeConditional(size_t mark) {
  for (size_t i = mark; i < stored_in_order_.size(); ++i) {
    const std::string& name = stored_in_order_[i];
    const bool is_outside = parent_ != nullptr && parent_->Owner(name) != nullptr;
    Define(name, is_outside ? Load::Action::kCopy : Load::Action::kResolve);
  }
}

const Symbols* Symbols::Owner(const std::string& name) const {
  const Symbols* symbols = this;
  while (symbols != nullptr && !symbols->entries_.contains(name)) symbols = symbols->parent_;
  return symbols;
}

Place Symbols::Find(const std::string& name) const {
  const Symbols* owner = Owner(name);
  CHECK(owner != nullptr, "the variable {} was not analysed", name);
  int hops = 0;
  for (const FunctionSlots* f = function_; f != owner->function_; f = f->parent()) ++hops;
  return {.hops = hops, .slot = owner->entries_.at(name).slot};
}

Scope Symbols::MakeScope() const {
  Scope scope;
  for (const auto& [name, entry] : entries_) {
    scope.slots.push_back(entry.slot);
    if (!entry.action) continue;
    Load load{.action = *entry.action, .slot = entry.slot, .name = name, .source = {}};
    if (load.action == Load::Action::kCopy) {
      load.source = parent_->Find(name);
      // Seen from this function, which a macro's outermost block is a new one of.
      for (const FunctionSlots* f = function_; f != parent_->function_; f = f->parent()) {
        ++load.source.hops;
      }
    }
    scope.loads.push_back(std::move(load));
  }
  return scope;
}

}  // namespace convene::jinja
