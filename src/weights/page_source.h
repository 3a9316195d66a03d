// Where pages of experts lie that are not in a buffer of paged_weights.h, and how they get there: a
// file (file_pages.h), or the host's memory beside a GPU (host_pages.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "weights/page_index.h"

namespace convene::weights {

struct PageRead {
  const StoredPage* page = nullptr;
  std::byte* target = nullptr;  // memory::DirectBytes(page->size_bytes)
};

class PageSource {
 public:
  virtual ~PageSource() = default;

  // Gives one more page to be read, or nothing if there are no more.
  using Next = std::function<std::optional<PageRead>()>;

  // Brings all of them to their targets, in this order as far as it can be kept, and calls `done`
  // with the index of each that is there while others are under way. `next`, if there is one, is
  // asked for further pages (their indices go on) before what is under way comes to its end. One
  // thread at a time. After an error nothing is under way, and targets whose `done` was not called
  // hold anything. Error: what failed, and of which tensors.
  virtual Status Read(std::span<const PageRead> reads, const std::function<void(size_t)>& done,
                      const Next& next) = 0;
  // "/models/x/convene.safetensors (io_uring, ...)": where pages come from, and how.
  virtual std::string Describe() const = 0;
};

}  // namespace convene::weights
