// What the tests against Hugging Face transformers share: reading fixtures, the formats to try, and
// how far roundings may lead.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/enumerators_test.h"
#include "checkpoint/checkpoint.h"
#include "device/cpu/cpu_device.h"
#include "memory/ledger.h"
#include "runtime/formats.h"
#include "runtime/transformer.h"
#include "weights/load_weights.h"
#include "weights/phased_weights.h"
#include "weights/share.h"
#include "weights/weight_store.h"

namespace convene {

// Elements of a .npy file that numpy.save wrote; T must be its dtype.
template <typename T>
std::vector<T> ReadNpy(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  EXPECT_GT(bytes.size(), 10u) << path;
  EXPECT_NE(bytes.find(sizeof(T) == 4 && std::is_floating_point_v<T> ? "<f4" : "<i4"),
            std::string::npos)
      << path;
  const size_t header = 10 + static_cast<uint8_t>(bytes[8]) + 256u * static_cast<uint8_t>(bytes[9]);
  std::vector<T> values((bytes.size() - header) / sizeof(T));
  std::memcpy(values.data(), bytes.data() + header, values.size() * sizeof(T));
  return values;
}

// Formats that take different ways through the kernels.
inline std::vector<runtime::Formats> EveryFormat() {
  std::vector<runtime::Formats> all;
  for (const kernels::WeightFormat weights : kEvery<kernels::WeightFormat>) {
    all.push_back(runtime::DefaultFormats(weights));
  }
  runtime::Formats int8_bf16 = runtime::DefaultFormats(kernels::WeightFormat::kInt8);
  int8_bf16.activations = kernels::ActivationFormat::kBf16;
  int8_bf16.kv = kernels::KvFormat::kInt8;
  all.push_back(int8_bf16);
  runtime::Formats int4_128 = runtime::DefaultFormats(kernels::WeightFormat::kInt4);
  int4_128.weights.group = 128;
  int4_128.kv = kernels::KvFormat::kInt8;
  all.push_back(int4_128);
  // A kind that none of them has would be tried nowhere.
  for (const kernels::ActivationFormat format : kEvery<kernels::ActivationFormat>) {
    CHECK(std::ranges::count(all, format, &runtime::Formats::activations) > 0, "{}",
          static_cast<int>(format));
  }
  for (const kernels::KvFormat format : kEvery<kernels::KvFormat>) {
    CHECK(std::ranges::count(all, format, &runtime::Formats::kv) > 0, "{}",
          static_cast<int>(format));
  }
  return all;
}

inline std::string Describe(const runtime::Formats& formats) {
  return fmt::format("{} weights (group {}), activations of {} bytes, cache of {}",
                     Name(formats.weights.matrices), formats.weights.group,
                     kernels::ElementBytes(formats.activations),
                     kernels::KvElementBytes(formats.kv));
}

inline void ExpectDone(const Status& done) { EXPECT_TRUE(done.ok()) << done.error().message; }

inline double NormOfDifference(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return std::sqrt(sum);
}

inline double NormOf(std::span<const float> a) {
  double sum = 0;
  for (const float value : a) sum += double{value} * value;
  return std::sqrt(sum);
}

// What bf16 activations may do to a position's logits, relative to their norm: each layer rounds
// seven times (norm, q, k or v, probabilities, attention output, norm, intermediate; the head once
// more), each with unit roundoff 2^-9; independent errors add as squares; four standard deviations.
inline double Bf16Bound(int num_layers) {
  return 4 * std::ldexp(1.0, -9) * std::sqrt(7.0 * num_layers + 1);
}

using StoreOf = std::function<std::unique_ptr<weights::WeightStore>(weights::ModelWeights&)>;

using DeviceOf = std::function<std::unique_ptr<device::Device>(const kernels::KernelSet&,
                                                               hardware::ThreadPool&)>;

// A fixture loaded in given formats, with a thread pool of its own.
class LoadedFixture {
 public:
  // `options` without formats. `store_of`: who leases the weights, if they are not just resident;
  // `device_of`: what computes.
  LoadedFixture(const checkpoint::Checkpoint& checkpoint, const runtime::Formats& formats,
                const kernels::KernelSet& kernels, int num_threads,
                runtime::TransformerOptions options, const weights::Share& share = {},
                const StoreOf& store_of = {}, const DeviceOf& device_of = device::MakeCpuDevice)
      : pool_(std::vector<int>(num_threads, 0)) {
    auto weights = weights::LoadWeights(checkpoint, formats.weights, share,
                                        hardware::NumaPolicy::kAuto, pool_, ledger_, {});
    CHECK(weights.ok(), "{}", weights.error().message);
    weights_ = std::make_unique<weights::ModelWeights>(std::move(*weights));
    if (share.decode) {
      store_ = std::make_unique<weights::PhasedWeights>(*weights_, checkpoint.spec(), share);
    } else if (store_of) {
      store_ = store_of(*weights_);
    } else {
      store_ = std::make_unique<weights::ResidentWeights>(*weights_);
    }
    options.activations = formats.activations;
    options.kv = formats.kv;
    device_ = device_of(kernels, pool_);
    const bool is_gpu = device_->memory() == memory::TierKind::kDevice;
    auto transformer =
        runtime::Transformer::Create(*store_, *device_, options, is_gpu ? device_ledger_ : ledger_);
    CHECK(transformer.ok(), "{}", transformer.error().message);
    transformer_ = std::make_unique<runtime::Transformer>(std::move(*transformer));
  }

  const model::ModelSpec& spec() const { return weights_->spec; }
  int vocab_size() const { return spec().vocab_size; }
  runtime::Transformer& transformer() { return *transformer_; }
  weights::WeightStore& store() { return *store_; }

 private:
  hardware::ThreadPool pool_;
  memory::Ledger ledger_;
  memory::Ledger device_ledger_{memory::Tier{.kind = memory::TierKind::kDevice}};  // of a GPU
  std::unique_ptr<weights::ModelWeights> weights_;
  std::unique_ptr<weights::WeightStore> store_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<runtime::Transformer> transformer_;
};

}  // namespace convene
