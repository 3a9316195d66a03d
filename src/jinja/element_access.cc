#include "jinja/element_access.h"

#include "jinja/arguments.h"
#include "jinja/attributes.h"
#include "jinja/number_text.h"
#include "jinja/python_text.h"

namespace convene::jinja {
namespace {

std::vector<std::string> SplitSlice(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

}  // namespace

AttributePath::AttributePath(Run& run, const Value& path) : run_(run) {
  if (path.IsNone()) return;
  if (!path.IsString()) {
    parts_.push_back(path);
    return;
  }
  for (std::string& part : SplitSlice(path.Text(), '.')) {
    const bool is_number =
        !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    const auto number = is_number ? ParseInteger(run, part, 10) : std::nullopt;
    parts_.push_back(number ? Value(*number) : run.String(std::move(part)));
  }
}

Value AttributePath::Get(const Value& element, const Value& otherwise) const {
  Value value = element;
  for (const Value& part : parts_) {
    if (!run_.Spend()) return None{};
    value = GetItem(run_, value, part);
    if (value.IsUndefined() && IsGiven(otherwise)) value = otherwise;
  }
  return value;
}

AttributePaths::AttributePaths(Run& run, const Value& paths) : run_(run) {
  if (!paths.IsString()) {
    paths_.emplace_back(run, paths);
    return;
  }
  for (std::string& path : SplitSlice(paths.Text(), ',')) {
    paths_.emplace_back(run, run.String(std::move(path)));
  }
}

Value AttributePaths::Key(const Value& element, bool is_case_sensitive) const {
  Values keys;
  for (const AttributePath& path : paths_) {
    keys.push_back(FoldCase(run_, path.Get(element), is_case_sensitive));
  }
  return run_.NewTuple(std::move(keys));
}

Value FoldCase(Run& run, const Value& value, bool is_case_sensitive) {
  if (is_case_sensitive || !value.IsString()) return value;
  return run.String(ToLower(value.Text()));
}

}  // namespace convene::jinja
