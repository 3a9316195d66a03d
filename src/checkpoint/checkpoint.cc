#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/is_there.h"
#include "base/quote.h"
#include "checkpoint/model_files.h"
#include "model/family.h"

namespace convene::checkpoint {
namespace {

constexpr std::string_view kHeadName = "lm_head.weight";
constexpr uint64_t kMaxGenerationConfigBytes = 1 << 20;

// Buffers that old checkpoints carry along and that are computed here.
bool IsHarmless(const model::ModelSpec& spec, std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq") ||
         std::any_of(spec.ignored_prefixes.begin(), spec.ignored_prefixes.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// "a, b, c and 7 more"
std::string FirstOf(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", Quote(names[i]));
  }
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

// Of mapped files, which are in memory piece by piece meanwhile.
bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  constexpr size_t kPieceBytes = size_t{1} << 20;
  if (a.size() != b.size()) return false;
  bool same = true;
  for (size_t begin = 0; same && begin < a.size(); begin += kPieceBytes) {
    const size_t size = std::min(kPieceBytes, a.size() - begin);
    same = std::memcmp(a.data() + begin, b.data() + begin, size) == 0;
    DontNeed(a.subspan(begin, size));
    DontNeed(b.subspan(begin, size));
  }
  return same;
}

}  // namespace

Result<ModelConfiguration> ReadModelConfiguration(const std::string& directory) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(directory, ignored)) {
    return Error{fmt::format("{} is a file; weights are needed here, so give the model directory",
                             directory)};
  }
  const Result<ConfigFile> config = ReadConfigFile(directory);
  if (!config) return config.error();
  Result<model::ModelSpec> spec = model::ModelSpecFromConfig(config->json);
  if (!spec) return spec.error().At(config->path);

  const std::string generation_path =
      (std::filesystem::path(directory) / "generation_config.json").string();
  const Result<nlohmann::json> generation =
      ReadOptionalJson(generation_path, kMaxGenerationConfigBytes);
  if (!generation) return generation.error();
  const bool has_generation = IsThere(generation_path);
  Result<GenerationConfig> generation_config =
      ReadGenerationConfig(has_generation ? &*generation : nullptr, config->json);
  if (!generation_config) {
    return generation_config.error().At(has_generation ? generation_path : config->path);
  }
  return ModelConfiguration{*std::move(spec), *std::move(generation_config)};
}

Result<Checkpoint> Checkpoint::Open(const std::string& directory) {
  Result<ModelConfiguration> configuration = ReadModelConfiguration(directory);
  if (!configuration) return configuration.error();

  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  checkpoint.spec_ = std::move(configuration->spec);
  checkpoint.generation_config_ = std::move(configuration->generation_config);
  if (Status mapped = checkpoint.MapWeights(); !mapped) return mapped.error();
  for (model::TensorBinding& binding : checkpoint.spec_.tensors) {
    const bool is_stored = checkpoint.tensors_.contains(binding.name);
    if (!is_stored && !binding.fallback_name.empty()) binding.name = binding.fallback_name;
  }
  if (Status tied = checkpoint.ResolveTiedHead(); !tied) return tied.error();
  if (Status checked = checkpoint.CheckTensors(); !checked) return checked.error();
  return checkpoint;
}

Status Checkpoint::MapWeights() {
  const Result<std::vector<std::string>> names = FindWeightFiles(directory_);
  if (!names) return names.error();
  for (const std::string& name : *names) {
    Result<MappedFile> file = MappedFile::Open((std::filesystem::path(directory_) / name).string());
    if (!file) return file.error();
    Result<std::vector<StoredTensor>> tensors =
        ParseSafetensors(file->bytes(), file->bytes().size());
    if (!tensors) return tensors.error().At(file->path());
    files_.push_back(*std::move(file));
    for (StoredTensor& tensor : *tensors) {
      std::string key = tensor.name;
      const auto [other, is_new] =
          tensors_.try_emplace(std::move(key), Location{files_.size() - 1, std::move(tensor)});
      if (!is_new) {
        return Error{fmt::format("tensor {} is both in {} and in {}", Quote(other->first),
                                 files_[other->second.file].path(), files_.back().path())};
      }
    }
  }
  return {};
}

