#include "checkpoint/synthesize.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/start_thread.h"
#include "checkpoint/model_files.h"
#include "checkpoint/output_directory.h"
#include "checkpoint/output_file.h"
#include "checkpoint/random_weights.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/synthetic_tensor.h"
#include "model/family.h"

namespace convene::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

using Shard = std::vector<SyntheticTensor>;

// The stored tensors in the order of the computation, cut into shards.
std::vector<Shard> PlanShards(const model::ModelSpec& spec, const SynthesisOptions& options) {
  std::vector<Shard> shards(1);
  std::unordered_set<std::string_view> seen;
  const RouterPreference preference = {options.router_shares};
  uint64_t shard_bytes = 0;
  for (const model::TensorBinding& binding : spec.tensors) {
    // Several bindings may be parts of one tensor (dbrx); their scales are the same.
    if (!seen.insert(binding.name).second) continue;
    for (SyntheticTensor& tensor :
         SyntheticTensors(spec, binding, options.embedding_std, preference)) {
      if (!shards.back().empty() &&
          shard_bytes + tensor.stored.size_bytes > options.max_shard_bytes) {
        shards.emplace_back();
        shard_bytes = 0;
      }
      shard_bytes += tensor.stored.size_bytes;
      shards.back().push_back(std::move(tensor));
    }
  }
  return shards;
}

std::string ShardName(size_t shard_idx, size_t num_shards) {
  if (num_shards == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard_idx + 1, num_shards);
}

// A run of elements of one tensor, as much as a thread generates and writes at a time.
struct Part {
  const SyntheticTensor* tensor = nullptr;
  int64_t first = 0;
  int64_t count = 0;
  uint64_t file_offset = 0;
};
constexpr int64_t kPartElements = 32 * kRandomBlock;  // 4 MiB of bf16

uint64_t PartBytes(const Part& part) {
  return static_cast<uint64_t>(part.count) * BitsOf(part.tensor->encoding) / 8;
}

std::vector<Part> PartsOf(const Shard& shard, uint64_t data_start) {
  std::vector<Part> parts;
  uint64_t offset = data_start;
  for (const SyntheticTensor& tensor : shard) {
    for (int64_t first = 0; first < tensor.num_elements; first += kPartElements) {
      const int64_t count = std::min(kPartElements, tensor.num_elements - first);
      parts.push_back({&tensor, first, count, offset});
      offset += PartBytes(parts.back());
    }
  }
  return parts;
}

// Writes one checkpoint's shards with several threads.
class ShardWriter {
 public:
  ShardWriter(const SynthesisOptions& options, uint64_t total_bytes,
              const SynthesisProgress& progress)
      : options_(options), total_bytes_(total_bytes), progress_(progress) {}

  Status Write(const std::string& path, const Shard& shard) {
    std::vector<StoredTensor> stored;
    for (const SyntheticTensor& tensor : shard) stored.push_back(tensor.stored);
    const std::string prefix = SafetensorsPrefix(stored);
    const std::vector<Part> parts = PartsOf(shard, prefix.size());
    const Part& last = parts.back();
    Result<OutputFile> file = OutputFile::Create(path, last.file_offset + PartBytes(last));
    if (!file) return file.error();
    if (Status written = file->WriteAt(0, std::as_bytes(std::span(prefix))); !written) {
      return written;
    }
    if (Status written = WriteParts(*file, parts); !written) return written;
    return file->Finish();
  }

 private:
  Status WriteParts(const OutputFile& file, const std::vector<Part>& parts) {
    std::atomic<size_t> next = 0;
    std::mutex mutex;
    std::optional<Error> first_error;
    const auto work = [&](bool reports) {
      Buffers buffers;
      for (size_t i = next++; i < parts.size(); i = next++) {
        if (Status written = WritePart(file, parts[i], buffers); !written) {
          const std::lock_guard lock(mutex);
          if (!first_error) first_error = written.error();
          next = parts.size();
          return;
        }
        if (reports && progress_) progress_(done_bytes_, total_bytes_);
      }
    };
    {
      std::vector<std::jthread> threads;
      for (int i = 1; i < options_.num_threads; ++i) {
        Result<std::jthread> thread =
            StartThread(fmt::format("thread {} of {}", i + 1, options_.num_threads),
                        [&] { work(/*reports=*/false); });
        if (!thread) {
          next = parts.size();
          return thread.error();
        }
        threads.push_back(*std::move(thread));
      }
      work(/*reports=*/true);
    }
    if (first_error) return *first_error;
    if (progress_) progress_(done_bytes_, total_bytes_);
    return {};
  }

