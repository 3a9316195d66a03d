// Value: what an expression of a template evaluates to, with Python's types and their sharing.
// It is not a JSON document: there are macros, loop objects and undefined values, too.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace convene::jinja {

class Builtin;
class Run;
class Value;
struct Arguments;
struct Macro;
struct Activation;
using Values = std::vector<Value>;

// How many bytes of values are alive in a rendering.
struct LiveBytes {
  size_t limit = 0;
  size_t used = 0;
};

// One value's share of the bytes alive, given back when the value dies.
class Charge {
 public:
  Charge() = default;
  Charge(LiveBytes* live, size_t bytes) : live_(live), bytes_(bytes) { live_->used += bytes_; }
  Charge(Charge&& other) noexcept
      : live_(std::exchange(other.live_, nullptr)), bytes_(other.bytes_) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(live_, other.live_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Charge() {
    if (live_ != nullptr) live_->used -= bytes_;
  }

 private:
  LiveBytes* live_ = nullptr;
  size_t bytes_ = 0;
};

// No value at all: an argument that was not given, a variable before its first assignment.
struct Missing {};
struct None {};

// The result of looking up what is not there; using it is an error whose text is `message`.
struct Undefined {
  std::string message;
};

struct StringData {
  std::string text;  // valid UTF-8
  // Python's Markup: text that counts as escaped HTML; what is added to it gets escaped.
  bool safe = false;
  Charge charge;
};

// Elements of a list, tuple or iterator. Nothing can change them: transformers' sandbox refuses
// append and its like. `depth` is 1 + the largest depth of an element.
struct Items {
  Values values;
  int depth = 1;
  bool is_group = false;  // a pair of the filter groupby, with attributes grouper and list
  Charge charge;
};

struct List {
  std::shared_ptr<const Items> items;
};
struct Tuple {
  std::shared_ptr<const Items> items;
};

struct Dict {
  using Entry = std::pair<Value, Value>;
  std::vector<Entry> entries;   // in order of insertion, keys unique
  std::vector<uint32_t> order;  // indices of `entries` by key, for the search
  int depth = 1;
  Charge charge;

  // Null where there is no such key. Precondition of the first: the key is hashable.
  const Value* Find(Run& run, const Value& key) const;
  const Value* Find(std::string_view key) const;
};

struct DictView {
  enum class Part : uint8_t { kKeys, kValues, kItems };
  std::shared_ptr<const Dict> dict;
  Part part;
};

struct Range {
  int64_t start, stop, step, length;
};

// Python's generators and iterators: can be walked once, has no length, is always true.
// Its elements are computed when it is made.
struct Iterator {
  std::shared_ptr<const Items> items;
  size_t next = 0;
};

// Mutable, so it lives as long as the rendering, in the Run: cycles through it are harmless.
struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
  std::map<std::string, size_t, std::less<>> index;

  const Value* Find(std::string_view name) const;
};

// The variable `loop` of a for statement, and its way through the elements. Where the statement has
// a test (`for x in y if ...`), elements are tested as late as possible, as Python's generators do.
struct Loop {
  std::shared_ptr<const Items> items;
  std::function<bool(const Value&)> test;  // null: every element counts
  std::vector<size_t> chosen;              // elements known to pass the test
  size_t num_tested = 0;
  int64_t index0 = -1;
  std::shared_ptr<const Items> last_changed;  // the arguments of the last loop.changed(...)

  // The element of an index among those that count; null behind the last one.
  const Value* At(int64_t index);
  int64_t Length();
};

// A macro together with the variables it sees (null: it sees the context only).
struct MacroValue {
  const Macro* macro;
  Activation* closure;
};

struct Cycler {
  std::shared_ptr<const Items> items;
  size_t position = 0;
};
struct Joiner {
  std::shared_ptr<const Items> separator;  // one element
  bool used = false;
};

// A method with the object it belongs to, as in `message.items`.
struct Method {
  std::shared_ptr<const Items> self;  // one element
  const Builtin* entry;
};

// In the order of Value's alternatives.
enum class Kind : uint8_t {
  kMissing,
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kDictView,
  kRange,
  kIterator,
  kNamespace,
  kLoop,
  kMacro,
  kCycler,
  kJoiner,
  kFunction,
  kMethod,
};

