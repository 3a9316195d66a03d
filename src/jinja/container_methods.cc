// Methods of lists, tuples, dicts, `loop`, cyclers and numbers, and the search for a method by
// type.
#include <fmt/format.h>

#include <algorithm>

#include "jinja/arguments.h"
#include "jinja/builtins.h"
#include "jinja/compare.h"

namespace convene::jinja {
namespace {

template <DictView::Part part>
Value View(Run& /*run*/, const Value& self) {
  return DictView{.dict = self.Get<std::shared_ptr<const Dict>>(), .part = part};
}

Value Get(Run& run, const Value& self, Bound& bound) {
  if (!CheckHashable(run, bound[0])) return None{};
  if (const Value* found = self.AsDict().Find(run, bound[0])) return *found;
  return NoneIfMissing(bound[1]);
}

// Values never change, so a copy is the thing itself.
Value Copy(Run& /*run*/, const Value& self) { return self; }

Value CountElement(Run& run, const Value& self, Bound& bound) {
  int64_t count = 0;
  for (const Value& other : self.Elements()) count += Equal(run, other, bound[0]) ? 1 : 0;
  return count;
}

Value IndexOfElement(Run& run, const Value& self, Bound& bound) {
  const auto length = static_cast<int64_t>(self.Elements().size());
  int64_t first = IntegerOr(run, bound[1], 0);
  int64_t last = IntegerOr(run, bound[2], length);
  if (first < 0) first = std::max<int64_t>(first + length, 0);
  if (last < 0) last = std::max<int64_t>(last + length, 0);
  for (int64_t i = first; i < std::min(last, length) && !run.failed(); ++i) {
    if (Equal(run, self.Elements()[static_cast<size_t>(i)], bound[0])) return i;
  }
  return run.Fail(fmt::format("the element is not in the {}", TypeName(self)));
}

Value Cycle(Run& run, const Value& self, const Arguments& arguments) {
  const Loop& loop = *self.Get<std::shared_ptr<Loop>>();
  if (arguments.positional.empty() || !arguments.named.empty()) {
    return run.Fail("no items for cycling given");
  }
  return arguments.positional[static_cast<size_t>(loop.index0) % arguments.positional.size()];
}

Value Changed(Run& run, const Value& self, const Arguments& arguments) {
  if (!arguments.named.empty()) return run.Fail("changed() takes no keyword arguments");
  const auto& loop = self.Get<std::shared_ptr<Loop>>();
  const auto given = run.Share(arguments.positional);
  const bool has_changed =
      loop->last_changed == nullptr || !Equal(run, Tuple{loop->last_changed}, Tuple{given});
  if (loop->last_changed == nullptr) run.RememberLoop(loop);
  if (has_changed) loop->last_changed = given;
  return has_changed;
}

Value NextOfCycler(Run& /*run*/, const Value& self) {
  Cycler& cycler = *self.Get<std::shared_ptr<Cycler>>();
  const Value current = cycler.items->values[cycler.position];
  cycler.position = (cycler.position + 1) % cycler.items->values.size();
  return current;
}

Value ResetCycler(Run& /*run*/, const Value& self) {
  self.Get<std::shared_ptr<Cycler>>()->position = 0;
  return None{};
}

constexpr Builtin kDictMethods[] = {
    {"clear", nullptr, true},
    {"copy", Copy},
    {"fromkeys", nullptr},
    {"get", Get, {"", ""}, 1},
    {"items", View<DictView::Part::kItems>},
    {"keys", View<DictView::Part::kKeys>},
    {"pop", nullptr, true},
    {"popitem", nullptr, true},
    {"setdefault", nullptr, true},
    {"update", nullptr, true},
    {"values", View<DictView::Part::kValues>},
};
constexpr Builtin kListMethods[] = {
    {"append", nullptr, true},
    {"clear", nullptr, true},
    {"copy", Copy},
    {"count", CountElement, {""}, 1},
    {"extend", nullptr, true},
    {"index", IndexOfElement, {"", "", ""}, 1},
    {"insert", nullptr, true},
    {"pop", nullptr, true},
    {"remove", nullptr, true},
    {"reverse", nullptr, true},
    {"sort", nullptr, true},
};
constexpr Builtin kTupleMethods[] = {{"count", CountElement, {""}, 1},
                                     {"index", IndexOfElement, {"", "", ""}, 1}};
constexpr Builtin kLoopMethods[] = {{"cycle", Cycle}, {"changed", Changed}};
constexpr Builtin kCyclerMethods[] = {{"next", NextOfCycler}, {"reset", ResetCycler}};
constexpr Builtin kNumberMethods[] = {
    {"as_integer_ratio", nullptr},
    {"bit_count", nullptr},
    {"bit_length", nullptr},
    {"conjugate", nullptr},
    {"from_bytes", nullptr},
    {"fromhex", nullptr},
    {"hex", nullptr},
    {"is_integer", nullptr},
    {"to_bytes", nullptr},
};

}  // namespace

const Builtin* FindMethod(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Kind::kString: {
      const Builtin* found = FindIn(StringMethods(), name);
      return found != nullptr ? found : FindIn(StringQueries(), name);
    }
    case Kind::kList:
      return FindIn(kListMethods, name);
    case Kind::kTuple:
      return FindIn(kTupleMethods, name);
    case Kind::kDict:
      return FindIn(kDictMethods, name);
    case Kind::kLoop:
      return FindIn(kLoopMethods, name);
    case Kind::kCycler:
      return FindIn(kCyclerMethods, name);
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return FindIn(kNumberMethods, name);
    default:
      return nullptr;
  }
}

}  // namespace convene::jinja
