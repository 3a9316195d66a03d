// How filters such as map and sort look into the elements they work on: by a path of attributes,
// and with strings compared regardless of case.
#pragma once

#include <vector>

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

// 'name', 'function.name' or 'parts.0.text'; none stands for the element itself.
class AttributePath {
 public:
  AttributePath(Run& run, const Value& path);
  // `otherwise`, where not none or missing, replaces what is undefined on the way.
  Value Get(const Value& element, const Value& otherwise = {}) const;

 private:
  Run& run_;
  Values parts_;
};

// Several paths, separated by commas.
class AttributePaths {
 public:
  AttributePaths(Run& run, const Value& paths);
  // What the element is sorted by: a tuple with one value for each path.
  Value Key(const Value& element, bool is_case_sensitive) const;

 private:
  Run& run_;
  std::vector<AttributePath> paths_;
};

// A string in lower case unless case counts; other values as they are.
Value FoldCase(Run& run, const Value& value, bool is_case_sensitive);

}  // namespace convene::jinja
