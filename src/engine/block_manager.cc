#include "engine/block_manager.h"

#include <algorithm>

#include "base/check.h"

namespace convene::engine {

BlockManager::BlockManager(int num_blocks) : blocks_(static_cast<size_t>(num_blocks)) {
  CHECK(num_blocks > 0, "{} blocks", num_blocks);
  // Taken from the back: low numbers first, so that a short run touches little of the cache.
  for (int32_t block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

template <typename F>
void BlockManager::ForPrefix(std::span<const int32_t> tokens, F&& visit) const {
  uint64_t parent = 0;
  for (; tokens.size() >= device::kKvBlockTokens; tokens = tokens.subspan(device::kKvBlockTokens)) {
    const auto entry = index_.find(MakeContents(parent, tokens.first(device::kKvBlockTokens)));
    if (entry == index_.end()) break;
    visit(entry->second.block);
    parent = entry->second.number;
  }
}

std::vector<int32_t> BlockManager::TakePrefix(std::span<const int32_t> tokens) {
  std::vector<int32_t> taken;
  ForPrefix(tokens, [&](int32_t block) {
    Hold(block);
    taken.push_back(block);
  });
  return taken;
}

int BlockManager::CountPrefix(std::span<const int32_t> tokens) const {
  int count = 0;
  ForPrefix(tokens, [&](int32_t) { ++count; });
  return count;
}

int BlockManager::CountHeldPrefix(std::span<const int32_t> tokens) const {
  int count = 0;
  ForPrefix(tokens, [&](int32_t block) {
    if (blocks_[static_cast<size_t>(block)].num_holders > 0) ++count;
  });
  return count;
}

std::optional<int32_t> BlockManager::Allocate() {
  int32_t block_idx = 0;
  if (!free_.empty()) {
    block_idx = free_.back();
    free_.pop_back();
  } else if (!unused_.empty()) {
    block_idx = unused_.front();
    unused_.pop_front();
    Block& evicted = blocks_[static_cast<size_t>(block_idx)];
    index_.erase(index_.find(*evicted.indexed));
    evicted.indexed = nullptr;
  } else {
    return std::nullopt;
  }
  Block& block = blocks_[static_cast<size_t>(block_idx)];
  block.num_holders = 1;
  block.contents = 0;
  return block_idx;
}

void BlockManager::Publish(std::span<const int32_t> blocks, size_t block_idx,
                           std::span<const int32_t> tokens) {
  uint64_t parent = 0;
  if (block_idx > 0) {
    parent = blocks_[static_cast<size_t>(blocks[block_idx - 1])].contents;
    CHECK(parent != 0, "block {} of a sequence published before its predecessor", block_idx);
  }
  Block& block = blocks_[static_cast<size_t>(blocks[block_idx])];
  CHECK(block.num_holders > 0 && block.contents == 0, "block {} holds contents {}", block_idx,
        block.contents);
  const auto [entry, is_new] = index_.try_emplace(MakeContents(parent, tokens));
  if (is_new) {
    entry->second = {.block = blocks[block_idx], .number = ++last_number_};
    block.indexed = &entry->first;
  }
  // Where another block has the same contents, ours stays unnamed, but its successors join theirs.
  block.contents = entry->second.number;
}

void BlockManager::Release(std::span<const int32_t> blocks) {
  // The last block first: a block is of use only while all before it are there.
  for (size_t i = blocks.size(); i-- > 0;) {
    Block& block = blocks_[static_cast<size_t>(blocks[i])];
    CHECK(block.num_holders > 0, "block {} released by nobody", blocks[i]);
    if (--block.num_holders > 0) continue;
    if (block.indexed != nullptr) {
      block.unused_at = unused_.insert(unused_.end(), blocks[i]);
    } else {
      free_.push_back(blocks[i]);
    }
  }
}

void BlockManager::Hold(int32_t block_idx) {
  Block& block = blocks_[static_cast<size_t>(block_idx)];
  if (block.num_holders++ == 0) unused_.erase(block.unused_at);
}

BlockManager::Contents BlockManager::MakeContents(uint64_t parent,
                                                  std::span<const int32_t> tokens) {
  CHECK(tokens.size() == device::kKvBlockTokens, "{} tokens in a block", tokens.size());
  Contents contents{.parent = parent};
  std::copy(tokens.begin(), tokens.end(), contents.tokens.begin());
  return contents;
}

// FNV-1a over 32-bit words.
size_t BlockManager::HashContents::operator()(const Contents& contents) const {
  uint64_t hash = 0xcbf29ce484222325u ^ contents.parent;
  for (const int32_t token : contents.tokens) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x100000001b3u;
  }
  return static_cast<size_t>(hash ^ (hash >> 32));
}

}  // namespace convene::engine
