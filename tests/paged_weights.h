// Weights that lie somewhere else in each lease, and are unreadable once it has ended: who keeps a
// pointer longer does not survive it.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "weights/weight_store.h"

namespace convene {

// Each lease is a copy in pages of its own, of what was asked for and no more. What else the
// weights have lies nowhere (null).
class PagedWeights final : public weights::WeightStore, public weights::Lender {
 public:
  explicit PagedWeights(const weights::ModelWeights& weights) : WeightStore(weights) {}
  ~PagedWeights() override {
    EXPECT_TRUE(pages_.empty()) << pages_.size() << " leases never ended";
    EXPECT_GT(num_leases_, 0u);
    EXPECT_LE(most_held_, 2u);
    for (const auto& [data, size_bytes] : spent_) munmap(data, size_bytes);
  }

  Result<weights::LayerLease> LeaseLayer(weights::LayerId id, weights::LayerPart part) override {
    Page& page = NewPage(id);
    Fill(page, MatricesOf(LayerOf(id), part), MatricesOf(page.layer, part));
    return weights::LayerLease(page.layer, *this, num_leases_);
  }

  Result<weights::ExpertsLease> LeaseExperts(weights::LayerId id,
                                             std::span<const int> experts) override {
    EXPECT_FALSE(experts.empty());
    const auto of = [&](const weights::LayerWeights& layer) {
      std::vector<const kernels::PackedMatrix*> matrices;
      for (const int expert : experts) {
        matrices.push_back(&layer.moe->experts[static_cast<size_t>(expert)].up);
        matrices.push_back(&layer.moe->experts[static_cast<size_t>(expert)].down);
      }
      return matrices;
    };
    Page& page = NewPage(id);
    Fill(page, of(LayerOf(id)), of(page.layer));
    return weights::ExpertsLease(page.layer.moe->experts, *this, num_leases_);
  }

  Result<weights::MatrixLease> LeaseEmbedding(bool encoder) override {
    return LeaseMatrix(encoder ? weights_.encoder->embedding : weights_.embedding);
  }
  Result<weights::MatrixLease> LeaseHead() override { return LeaseMatrix(weights_.head); }

  void End(uint64_t lease) override {
    const auto page = pages_.find(lease);
    CHECK(page != pages_.end(), "lease {} ends twice", lease);
    // The addresses stay taken, so that no later lease has them.
    CHECK(mprotect(page->second->data, page->second->size_bytes, PROT_NONE) == 0);
    CHECK(madvise(page->second->data, page->second->size_bytes, MADV_DONTNEED) == 0);
    spent_.emplace_back(page->second->data, page->second->size_bytes);
    pages_.erase(page);
  }

 private:
  using Matrices = std::vector<const kernels::PackedMatrix*>;

  struct Page {
    std::byte* data = nullptr;
    size_t size_bytes = 0;
    weights::LayerWeights layer;
    kernels::PackedMatrix matrix;
  };

  static Matrices MatricesOf(const weights::LayerWeights& layer, weights::LayerPart part) {
    switch (part) {
      case weights::LayerPart::kProjection:
        return {&layer.qkv};
      case weights::LayerPart::kAttention: {
        Matrices matrices = {&layer.output};
        if (!layer.latent) return matrices;
        matrices.push_back(&layer.latent->query_up);
        matrices.push_back(&layer.latent->key_up);
        matrices.push_back(&layer.latent->value_up);
        for (const auto& head : layer.latent->query_in) matrices.push_back(&head);
        return matrices;
      }
      case weights::LayerPart::kCrossKeys:
        return {&layer.cross->kv};
      case weights::LayerPart::kCrossAttention:
        return {&layer.cross->query, &layer.cross->output};
      case weights::LayerPart::kRouter:
        return {&layer.moe->router};
      case weights::LayerPart::kShared:
        return {&layer.moe->shared->up, &layer.moe->shared->down};
      case weights::LayerPart::kDense:
        return {&layer.dense->up, &layer.dense->down};
    }
    return {};
  }

  Page& NewPage() {
    Page& page = *pages_.emplace(++num_leases_, std::make_unique<Page>()).first->second;
    most_held_ = std::max(most_held_, pages_.size());
    return page;
  }

  // With the layer's shapes and vectors, and no matrix.
  Page& NewPage(weights::LayerId id) {
    using enum weights::LayerPart;
    Page& page = NewPage();
    page.layer = LayerOf(id);
    std::vector<weights::LayerPart> parts = {kProjection, kAttention};
    if (page.layer.cross) parts.insert(parts.end(), {kCrossKeys, kCrossAttention});
    if (page.layer.dense) parts.push_back(kDense);
    if (page.layer.moe) parts.push_back(kRouter);
    if (page.layer.moe && page.layer.moe->shared) parts.push_back(kShared);
    for (const weights::LayerPart part : parts) {
      for (const auto* matrix : MatricesOf(page.layer, part)) DataOf(matrix) = nullptr;
    }
    if (!page.layer.moe) return page;
    for (weights::FfnWeights& expert : page.layer.moe->experts) {
      expert.up.data = nullptr;
      expert.down.data = nullptr;
    }
    return page;
  }

  // Of a page's matrix.
  static const std::byte*& DataOf(const kernels::PackedMatrix* matrix) {
    return const_cast<kernels::PackedMatrix*>(matrix)->data;
  }

  static void Fill(Page& page, const Matrices& from, const Matrices& to) {
    for (const auto* matrix : from) page.size_bytes += matrix->size_bytes();
    void* data =
        mmap(nullptr, page.size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(data != MAP_FAILED, "no page of {} bytes", page.size_bytes);
    page.data = static_cast<std::byte*>(data);
    std::byte* next = page.data;
    for (size_t i = 0; i < from.size(); ++i) {
      const size_t size_bytes = from[i]->size_bytes();
      if (size_bytes > 0) std::memcpy(next, from[i]->data, size_bytes);
      DataOf(to[i]) = next;
      next += size_bytes;
    }
    CHECK(mprotect(page.data, page.size_bytes, PROT_READ) == 0);
  }

  Result<weights::MatrixLease> LeaseMatrix(const kernels::PackedMatrix& matrix) {
    Page& page = NewPage();
    page.matrix = matrix;
    Fill(page, {&matrix}, {&page.matrix});
    return weights::MatrixLease(page.matrix, *this, num_leases_);
  }

  uint64_t num_leases_ = 0;
  size_t most_held_ = 0;
  std::map<uint64_t, std::unique_ptr<Page>> pages_;  // by lease
  std::vector<std::pair<std::byte*, size_t>> spent_;
};

}  // namespace convene