// Copies share what they hold: shared_ptr, since a value lives as long as any list, variable or
// iterator that refers to it. Everything shared is immutable, or holds nothing that refers back.
class Value {
 public:
  Value() = default;                                                          // missing
  Value(None none) : state_(none) {}                                          // NOLINT
  Value(bool value) : state_(value) {}                                        // NOLINT
  Value(int64_t value) : state_(value) {}                                     // NOLINT
  Value(double value) : state_(value) {}                                      // NOLINT
  Value(std::shared_ptr<const StringData> text) : state_(std::move(text)) {}  // NOLINT
  Value(std::shared_ptr<const Undefined> what) : state_(std::move(what)) {}   // NOLINT
  Value(List list) : state_(std::move(list)) {}                               // NOLINT
  Value(Tuple tuple) : state_(std::move(tuple)) {}                            // NOLINT
  Value(std::shared_ptr<const Dict> dict) : state_(std::move(dict)) {}        // NOLINT
  Value(DictView view) : state_(std::move(view)) {}                           // NOLINT
  Value(std::shared_ptr<const Range> range) : state_(std::move(range)) {}     // NOLINT
  Value(std::shared_ptr<Iterator> iterator) : state_(std::move(iterator)) {}  // NOLINT
  Value(Namespace* space) : state_(space) {}                                  // NOLINT
  Value(std::shared_ptr<Loop> loop) : state_(std::move(loop)) {}              // NOLINT
  Value(MacroValue macro) : state_(macro) {}                                  // NOLINT
  Value(std::shared_ptr<Cycler> cycler) : state_(std::move(cycler)) {}        // NOLINT
  Value(std::shared_ptr<Joiner> joiner) : state_(std::move(joiner)) {}        // NOLINT
  Value(const Builtin* function) : state_(function) {}                        // NOLINT
  Value(Method method) : state_(std::move(method)) {}                         // NOLINT
  template <typename T>
  Value(T*) = delete;  // a pointer would become a bool

  // A string that belongs to no rendering, as the constants of a source do.
  static Value Constant(std::string text);

  Kind kind() const { return static_cast<Kind>(state_.index()); }
  bool Is(Kind kind) const { return this->kind() == kind; }
  bool IsMissing() const { return Is(Kind::kMissing); }
  bool IsUndefined() const { return Is(Kind::kUndefined); }
  bool IsNone() const { return Is(Kind::kNone); }
  bool IsString() const { return Is(Kind::kString); }
  // Python's bool is an int.
  bool IsInteger() const { return Is(Kind::kInt) || Is(Kind::kBool); }
  bool IsNumber() const { return IsInteger() || Is(Kind::kFloat); }

  // Preconditions: the kind. Int and Float accept what Python's int and float would hold.
  bool Bool() const { return std::get<bool>(state_); }
  int64_t Int() const { return Is(Kind::kBool) ? Bool() : std::get<int64_t>(state_); }
  double Float() const {
    return Is(Kind::kFloat) ? std::get<double>(state_) : static_cast<double>(Int());
  }
  const std::string& Text() const { return String().text; }
  const StringData& String() const { return *Get<std::shared_ptr<const StringData>>(); }
  const Undefined& AsUndefined() const { return *Get<std::shared_ptr<const Undefined>>(); }
  const Dict& AsDict() const { return *Get<std::shared_ptr<const Dict>>(); }
  const Range& AsRange() const { return *Get<std::shared_ptr<const Range>>(); }
  Namespace& AsNamespace() const { return *Get<Namespace*>(); }
  // Elements of a list or tuple.
  const std::shared_ptr<const Items>& SharedItems() const {
    return Is(Kind::kList) ? Get<List>().items : Get<Tuple>().items;
  }
  const Values& Elements() const { return SharedItems()->values; }
  bool HasElements() const { return Is(Kind::kList) || Is(Kind::kTuple); }

  template <typename T>
  const T& Get() const {
    return std::get<T>(state_);
  }

 private:
  std::variant<Missing, std::shared_ptr<const Undefined>, None, bool, int64_t, double,
               std::shared_ptr<const StringData>, List, Tuple, std::shared_ptr<const Dict>,
               DictView, std::shared_ptr<const Range>, std::shared_ptr<Iterator>, Namespace*,
               std::shared_ptr<Loop>, MacroValue, std::shared_ptr<Cycler>, std::shared_ptr<Joiner>,
               const Builtin*, Method>
      state_;
};

// What is called with: f(1, 2, name=3).
struct Arguments {
  Values positional = {};
  std::vector<std::pair<std::string, Value>> named = {};
};

// 0 for what holds no other values.
int DepthOf(const Value& value);

// Python's bool(value).
bool IsTrue(const Value& value);

// Python's name of the type, as in "'NoneType' object is not iterable".
std::string_view TypeName(const Value& value);

// Jinja's name of what a lookup was tried on, as in "'dict object' has no attribute 'x'".
std::string ObjectName(const Value& value);

}  // namespace convene::jinja
