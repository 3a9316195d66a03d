#include "jinja/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "jinja/compare.h"

namespace convene::jinja {
namespace {

// What a value on the heap costs beside its contents: control block, vector or string object.
constexpr size_t kOverheadBytes = 96;
constexpr size_t kNamespaceBytes = 256;
constexpr size_t kAttributeBytes = 192;  // a vector's entry and a map's node

}  // namespace

Run::~Run() {
  for (const auto& loop : loops_) loop->last_changed = nullptr;
  for (const auto& activation : kept_) activation->slots.clear();
  for (Namespace& space : namespaces_) space.attributes.clear();
}

Value Run::Fail(std::string message) {
  if (!error_) {
    error_ = std::move(message);
    error_line_ = line_;
  }
  return None{};
}

bool Run::Spend(size_t steps) {
  if (failed()) return false;
  steps_ += steps;
  if (steps_ > limits_.max_steps) {
    Fail(
        fmt::format("the template does more than {} steps of work; shorten the conversation, or "
                    "look for an endless loop in the template",
                    limits_.max_steps));
    return false;
  }
  return true;
}

bool Run::MayAllocate(size_t size_bytes) {
  if (failed()) return false;
  if (size_bytes > live_.limit || live_.used > live_.limit - size_bytes) {
    Fail(fmt::format("the template's values take more than {} bytes; shorten the conversation",
                     live_.limit));
    return false;
  }
  return true;
}

bool Run::CheckDepth(int depth) {
  if (depth < kMaxValueDepth) return true;
  Fail(fmt::format("values are nested deeper than {}", kMaxValueDepth));
  return false;
}

Value Run::String(std::string text, bool safe) {
  const size_t size_bytes = text.size() + kOverheadBytes;
  if (text.size() > limits_.max_output_bytes) {
    Fail(fmt::format("a text of {} bytes exceeds the limit of {}", text.size(),
                     limits_.max_output_bytes));
  }
  if (!SpendText(text.size()) || !MayAllocate(size_bytes)) return Value::Constant("");
  return Value(std::make_shared<const StringData>(
      StringData{.text = std::move(text), .safe = safe, .charge = Charge(&live_, size_bytes)}));
}

std::shared_ptr<const Items> Run::Share(Values values, bool is_group) {
  int depth = 0;
  for (const Value& value : values) depth = std::max(depth, DepthOf(value));
  const size_t size_bytes = values.size() * sizeof(Value) + kOverheadBytes;
  if (!CheckDepth(depth) || !Spend(1 + values.size()) || !MayAllocate(size_bytes)) {
    return std::make_shared<const Items>();
  }
  return std::make_shared<const Items>(Items{.values = std::move(values),
                                             .depth = depth + 1,
                                             .is_group = is_group,
                                             .charge = Charge(&live_, size_bytes)});
}

Value Run::NewList(Values values) { return List{Share(std::move(values))}; }

Value Run::NewTuple(Values values, bool is_group) {
  return Tuple{Share(std::move(values), is_group)};
}

Value Run::NewIterator(Values values) {
  return std::make_shared<Iterator>(Iterator{.items = Share(std::move(values))});
}

Value Run::NewMethod(Value self, const Builtin* entry) {
  return Method{.self = Share({std::move(self)}), .entry = entry};
}

Value Run::NewDict(std::vector<Dict::Entry> entries) {
  for (const Dict::Entry& entry : entries) CheckHashable(*this, entry.first);
  if (!Spend(1 + entries.size())) return std::make_shared<const Dict>();

  // Sorted by key, equal keys in order of insertion.
  const auto before = [&](uint32_t a, uint32_t b) {
    return KeyLess(*this, entries[a].first, entries[b].first);
  };
  std::vector<uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), before);
  std::vector<bool> repeated(entries.size());
  for (size_t i = 1, first = 0; i < order.size(); ++i) {
    if (before(order[first], order[i])) {
      first = i;
    } else {
      entries[order[first]].second = std::move(entries[order[i]].second);
      repeated[order[i]] = true;
    }
  }
  if (failed()) return std::make_shared<const Dict>();

  const auto dict = std::make_shared<Dict>();
  std::vector<uint32_t> new_place(entries.size());
  int depth = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (repeated[i]) continue;
    new_place[i] = static_cast<uint32_t>(dict->entries.size());
    depth = std::max({depth, DepthOf(entries[i].first), DepthOf(entries[i].second)});
    dict->entries.push_back(std::move(entries[i]));
  }
  for (const uint32_t entry_idx : order) {
    if (!repeated[entry_idx]) dict->order.push_back(new_place[entry_idx]);
  }
  dict->depth = depth + 1;
  const size_t size_bytes =
      dict->entries.size() * (sizeof(Dict::Entry) + sizeof(uint32_t)) + kOverheadBytes;
  if (!CheckDepth(depth) || !MayAllocate(size_bytes)) return std::make_shared<const Dict>();
  dict->charge = Charge(&live_, size_bytes);
  return std::shared_ptr<const Dict>(dict);
}

Value Run::NewUndefined(std::string message) {
  return std::make_shared<const Undefined>(Undefined{std::move(message)});
}

Namespace* Run::NewNamespace() {
  if (MayAllocate(kNamespaceBytes)) namespace_charges_.emplace_back(&live_, kNamespaceBytes);
  return &namespaces_.emplace_back();
}

void Run::SetAttribute(Namespace& space, std::string_view name, Value value) {
  if (const auto found = space.index.find(name); found != space.index.end()) {
    space.attributes[found->second].second = std::move(value);
  } else if (MayAllocate(kAttributeBytes)) {
    namespace_charges_.emplace_back(&live_, kAttributeBytes);
    space.index.emplace(name, space.attributes.size());
    space.attributes.emplace_back(name, std::move(value));
  }
}

std::unique_ptr<Activation> Run::NewActivation(size_t num_slots, Activation* parent) {
  auto activation = std::make_unique<Activation>();
  activation->parent = parent;
  const size_t size_bytes = num_slots * sizeof(Value) + kOverheadBytes;
  if (Spend(1 + num_slots) && MayAllocate(size_bytes)) {
    activation->charge = Charge(&live_, size_bytes);
  }
  activation->slots.resize(failed() ? 0 : num_slots);
  return activation;
}

}  // namespace convene::jinja
