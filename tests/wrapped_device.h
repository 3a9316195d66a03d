// A device that does what another one does: tests change a part of it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "device/device.h"

namespace convene {

class WrappedDevice : public device::Device {
 public:
  explicit WrappedDevice(std::unique_ptr<device::Device> inner) : inner_(std::move(inner)) {}

  const char* name() const override { return inner_->name(); }
  memory::TierKind memory() const override { return inner_->memory(); }
  const std::vector<int>& lane_cpus() const override { return inner_->lane_cpus(); }
  hardware::ThreadPool* host_threads() const override { return inner_->host_threads(); }
  Status Supports(const model::ModelSpec& spec,
                  kernels::ActivationFormat activations) const override {
    return inner_->Supports(spec, activations);
  }
  Result<std::unique_ptr<device::KvCache>> CreateKvCache(const model::ModelSpec& spec,
                                                         kernels::KvFormat format, int num_blocks,
                                                         memory::Ledger& ledger) override {
    return inner_->CreateKvCache(spec, format, num_blocks, ledger);
  }
  Result<std::unique_ptr<device::FrameMemory>> CreateFrameMemory(
      const model::ModelSpec& spec, kernels::ActivationFormat activations,
      const device::FrameShape& shape, memory::Ledger& ledger) override {
    return inner_->CreateFrameMemory(spec, activations, shape, ledger);
  }
  Result<std::unique_ptr<device::Stream>> CreateStream(weights::WeightStore& weights,
                                                       device::KvCache& cache,
                                                       const device::StreamOptions& options,
                                                       memory::Ledger& ledger) override {
    return inner_->CreateStream(weights, cache, options, ledger);
  }
  std::unique_ptr<device::Event> CreateEvent() override { return inner_->CreateEvent(); }
  Result<std::unique_ptr<memory::CopyLane>> CreateCopyLane() override {
    return inner_->CreateCopyLane();
  }

 private:
  std::unique_ptr<device::Device> inner_;
};

}  // namespace convene
