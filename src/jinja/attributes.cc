#include "jinja/attributes.h"

#include <fmt/format.h>

#include "jinja/builtins.h"
#include "jinja/repr.h"
#include "jinja/sequence.h"
#include "jinja/syntax.h"

namespace convene::jinja {
namespace {

Value Unsafe(Run& run, const Value& object, std::string_view name) {
  return run.NewUndefined(
      fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, TypeName(object)));
}

Value LoopAttribute(Run& run, Loop& loop, std::string_view name) {
  const int64_t i = loop.index0;
  if (name == "index0") return i;
  if (name == "index") return i + 1;
  if (name == "revindex0") return loop.Length() - i - 1;
  if (name == "revindex") return loop.Length() - i;
  if (name == "first") return i == 0;
  if (name == "last") return loop.At(i + 1) == nullptr;
  if (name == "length") return loop.Length();
  if (name == "depth0") return int64_t{0};
  if (name == "depth") return int64_t{1};
  if (name == "previtem") {
    const Value* item = loop.At(i - 1);
    return item != nullptr ? *item : run.NewUndefined("there is no previous item");
  }
  if (name == "nextitem") {
    const Value* item = loop.At(i + 1);
    return item != nullptr ? *item : run.NewUndefined("there is no next item");
  }
  return {};
}

Value MacroAttribute(Run& run, const Macro& macro, std::string_view name) {
  if (name == "name") return macro.name.empty() ? Value(None{}) : run.String(macro.name);
  if (name == "catch_kwargs") return macro.kwargs_slot >= 0;
  if (name == "catch_varargs") return macro.varargs_slot >= 0;
  if (name == "caller") return macro.caller_slot >= 0;
  if (name != "arguments") return {};
  Values names;
  for (const std::string& parameter : macro.parameters) names.push_back(run.String(parameter));
  return run.NewTuple(std::move(names));
}

Value NumberAttribute(const Value& number, std::string_view name) {
  const bool is_float = number.Is(Kind::kFloat);
  if (name == "real") return is_float ? number : Value(number.Int());
  if (name == "imag") return is_float ? Value(0.0) : Value(int64_t{0});
  if (is_float) return {};
  if (name == "numerator") return number.Int();
  if (name == "denominator") return int64_t{1};
  return {};
}

Value RangeAttribute(const Range& range, std::string_view name) {
  if (name == "start") return range.start;
  if (name == "stop") return range.stop;
  if (name == "step") return range.step;
  return {};
}

// Attributes that are not methods.
Value DataAttribute(Run& run, const Value& object, std::string_view name) {
  switch (object.kind()) {
    case Kind::kNamespace: {
      const Value* found = object.AsNamespace().Find(name);
      return found == nullptr ? Value() : *found;
    }
    case Kind::kLoop:
      return LoopAttribute(run, *object.Get<std::shared_ptr<Loop>>(), name);
    case Kind::kMacro:
      return MacroAttribute(run, *object.Get<MacroValue>().macro, name);
    case Kind::kCycler: {
      const Cycler& cycler = *object.Get<std::shared_ptr<Cycler>>();
      if (name == "current") return cycler.items->values[cycler.position];
      return {};
    }
    case Kind::kTuple:
      if (!object.SharedItems()->is_group) return {};
      if (name == "grouper") return object.Elements()[0];
      if (name == "list") return object.Elements()[1];
      return {};
    case Kind::kRange:
      return RangeAttribute(object.AsRange(), name);
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return NumberAttribute(object, name);
    default:
      return {};
  }
}

bool IsInternalName(std::string_view name) {
  return name.size() > 4 && name.starts_with("__") && name.ends_with("__");
}

}  // namespace

Value UndefinedAttribute(Run& run, const Value& object, std::string_view name) {
  return run.NewUndefined(
      fmt::format("'{}' has no attribute {}", ObjectName(object), QuoteText(name)));
}

Value OwnAttribute(Run& run, const Value& object, std::string_view name) {
  if (const Builtin* method = FindMethod(object, name)) {
    return method->changes_self() ? Unsafe(run, object, name) : run.NewMethod(object, method);
  }
  return DataAttribute(run, object, name);
}

Value GetAttribute(Run& run, const Value& object, std::string_view name) {
  if (object.IsUndefined()) return run.Fail(object.AsUndefined().message);
  if (Value own = OwnAttribute(run, object, name); !own.IsMissing()) return own;
  if (object.Is(Kind::kDict)) {
    if (const Value* found = object.AsDict().Find(name)) return *found;
  }
  // Every Python object has __class__ and its like, which the sandbox hides.
  if (IsInternalName(name)) return Unsafe(run, object, name);
  return UndefinedAttribute(run, object, name);
}

Value GetItem(Run& run, const Value& object, const Value& key) {
  if (object.IsUndefined()) return run.Fail(object.AsUndefined().message);
  if (Value entry = Subscript(run, object, key); !entry.IsMissing()) return entry;
  if (!key.IsString()) {
    return run.NewUndefined(
        fmt::format("{} has no element {}", ObjectName(object), Repr(run, key)));
  }
  if (Value own = OwnAttribute(run, object, key.Text()); !own.IsMissing()) return own;
  if (IsInternalName(key.Text())) return Unsafe(run, object, key.Text());
  return UndefinedAttribute(run, object, key.Text());
}

}  // namespace convene::jinja
