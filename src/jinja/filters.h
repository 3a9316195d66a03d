// The filters of Jinja that chat templates may use (value | name(arguments)), with tojson as
// transformers replaces it. Those that are random, or make HTML or prose, are left out on purpose.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

struct FilterEntry {
  std::string_view name;
  Value (*call)(Run& run, const Value& input, const Arguments& arguments);
};

// Null where there is no such filter, or none that is supported.
const FilterEntry* FindFilter(std::string_view name);
std::string DescribeMissingFilter(std::string_view name);
// Whether Jinja has the filter, supported here or not.
bool IsFilterName(std::string_view name);

// The tables of the files that implement them.
std::span<const FilterEntry> TextFilters();
std::span<const FilterEntry> NumberFilters();
std::span<const FilterEntry> SequenceFilters();
std::span<const FilterEntry> OrderFilters();
std::span<const FilterEntry> ElementFilters();

}  // namespace convene::jinja