  // Of one thread.
  struct Buffers {
    std::vector<tensor::Bf16> numbers = std::vector<tensor::Bf16>(kPartElements);
    std::vector<std::byte> bytes;
  };

  Status WritePart(const OutputFile& file, const Part& part, Buffers& buffers) {
    const std::span<tensor::Bf16> elements(buffers.numbers.data(), static_cast<size_t>(part.count));
    const Fill& fill = part.tensor->fill;
    if (fill.std > 0) {
      FillNormal(RandomKey(options_.seed, part.tensor->stored.name), part.first, fill.std,
                 elements);
    } else {
      std::fill(elements.begin(), elements.end(), tensor::Bf16FromFloat(fill.constant));
    }
    FillFirstOfRows(fill, part.first, elements);
    const std::span<const std::byte> bytes = Encode(*part.tensor, elements, buffers.bytes);
    if (Status written = file.WriteAt(part.file_offset, bytes); !written) return written;
    done_bytes_ += bytes.size();
    return {};
  }

  const SynthesisOptions& options_;
  const uint64_t total_bytes_;
  const SynthesisProgress& progress_;
  std::atomic<uint64_t> done_bytes_ = 0;
};

Status WriteIndex(const std::string& path, const std::vector<Shard>& shards, uint64_t total_bytes) {
  json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", json::object()}};
  json& weight_map = index["weight_map"];
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const SyntheticTensor& tensor : shards[i]) {
      weight_map[tensor.stored.name] = ShardName(i, shards.size());
    }
  }
  return WriteWholeFile(path, index.dump(2) + "\n");
}

Status CheckShares(const std::vector<std::vector<double>>& shares, const model::ModelSpec& spec) {
  if (shares.empty()) return {};
  if (std::ssize(shares) != spec.num_layers()) {
    return Error{fmt::format("the routers' counts are of {} layers, the model has {}",
                             shares.size(), spec.num_layers())};
  }
  for (size_t layer = 0; layer < shares.size(); ++layer) {
    const auto& moe = spec.layers[layer].moe;
    const size_t experts = moe ? static_cast<size_t>(moe->num_experts) : 0;
    if (shares[layer].size() == experts) continue;
    return Error{fmt::format("the routers' counts of layer {} are of {} experts, the model has {}",
                             layer, shares[layer].size(), experts)};
  }
  return {};
}

}  // namespace

Result<SynthesisSummary> Synthesize(const std::string& config_path, const std::string& directory,
                                    const SynthesisOptions& options,
                                    const SynthesisProgress& progress) {
  Result<ConfigFile> config = ReadConfigFile(config_path);
  if (!config) return config.error();
  if (options.num_layers > 0) model::SetNumLayers(config->json, options.num_layers);
  const Result<model::ModelSpec> spec = model::ModelSpecFromConfig(config->json);
  if (!spec) return spec.error().At(config->path);
  if (Status shares = CheckShares(options.router_shares, *spec); !shares) return shares.error();
  config->json[config->json.contains("dtype") ? "dtype" : "torch_dtype"] = "bfloat16";

  const std::vector<Shard> shards = PlanShards(*spec, options);
  SynthesisSummary summary = {.num_shards = static_cast<int>(shards.size())};
  for (const Shard& shard : shards) {
    summary.num_tensors += std::ssize(shard);
    for (const SyntheticTensor& tensor : shard) summary.size_bytes += tensor.stored.size_bytes;
  }

  Result<OutputDirectory> output = OutputDirectory::Prepare(directory);
  if (!output) return output.error();
  if (Status room =
          output->CheckRoom(summary.size_bytes, "choose another directory or fewer layers");
      !room)
    return room.error();
  ShardWriter writer(options, summary.size_bytes, progress);
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string path = output->Add(ShardName(i, shards.size()));
    if (Status written = writer.Write(path, shards[i]); !written) return written.error();
  }
  if (shards.size() > 1) {
    const std::string path = output->Add("model.safetensors.index.json");
    if (Status written = WriteIndex(path, shards, summary.size_bytes); !written) {
      return written.error();
    }
  }
  const std::string path = output->Add("config.json");
  if (Status written = WriteWholeFile(path, config->json.dump(2) + "\n"); !written) {
    return written.error();
  }
  output->Keep();
  return summary;
}

}  // namespace convene::checkpoint
