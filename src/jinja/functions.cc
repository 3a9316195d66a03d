// The global functions of a template: range, namespace, raise_exception and the others that Jinja
// and transformers define.
#include <fmt/format.h>

#include <ctime>

#include "jinja/arguments.h"
#include "jinja/builtins.h"
#include "jinja/repr.h"
#include "jinja/sequence.h"

namespace convene::jinja {
namespace {

Value MakeRange(Run& run, const Value& /*input*/, Bound& bound) {
  int64_t parts[3] = {0, 0, 1};
  for (size_t i = 0; i < 3; ++i) {
    if (bound[i].IsMissing()) continue;
    const auto part = ToInteger(run, bound[i]);
    if (!part) return None{};
    parts[i] = *part;
  }
  if (bound[1].IsMissing()) std::swap(parts[0], parts[1]);
  const auto [start, stop, step] = parts;
  if (step == 0) return run.Fail("range() arg 3 must not be zero");
  // Unsigned, since the distance may be any 64-bit number.
  const bool is_empty = step > 0 ? start >= stop : start <= stop;
  const uint64_t distance = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                     : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
  const uint64_t stride =
      step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  const uint64_t length = is_empty ? 0 : (distance - 1) / stride + 1;
  if (length > kMaxRangeLength) {
    return run.Fail(
        fmt::format("Range too big. The sandbox blocks ranges larger than {} (this one has {})",
                    kMaxRangeLength, length));
  }
  return std::make_shared<const Range>(
      Range{.start = start, .stop = stop, .step = step, .length = static_cast<int64_t>(length)});
}

// The entries that dict(...) and namespace(...) are made from: a mapping or pairs, and keywords.
std::optional<std::vector<Dict::Entry>> EntriesFrom(Run& run, std::string_view callee,
                                                    const Arguments& arguments) {
  std::vector<Dict::Entry> entries;
  if (arguments.positional.size() > 1) {
    run.Fail(fmt::format("{}() takes at most 1 positional argument", callee));
    return std::nullopt;
  }
  for (const Value& given : arguments.positional) {
    if (given.Is(Kind::kDict)) {
      entries = given.AsDict().entries;
      continue;
    }
    const auto pairs = Iterate(run, given);
    for (const Value& pair : pairs->values) {
      const auto parts = Iterate(run, pair);
      if (run.failed()) return std::nullopt;
      if (parts->values.size() != 2) {
        run.Fail(fmt::format("{}() needs pairs, got an element of length {}", callee,
                             parts->values.size()));
        return std::nullopt;
      }
      entries.emplace_back(parts->values[0], parts->values[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) entries.emplace_back(run.String(name), value);
  if (run.failed()) return std::nullopt;
  return entries;
}

Value MakeDict(Run& run, const Value& /*input*/, const Arguments& arguments) {
  auto entries = EntriesFrom(run, "dict", arguments);
  return entries ? run.NewDict(*std::move(entries)) : Value(None{});
}

Value MakeNamespace(Run& run, const Value& /*input*/, const Arguments& arguments) {
  const auto entries = EntriesFrom(run, "namespace", arguments);
  if (!entries) return None{};
  Namespace* space = run.NewNamespace();
  for (const auto& [name, value] : *entries) {
    if (!name.IsString()) return run.Fail("the names of a namespace's attributes must be strings");
    if (name.Text().starts_with('_')) {
      return run.Fail(
          fmt::format("Chat templates cannot store underscore-prefixed attributes on a "
                      "namespace, but got {}. Please rename the attribute.",
                      QuoteText(name.Text())));
    }
    run.SetAttribute(*space, name.Text(), value);
  }
  return space;
}

Value RaiseException(Run& run, const Value& /*input*/, Bound& bound) {
  return run.Fail(Str(run, bound[0]));
}

// The local time in the format of strftime, with Python's %f for microseconds.
Value StrftimeNow(Run& run, const Value& /*input*/, Bound& bound) {
  const std::string* text = ToText(run, bound[0]);
  if (text == nullptr) return None{};
  if (text->empty()) return run.String("");
  if (text->find('\0') != std::string::npos) return run.Fail("embedded null character");

  const auto now = run.now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(
                                now - std::chrono::system_clock::from_time_t(seconds))
                                .count();
  std::string format;
  for (size_t i = 0; i < text->size(); ++i) {
    const char c = (*text)[i];
    if (c != '%' || i + 1 == text->size()) {
      format += c;
    } else if (const char letter = (*text)[++i]; letter == 'f') {
      format += fmt::format("{:06}", microseconds);
    } else if (letter != 'z' && letter != 'Z') {  // Python's date has no time zone
      format += {c, letter};
    }
  }
  format += '.';  // so that an empty result differs from one too long
  std::tm local{};
  localtime_r(&seconds, &local);
  char buffer[4096];
  const size_t size = std::strftime(buffer, sizeof(buffer), format.c_str(), &local);
  if (size == 0) return run.Fail("the result of strftime_now is longer than 4095 bytes");
  return run.String(std::string(buffer, size - 1));
}

Value MakeCycler(Run& run, const Value& /*input*/, const Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty()) {
    return run.Fail("at least one item has to be provided");
  }
  return std::make_shared<Cycler>(Cycler{.items = run.Share(arguments.positional)});
}

Value MakeJoiner(Run& run, const Value& /*input*/, Bound& bound) {
  if (bound[0].IsMissing()) bound[0] = run.String(", ");
  return std::make_shared<Joiner>(Joiner{.separator = run.Share({bound[0]})});
}

Value Lipsum(Run& run, const Value& /*input*/, const Arguments& /*arguments*/) {
  return run.Fail("the function 'lipsum' is not supported: its text is random");
}

constexpr Builtin kFunctions[] = {
    {"cycler", MakeCycler},
    {"dict", MakeDict},
    {"joiner", MakeJoiner, {"sep"}},
    {"lipsum", Lipsum},
    {"namespace", MakeNamespace},
    {"raise_exception", RaiseException, {"message"}, 1},
    {"range", MakeRange, {"", "", ""}, 1},
    {"strftime_now", StrftimeNow, {"format"}, 1},
};

}  // namespace

const Builtin* FindFunction(std::string_view name) { return FindIn(kFunctions, name); }

}  // namespace convene::jinja