Status Checkpoint::ResolveTiedHead() {
  const auto head = tensors_.find(std::string(kHeadName));
  if (!spec_.tied_embeddings || head == tensors_.end() || IsHarmless(spec_, kHeadName)) return {};
  const auto embedding = std::find_if(
      spec_.tensors.begin(), spec_.tensors.end(),
      [](const auto& binding) { return binding.role == model::TensorRole::kEmbedding; });
  CHECK(embedding != spec_.tensors.end());
  const auto stored_embedding = tensors_.find(embedding->name);
  if (stored_embedding == tensors_.end()) return {};  // reported with whatever else is missing

  const std::span<const std::byte> a = Bytes(head->second);
  const std::span<const std::byte> b = Bytes(stored_embedding->second);
  const bool equal =
      head->second.tensor.dtype == stored_embedding->second.tensor.dtype && SameBytes(a, b);
  if (equal) {
    tensors_.erase(head);
    return {};
  }
  spec_.tied_embeddings = false;
  model::TensorBinding binding = *embedding;
  binding.role = model::TensorRole::kHead;
  binding.name = kHeadName;
  spec_.tensors.push_back(std::move(binding));
  return {};
}

Result<bool> Checkpoint::CheckPart(const StoredPart& part) const {
  const auto found = tensors_.find(part.name);
  if (found == tensors_.end()) return false;
  const StoredTensor& stored = found->second.tensor;
  const std::string& path = files_[found->second.file].path();
  if (stored.shape != part.shape) {
    return Error{fmt::format("{}: tensor {} has the shape {}, but config.json needs {}", path,
                             Quote(part.name), ShapeText(stored.shape), ShapeText(part.shape))};
  }
  const bool right = part.dtype == nullptr ? tensor::DTypeFromName(stored.dtype).has_value()
                                           : stored.dtype == part.dtype;
  if (!right) {
    return Error{fmt::format("{}: tensor {} is {}, but must be {}", path, Quote(part.name),
                             stored.dtype,
                             part.dtype == nullptr ? "F32, F16 or BF16" : part.dtype)};
  }
  return true;
}

Status Checkpoint::CheckTensors() {
  std::unordered_set<std::string> expected;
  std::vector<std::string> missing;
  for (model::TensorBinding& binding : spec_.tensors) {
    // Some matrices of an FP8 checkpoint stay as they were: what is stored counts.
    const auto found = tensors_.find(binding.name);
    if (binding.storage == model::Storage::kFp8Block && found != tensors_.end() &&
        tensor::DTypeFromName(found->second.tensor.dtype)) {
      binding.storage = model::Storage::kPlain;
    }
    for (StoredPart& part : PartsOf(binding)) {
      if (expected.contains(part.name)) continue;
      const Result<bool> is_there = CheckPart(part);
      if (!is_there) return is_there.error();
      if (!*is_there) missing.push_back(part.name);
      expected.insert(std::move(part.name));
    }
  }
  if (!missing.empty()) {
    return DataLoss(fmt::format("{} lacks {} of the {} tensors that its config.json needs: {}",
                                directory_, missing.size(), expected.size(), FirstOf(missing)));
  }

  std::vector<std::string> extra;
  for (const auto& [name, location] : tensors_) {
    if (!expected.contains(name) && !IsHarmless(spec_, name)) extra.push_back(name);
  }
  if (!extra.empty()) {
    std::sort(extra.begin(), extra.end());
    return Error{
        fmt::format("{} holds tensors for which a {} model as in its config.json has no use: {}",
                    directory_, spec_.family, FirstOf(extra))};
  }
  return {};
}

std::span<const std::byte> Checkpoint::Bytes(const Location& location) const {
  return files_[location.file].bytes().subspan(location.tensor.offset, location.tensor.size_bytes);
}

