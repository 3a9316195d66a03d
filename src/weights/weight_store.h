// Where operators get the weights they read: as leases, each of which ends with its task. So
// weights may be resident, lie in pages, in a cache of experts, or somewhere else in the next step,
// and nothing above weights/ knows. How they got there is not its matter (load_weights.h).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "strategy/layout.h"
#include "weights/model_weights.h"

namespace convene::weights {

struct LayerId {
  int layer = 0;  // in its stack
  bool encoder = false;
};

// Matrices of a layer that tasks read together. Each is in one part, but for the routed experts,
// which are leased one by one.
enum class LayerPart : uint8_t {
  kProjection,      // qkv
  kAttention,       // latent, output
  kCrossKeys,       // cross: kv
  kCrossAttention,  // cross: query, output
  kRouter,
  kShared,
  kDense,
};

// The owner of leases that something has to be done for when they end.
class Lender {
 public:
  // Of a lease that it gave this number. On the thread that ends the lease.
  virtual void End(uint64_t lease) = 0;

 protected:
  ~Lender() = default;
};

// What it points to may be read until the lease ends, and no pointer into it kept.
template <typename T>
class [[nodiscard]] Lease {
 public:
  explicit Lease(const T& leased) : leased_(&leased) {}  // nothing to be done at its end
  Lease(const T& leased, Lender& lender, uint64_t number)
      : leased_(&leased), lender_(&lender), number_(number) {}
  Lease(Lease&& other) noexcept
      : leased_(other.leased_),
        lender_(std::exchange(other.lender_, nullptr)),
        number_(other.number_) {}
  Lease& operator=(Lease&&) = delete;
  ~Lease() {
    if (lender_ != nullptr) lender_->End(number_);
  }

  const T& operator*() const { return *leased_; }
  const T* operator->() const { return leased_; }

 private:
  const T* leased_;
  Lender* lender_ = nullptr;
  uint64_t number_ = 0;
};

using LayerLease = Lease<LayerWeights>;
using ExpertsLease = Lease<std::vector<FfnWeights>>;
using MatrixLease = Lease<kernels::PackedMatrix>;

class PagedWeights;
class PhasedWeights;

// Which matrices are lent in the memory of the device that computes, where a step's schedule has
// brought them; all others are lent in the host's.
enum class DeviceLoans : uint8_t {
  kNone,
  kExperts,      // routed ones (paged_weights.h)
  kFeedForward,  // those, and dense blocks (streamed_weights.h)
};

// A rank's weights. What a lease of a layer gives are the matrices of the part, and whatever the
// part, the layer's vectors (biases, sinks, norms of queries and keys). A task
// holds two leases at most. Errors: what the memory or the disk behind the store says; the task
// then fails.
class WeightStore {
 public:
  virtual ~WeightStore() = default;

  const model::ModelSpec& spec() const { return weights_.spec; }
  const WeightFormats& formats() const { return weights_.formats; }
  // The routed experts that are this rank's, now.
  virtual strategy::Part Experts(LayerId id) const {
    const MoeWeights& moe = *LayerOf(id).moe;
    return {moe.first_expert, static_cast<int>(moe.experts.size())};
  }

  // Vectors that are resident in every store and need no lease: every step reads them, and they are
  // small beside a single matrix.
  std::span<const float> AttentionNorm(LayerId id, bool cross) const {
    return cross ? LayerOf(id).cross->norm : LayerOf(id).attention_norm;
  }
  std::span<const float> FfnNorm(LayerId id) const { return LayerOf(id).ffn_norm; }
  std::span<const float> FinalNorm(bool encoder) const {
    return encoder ? weights_.encoder->final_norm : weights_.final_norm;
  }
  std::span<const float> RelativeBias(bool encoder) const {
    return encoder ? weights_.encoder->relative_bias : weights_.relative_bias;
  }

  virtual Result<LayerLease> LeaseLayer(LayerId id, LayerPart part) = 0;
  // Of the rank's experts those that a task has rows for: their places among Experts(id), as in
  // what the lease gives.
  virtual Result<ExpertsLease> LeaseExperts(LayerId id, std::span<const int> experts) = 0;
  virtual Result<MatrixLease> LeaseEmbedding(bool encoder) = 0;
  virtual Result<MatrixLease> LeaseHead() = 0;

  virtual DeviceLoans lends_on_device() const { return DeviceLoans::kNone; }

  // Where the experts of two phases are not the same: who changes them. Null: they are.
  virtual PhasedWeights* phased() { return nullptr; }
  // Where experts are paged: who reads them ahead. Null: they are not.
  virtual PagedWeights* paged() { return nullptr; }

 protected:
  // Keeps a reference. It has the shapes of all matrices and all vectors.
  explicit WeightStore(const ModelWeights& weights) : weights_(weights) {}

  const LayerWeights& LayerOf(LayerId id) const {
    return (id.encoder ? weights_.encoder->layers : weights_.layers)[static_cast<size_t>(id.layer)];
  }

  const ModelWeights& weights_;
};

// All of them stay where they are, and a lease is their address.
class ResidentWeights : public WeightStore {
 public:
  explicit ResidentWeights(const ModelWeights& weights) : WeightStore(weights) {}

  Result<LayerLease> LeaseLayer(LayerId id, LayerPart) override { return LayerLease(LayerOf(id)); }
  Result<ExpertsLease> LeaseExperts(LayerId id, std::span<const int>) override {
    return ExpertsLease(LayerOf(id).moe->experts);
  }
  Result<MatrixLease> LeaseEmbedding(bool encoder) override {
    return MatrixLease(encoder ? weights_.encoder->embedding : weights_.embedding);
  }
  Result<MatrixLease> LeaseHead() override { return MatrixLease(weights_.head); }
};

}  // namespace convene::weights
