#include "weights/compared_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "checkpoint/stored_parts.h"
#include "weights/tensor_digests.h"

namespace convene::weights {
namespace {

bool IsOfRoutedExpert(model::TensorRole role) {
  using enum model::TensorRole;
  switch (role) {
    case kExpertGate:
    case kExpertUp:
    case kExpertDown:
    case kExpertGateBias:
    case kExpertUpBias:
    case kExpertDownBias:
      return true;
    default:
      return false;
  }
}

std::string NameOf(const PackSource& source) {
  const std::string name = checkpoint::PartsOf(*source.tensor)[source.is_scales ? 1 : 0].name;
  if (source.bytes.size() == source.tensor_bytes) return name;
  return fmt::format("{}, bytes {} to {}", name, source.offset,
                     source.offset + source.bytes.size());
}

}  // namespace

ComparedBytes::ComparedBytes(const checkpoint::Checkpoint& checkpoint, const Share& share,
                             std::span<const PackJob> jobs) {
  std::vector<std::span<const std::byte>> ranges;
  std::set<const model::TensorBinding*> packed;
  for (const PackJob& job : jobs) {
    for (const PackSource& source : job.sources) {
      packed.insert(source.tensor);
      if (!IsOfRoutedExpert(source.tensor->role)) ranges.push_back(source.bytes);
    }
  }
  // Of ranges that lie in others, as those of single heads do, only the others.
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) {
    if (a.data() != b.data()) return std::less<>()(a.data(), b.data());
    return a.size() > b.size();
  });
  const std::byte* end = nullptr;
  for (const auto& range : ranges) {
    const std::byte* own_end = range.data() + range.size();
    if (end != nullptr && !std::less<>()(end, own_end)) continue;
    left_[range.data()] = range.size();
    end = own_end;
  }
  if (!share.with_attention) return;  // it has no vectors but those of experts
  for (const model::TensorBinding& tensor : checkpoint.spec().tensors) {
    // The head is rank 0's alone.
    const bool is_vector = !packed.contains(&tensor) && tensor.role != model::TensorRole::kHead;
    if (!is_vector || IsOfRoutedExpert(tensor.role)) continue;
    // What ranks with other layers have.
    const bool is_here =
        tensor.layer >= 0 ? share.stage.HasLayer(tensor.layer, checkpoint.spec().num_layers())
                          : share.with_embedding() || tensor.role != model::TensorRole::kEmbedding;
    if (!is_here) continue;
    const checkpoint::TensorView view = checkpoint.View(tensor);
    vectors_.push_back({.bytes = view.bytes,
                        .tensor = &tensor,
                        .offset = view.stored_offset,
                        .tensor_bytes = view.stored_bytes});
  }
}

void ComparedBytes::Add(std::span<const PackJob> batch, hardware::ThreadPool& pool) {
  std::vector<PackSource> sources;
  for (const PackJob& job : batch) {
    for (const PackSource& source : job.sources) {
      const auto found = left_.find(source.bytes.data());
      if (found == left_.end() || found->second != source.bytes.size()) continue;
      sources.push_back(source);
      left_.erase(found);
    }
  }
  Digest(sources, pool);
}

std::vector<NamedDigest> ComparedBytes::Finish(hardware::ThreadPool& pool) {
  CHECK(left_.empty(), "{} ranges were not packed", left_.size());
  Digest(vectors_, pool);
  return std::move(digests_);
}

void ComparedBytes::Digest(std::span<const PackSource> sources, hardware::ThreadPool& pool) {
  std::vector<std::span<const std::byte>> blocks;
  for (const PackSource& source : sources) blocks.push_back(source.bytes);
  const std::vector<uint64_t> digests = DigestEach(blocks, /*drop_pages=*/true, pool);
  for (size_t i = 0; i < sources.size(); ++i) digests_.push_back({NameOf(sources[i]), digests[i]});
}

}  // namespace convene::weights