TensorView Checkpoint::View(const model::TensorBinding& binding) const {
  const std::vector<StoredPart> parts = PartsOf(binding);
  const auto find = [&](const std::string& name) -> const Location& {
    const auto found = tensors_.find(name);
    CHECK(found != tensors_.end(), "{}", name);
    return found->second;
  };
  const Location& elements = find(parts[0].name);
  const bool scaled = binding.storage != model::Storage::kPlain;
  CHECK(!(scaled && binding.transposed), "{}: scales of a transposed matrix", binding.name);
  TensorView view;
  view.dtype =
      scaled ? ElementType(binding.storage) : *tensor::DTypeFromName(elements.tensor.dtype);
  const int64_t block_rows = binding.rows * binding.row_step;
  view.rows = binding.transposed ? binding.cols : block_rows;
  view.cols = binding.transposed ? block_rows : binding.cols;
  const int64_t row_bytes = view.cols * tensor::SizeBits(view.dtype) / 8;
  const std::span<const std::byte> all = Bytes(elements);
  CHECK((binding.first_row + view.rows) * row_bytes <= std::ssize(all), "{}: rows {} to {}",
        binding.name, binding.first_row, binding.first_row + view.rows);
  view.bytes = all.subspan(binding.first_row * row_bytes, view.rows * row_bytes);
  view.stored_offset = binding.first_row * row_bytes;
  view.stored_bytes = all.size();
  if (!scaled) return view;
  const bool is_fp8 = binding.storage == model::Storage::kFp8Block;
  const Location& scales = find(parts[1].name);
  view.scales = {
      .data = Bytes(scales),
      .is_e8m0 = !is_fp8,
      .dtype = is_fp8 ? *tensor::DTypeFromName(scales.tensor.dtype) : tensor::DType::kF32,
      .block_rows = is_fp8 ? kFp8BlockSize : 1,
      .block_cols = is_fp8 ? kFp8BlockSize : kMxfp4BlockSize,
      .blocks_per_row = parts[1].shape.back()};
  return view;
}

std::vector<StoredBytes> Checkpoint::stored_tensors() const {
  std::vector<StoredBytes> tensors;
  for (const auto& [name, location] : tensors_) tensors.push_back({name, Bytes(location)});
  std::sort(tensors.begin(), tensors.end(), [](const StoredBytes& a, const StoredBytes& b) {
    return std::less<>()(a.bytes.data(), b.bytes.data());
  });
  return tensors;
}

std::vector<NamedDigest> Checkpoint::Samples() const {
  constexpr size_t kMostSampled = 256;
  constexpr size_t kSampleBytes = 64;
  std::vector<const std::pair<const std::string, Location>*> tensors;
  for (const auto& named : tensors_) tensors.push_back(&named);
  std::ranges::sort(tensors, [](const auto* a, const auto* b) { return a->first < b->first; });
  const size_t step = tensors.size() / kMostSampled + 1;
  std::vector<NamedDigest> digests;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, location] = *tensors[i];
    std::string sample =
        fmt::format("{} {}", location.tensor.dtype, ShapeText(location.tensor.shape));
    const std::span<const std::byte> bytes = Bytes(location);
    for (size_t part = 0; part < 3 && i % step == 0; ++part) {
      const size_t size = std::min(bytes.size(), kSampleBytes);
      const std::span<const std::byte> some = bytes.subspan((bytes.size() - size) / 2 * part, size);
      sample.append(reinterpret_cast<const char*>(some.data()), some.size());
      DontNeed(some);
    }
    digests.push_back({name, DigestOf(std::as_bytes(std::span(sample)))});
  }
  return digests;
}

std::string Checkpoint::FileIdentities() const {
  std::string identities;
  for (const MappedFile& file : files_) identities += file.identity() + "\n";
  return identities;
}

std::string Checkpoint::FileStates() const {
  std::string states;
  std::error_code ignored;
  for (const MappedFile& file : files_) {
    const std::filesystem::path path = std::filesystem::weakly_canonical(file.path(), ignored);
    states += fmt::format("{}: {}\n", path.string(), file.state());
  }
  return states;
}

Status Checkpoint::CheckUnchanged() const {
  for (const MappedFile& file : files_) {
    if (const Status unchanged = file.CheckUnchanged(); !unchanged) return unchanged;
  }
  return {};
}

uint64_t Checkpoint::size_bytes() const {
  uint64_t total = 0;
  for (const auto& [name, location] : tensors_) total += location.tensor.size_bytes;
  return total;
}

}  // namespace convene::checkpoint
