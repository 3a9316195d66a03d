// What libFuzzer and the address sanitizer ask of every target here: how inputs are changed, and
// how much is remembered of memory that was freed.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "token_mutator.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// Half of the time by tokens, otherwise by bytes and the words of the dictionary, which is
// libFuzzer's own way.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  if (seed % 2 != 0) return LLVMFuzzerMutate(data, size, max_size);
  std::string text(reinterpret_cast<const char*>(data), size);
  TokenMutator mutator(seed);
  const bool is_changed = mutator.Change(&text);
  if (!is_changed || text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(text.begin(), text.end(), data);
  return text.size();
}

// Inputs are small and many: with the sanitizer's own settings a third of the time went to the
// stacks of allocations and to fresh pages.
extern "C" const char* __asan_default_options() {
  return "quarantine_size_mb=8:malloc_context_size=4";
}
