// What Python does with containers: iterate, len(), subscripts, slices, `in`. Their methods are in
// methods.h.
#pragma once

#include <optional>

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

bool IsIterable(const Value& value);

// iter(value) as a list: characters, elements, keys. Walks an iterator to its end. Fails where the
// value cannot be iterated. Never null.
std::shared_ptr<const Items> Iterate(Run& run, const Value& value);

// len(value); none where the type has no length.
std::optional<int64_t> LengthOf(const Value& value);
// The same; a failure where the type has no length.
Value Len(Run& run, const Value& value);

// value[key]; missing where Python raises a LookupError or TypeError.
Value Subscript(Run& run, const Value& value, const Value& key);

// value[start:stop:step]; a part that is none is left out.
Value TakeSlice(Run& run, const Value& value, const Value& start, const Value& stop,
                const Value& step);

// `item in container`.
bool Contains(Run& run, const Value& container, const Value& item);

}  // namespace convene::jinja
