#include "jinja/filters.h"

#include <fmt/format.h>

#include <algorithm>

namespace convene::jinja {
namespace {

constexpr std::string_view kUnsupported[] = {"filesizeformat", "pprint", "random",   "striptags",
                                             "urlencode",      "urlize", "wordwrap", "xmlattr"};

}  // namespace

const FilterEntry* FindFilter(std::string_view name) {
  for (const auto& table :
       {TextFilters(), NumberFilters(), SequenceFilters(), OrderFilters(), ElementFilters()}) {
    const auto found = std::find_if(table.begin(), table.end(),
                                    [&](const FilterEntry& entry) { return entry.name == name; });
    if (found != table.end()) return &*found;
  }
  return nullptr;
}

bool IsFilterName(std::string_view name) {
  return FindFilter(name) != nullptr || std::find(std::begin(kUnsupported), std::end(kUnsupported),
                                                  name) != std::end(kUnsupported);
}

std::string DescribeMissingFilter(std::string_view name) {
  return IsFilterName(name) ? fmt::format("the filter '{}' is not supported", name)
                            : fmt::format("No filter named '{}'.", name);
}

}  // namespace convene::jinja
