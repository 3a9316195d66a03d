// What templates can call without defining it: the filters, tests and global functions of Jinja
// that chat templates use, and the methods of values. Filters that are random, or make HTML or
// prose, are left out on purpose; which attribute a template may see is decided in attributes.h.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

// The arguments of a call in the order of the parameters; those not given are missing.
using Bound = std::array<Value, 4>;

// A row of the tables in which filters, tests, functions and methods are written down.
class Builtin {
 public:
  // Takes no arguments. `input` is what a filter or test is applied to, or a method's object; a
  // function has none.
  using Plain = Value (*)(Run& run, const Value& input);
  // Takes arguments as its parameters say.
  using WithParameters = Value (*)(Run& run, const Value& input, Bound& bound);
  // Takes any arguments.
  using WithAny = Value (*)(Run& run, const Value& input, const Arguments& arguments);

  constexpr Builtin(std::string_view name, Plain call) : name_(name), call_(call) {}
  constexpr Builtin(std::string_view name, WithAny call) : name_(name), call_(call) {}
  // A parameter "" takes no keyword; all but the first `num_required` may be missing.
  constexpr Builtin(std::string_view name, WithParameters call,
                    std::initializer_list<std::string_view> parameters, size_t num_required = 0)
      : name_(name), call_(call), num_required_(num_required) {
    for (const std::string_view parameter : parameters) parameters_[num_parameters_++] = parameter;
  }
  // Python has it, but it is not supported: a call fails and says so. The sandbox refuses methods
  // that would change a list or dict.
  constexpr Builtin(std::string_view name, std::nullptr_t, bool changes_self = false)
      : name_(name), changes_self_(changes_self) {}

  std::string_view name() const { return name_; }
  bool changes_self() const { return changes_self_; }

  // Binds the arguments as Python does. Fails for arguments too many, unknown, repeated or missing.
  Value Call(Run& run, const Value& input, const Arguments& arguments) const;

 private:
  bool Bind(Run& run, const Arguments& arguments, Bound& bound) const;

  std::string_view name_;
  std::variant<std::monostate, Plain, WithParameters, WithAny> call_;
  std::array<std::string_view, std::tuple_size_v<Bound>> parameters_;
  size_t num_parameters_ = 0;
  size_t num_required_ = 0;
  bool changes_self_ = false;
};

// All of these are null where there is none of that name, or none that is supported.
const Builtin* FindIn(std::span<const Builtin> table, std::string_view name);
const Builtin* FindFilter(std::string_view name);  // value | name(arguments)
const Builtin* FindTest(std::string_view name);    // value is name(arguments)
const Builtin* FindFunction(std::string_view name);
// The method of the value's type; unsupported ones are found, too.
const Builtin* FindMethod(const Value& self, std::string_view name);

// Whether Jinja has the filter, supported here or not.
bool IsFilterName(std::string_view name);
std::string DescribeMissingFilter(std::string_view name);
std::string DescribeMissingTest(std::string_view name);

// The tables of the files that implement them.
std::span<const Builtin> TextFilters();
std::span<const Builtin> NumberFilters();
std::span<const Builtin> SequenceFilters();
std::span<const Builtin> OrderFilters();
std::span<const Builtin> ElementFilters();
std::span<const Builtin> StringMethods();
std::span<const Builtin> StringQueries();  // isdigit, startswith, find, ...

}  // namespace convene::jinja
