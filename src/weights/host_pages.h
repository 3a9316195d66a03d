// Pages in the host's memory, copied to the memory of the device beside it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory/copy_lane.h"
#include "weights/page_source.h"

namespace convene::weights {

class HostPages final : public PageSource {
 public:
  // `weights`: where pages lie, at StoredPage::offset; at full speed where they are pinned.
  HostPages(const std::byte* weights, std::unique_ptr<memory::CopyLane> lane)
      : weights_(weights), lane_(std::move(lane)) {}

  // All of them are there at the end. Error: of the lane.
  Status Read(std::span<const PageRead> reads, const std::function<void(size_t)>& done,
              const Next& next) override {
    size_t num_done = 0;
    std::vector<PageRead> pages(reads.begin(), reads.end());
    while (!pages.empty()) {
      for (const PageRead& read : pages) {
        lane_->Copy(read.target, weights_ + read.page->offset, read.page->size_bytes);
      }
      if (Status copied = lane_->Wait(); !copied) return copied;
      for (size_t i = 0; i < pages.size(); ++i) done(num_done++);
      pages.clear();
      if (const auto further = next ? next() : std::nullopt) pages.push_back(*further);
    }
    return {};
  }
  std::string Describe() const override { return "the host's memory"; }

 private:
  const std::byte* weights_;
  std::unique_ptr<memory::CopyLane> lane_;
};

}  // namespace convene::weights
