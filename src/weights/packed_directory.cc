#include "weights/packed_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/is_there.h"
#include "base/quote.h"
#include "checkpoint/model_files.h"
#include "checkpoint/safetensors.h"
#include "kernels/pack.h"
#include "memory/page_reader.h"
#include "weights/finite_weights.h"
#include "weights/load_weights.h"
#include "weights/named_weights.h"
#include "weights/packed_file.h"
#include "weights/weight_layout.h"

namespace convene::weights {
namespace {

namespace fs = std::filesystem;
using checkpoint::StoredTensor;

constexpr uint64_t kMaxFormatsBytes = 1 << 16;
constexpr int kMostParts = 1 << 16;

std::string PathIn(const std::string& directory, const char* name) {
  return (fs::path(directory) / name).string();
}

Status CheckTensor(const StoredTensor& wanted, const std::vector<StoredTensor>& stored,
                   size_t index) {
  const bool is_there = index < stored.size() && stored[index].name == wanted.name &&
                        stored[index].dtype == wanted.dtype && stored[index].shape == wanted.shape;
  if (is_there) return {};
  return DataLoss(
      fmt::format("tensor {} should be {} of {} {}, for the model of config.json and the "
                  "formats of convene.json",
                  index, Quote(wanted.name), wanted.shape[0], wanted.dtype));
}

// Columns `slice` of an expert's up_bias, which is in the order of packed rows.
std::vector<float> SliceOfUpBias(const std::vector<float>& whole, const model::MoeSpec& moe,
                                 strategy::Part slice) {
  if (whole.empty()) return {};
  if (!moe.activation.gated()) {
    return {whole.begin() + slice.first, whole.begin() + slice.first + slice.size};
  }
  std::vector<float> bias(static_cast<size_t>(kernels::GateUpRows(slice.size)));
  std::map<std::pair<bool, int>, float> values;
  for (int row = 0; row < std::ssize(whole); ++row) {
    const kernels::GateUpRow at = kernels::GateUpRowAt(moe.intermediate_size, row);
    values[{at.is_up, at.row}] = whole[static_cast<size_t>(row)];
  }
  for (int row = 0; row < std::ssize(bias); ++row) {
    const kernels::GateUpRow at = kernels::GateUpRowAt(slice.size, row);
    if (at.row < slice.size) bias[row] = values.at({at.is_up, slice.first + at.row});
  }
  return bias;
}

// Of whole weights, which still have all experts, what the share has in decode, but for its data.
void SetDecodeExperts(const Share& share, ModelWeights& weights) {
  const Share decode = InDecode(share);
  LayOutDecode(weights.spec, share, &weights);
  for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
    if (!weights.layers[layer].moe) continue;
    const model::MoeSpec& spec = *weights.spec.layers[layer].moe;
    MoeWeights& moe = *weights.layers[layer].moe;
    const strategy::Part slice = SliceOf(spec, decode, weights.formats);
    for (size_t i = 0; i < moe.decode_experts.size(); ++i) {
      const FfnWeights& whole = moe.experts[static_cast<size_t>(moe.first_decode_expert) + i];
      moe.decode_experts[i].up_bias = SliceOfUpBias(whole.up_bias, spec, slice);
      if (decode.expert_slice == 0) moe.decode_experts[i].down_bias = whole.down_bias;
    }
  }
}

// Of the matrices and vectors of whole weights only a share's, which has some of the experts, or
// all but the experts, or some of the layers.
void KeepTensors(const Share& share, ModelWeights& weights) {
  const auto keep_experts = [&](const std::vector<model::LayerSpec>& specs,
                                std::vector<LayerWeights>& layers) {
    const auto num_layers = static_cast<int>(layers.size());
    for (int layer = 0; layer < num_layers; ++layer) {
      if (!share.stage.HasLayer(layer, num_layers)) layers[layer] = {};
      if (!layers[layer].moe) continue;
      MoeWeights& moe = *layers[layer].moe;
      const strategy::Part experts = ExpertsOf(*specs[layer].moe, share);
      moe.experts = {std::make_move_iterator(moe.experts.begin() + experts.first),
                     std::make_move_iterator(moe.experts.begin() + experts.first + experts.size)};
      moe.first_expert = experts.first;
    }
    for (LayerWeights& layer : layers) {
      if (share.with_attention) continue;
      // Of what other ranks have nothing stays, so that nothing of it is read.
      LayerWeights kept;
      kept.moe = std::move(layer.moe);
      layer = std::move(kept);
      if (!layer.moe) continue;
      layer.moe->router = {};
      layer.moe->router_bias.clear();
      layer.moe->correction_bias.clear();
      layer.moe->shared.reset();
    }
  };
  if (weights.encoder) keep_experts(weights.spec.encoder_layers, weights.encoder->layers);
  keep_experts(weights.spec.layers, weights.layers);
  if (!share.with_head()) {
    weights.head = {};
  } else {
    // Panels of the whole one, which are one behind the other.
    const strategy::Part tokens = share.head->TokensOf(weights.head.rows);
    if (weights.head.data != nullptr) {
      weights.head.data = weights.head.panel(tokens.first / kernels::kPanelRows).data;
    }
    weights.head.rows = tokens.size;
    weights.first_head_token = tokens.first;
  }
  if (!share.with_embedding()) weights.embedding = {};
}

}  // namespace

bool IsPackedDirectory(const std::string& directory) {
  return IsThere(PathIn(directory, kFormatsName));
}

Result<WeightFormats> ParsePackedFormats(const nlohmann::json& json, model::ModelSpec* spec) {
  if (!json.contains("version") || json["version"] != kPackedVersion) {
    return Error{
        fmt::format("version {} is not {}: the directory was packed by another version of "
                    "convene; run convene quantize again on the original checkpoint",
                    json.contains("version") ? json["version"].dump() : "(none)", kPackedVersion)};
  }
  const auto weights = json.find("weights");
  const auto group = json.find("group");
  const auto is_tied = json.find("tied_embeddings");
  if (weights == json.end() || !weights->is_string() || group == json.end() ||
      !group->is_number_integer() || is_tied == json.end() || !is_tied->is_boolean()) {
    return Error{"it needs weights (a name), group (a number) and tied_embeddings (true or false)"};
  }
  const auto format = kernels::WeightFormatFromName(weights->get<std::string>());
  if (!format) {
    return Error{
        fmt::format("the format {} is not known; make the directory again with convene quantize",
                    Quote(weights->get<std::string>()))};
  }
  if (*group != 32 && *group != 64 && *group != 128) {
    return Error{
        fmt::format("groups of {} columns are not 32, 64 or 128; make the directory again with "
                    "convene quantize",
                    group->dump())};
  }
  spec->tied_embeddings = is_tied->get<bool>();
  return WeightFormats{.matrices = *format, .group = group->get<int>()};
}

Result<Share> ParsePackedParts(const nlohmann::json& json) {
  const auto parts = json.find("parts");
  if (parts == json.end()) return Share{};
  Share share;
  struct Member {
    const char* part_name;
    const char* count_name;
    int* part;
    int* count;
  };
  for (const Member& member :
       {Member{"attention_part", "attention_parts", &share.attention_part, &share.attention_parts},
        Member{"expert_slice", "expert_slices", &share.expert_slice, &share.expert_slices}}) {
    const auto number = [&](const char* name, int64_t least, int64_t most, int* value) {
      const auto found = parts->is_object() ? parts->find(name) : parts->end();
      if (!parts->is_object() || found == parts->end() || !found->is_number_integer()) return false;
      const auto read = found->get<int64_t>();
      if (read < least || read > most) return false;
      *value = static_cast<int>(read);
      return true;
    };
    if (!number(member.count_name, 1, kMostParts, member.count) ||
        !number(member.part_name, 0, *member.count - 1, member.part)) {
      return Error{
          fmt::format("parts needs {} (1 to {}) and {} (less than that); remove the directory, it "
                      "is made again",
                      member.count_name, kMostParts, member.part_name)};
    }
  }
  return share;
}

Result<std::vector<StoredTensor>> FindPackedWeights(const model::ModelSpec& spec,
                                                    const WeightFormats& formats,
                                                    std::span<const std::byte> prefix,
                                                    uint64_t file_size, const Share& parts) {
  Result<std::vector<StoredTensor>> stored = checkpoint::ParseSafetensors(prefix, file_size);
  if (!stored) return stored.error();
  ModelWeights expected;
  LayOut(spec, formats, nullptr, &expected, parts);
  size_t index = 0;
  const std::vector<NamedMatrix> matrices = Matrices(expected);
  const std::vector<uint64_t> stored_bytes = StoredBytesOf(matrices);
  for (; index < matrices.size(); ++index) {
    const StoredTensor wanted = TensorOf(matrices[index], stored_bytes[index]);
    if (Status checked = CheckTensor(wanted, *stored, index); !checked) return checked.error();
    (*stored)[index].size_bytes = matrices[index].matrix->size_bytes();
  }
  for (const NamedVector& named : Vectors(expected, parts)) {
    if (Status checked = CheckTensor(TensorOf(named), *stored, index++); !checked) {
      return checked.error();
    }
  }
  if (Status checked = CheckTensor(ChecksumsOf(index), *stored, index); !checked) {
    return checked.error();
  }
  ++index;
  if (index != stored->size()) {
    return DataLoss(fmt::format("{} tensors where {} are expected", stored->size(), index));
  }
  if (stored->front().offset % memory::kDirectBlockBytes != 0) {
    return DataLoss("the matrices do not begin at a multiple of 4,096 bytes");
  }
  return stored;
}

Result<PackedDirectory> OpenPackedDirectory(const std::string& directory) {
  Result<checkpoint::ModelConfiguration> configuration =
      checkpoint::ReadModelConfiguration(directory);
  if (!configuration) return configuration.error();
  const std::string formats_path = PathIn(directory, kFormatsName);
  const Result<nlohmann::json> json = checkpoint::ReadOptionalJson(formats_path, kMaxFormatsBytes);
  if (!json) return json.error();
  const Result<WeightFormats> formats = ParsePackedFormats(*json, &configuration->spec);
  if (!formats) return formats.error().At(formats_path);
  const Result<Share> parts = ParsePackedParts(*json);
  if (!parts) return parts.error().At(formats_path);
  const Result<model::ModelSpec> stored = LocalSpec(configuration->spec, *parts, *formats);
  if (!stored) return stored.error().At(formats_path);

  Result<checkpoint::MappedFile> file =
      checkpoint::MappedFile::Open(PathIn(directory, kWeightsName));
  if (!file) return file.error();
  checkpoint::AskForHugePages(file->bytes());  // before any page of it is read
  Result<std::vector<StoredTensor>> tensors =
      FindPackedWeights(*stored, *formats, file->bytes(), file->bytes().size(), *parts);
  if (!tensors) return tensors.error().At(file->path());
  const StoredTensor stored_checksums = std::move(tensors->back());
  tensors->pop_back();
  std::vector<NamedDigest> checksums;
  for (const StoredTensor& tensor : *tensors) {
    NamedDigest& checksum = checksums.emplace_back(tensor.name);
    std::memcpy(&checksum.digest,
                &file->bytes()[stored_checksums.offset + (checksums.size() - 1) * sizeof(uint64_t)],
                sizeof(uint64_t));
  }
  return PackedDirectory{
      *std::move(configuration), *formats, *parts, *std::move(file), *std::move(tensors),
      std::move(checksums)};
}

Status VerifyPacked(const PackedDirectory& directory, const std::optional<Share>& share,
                    hardware::ThreadPool& pool, const LoadProgress& progress) {
  std::set<std::string> names;  // of matrices; norms and biases are on all ranks
  ModelWeights shapes;
  if (share) {
    const Result<model::ModelSpec> spec =
        LocalSpec(directory.configuration.spec, *share, directory.formats);
    if (!spec) return spec.error();
    LayOut(*spec, directory.formats, nullptr, &shapes, *share);
    for (const NamedMatrix& named : Matrices(shapes)) names.insert(named.name);
    if (shapes.embedding_is_head() && names.contains("embedding")) names.insert("head");
  }
  std::vector<NamedBytes> chosen;
  std::vector<NamedDigest> expected;
  for (size_t i = 0; i < directory.tensors.size(); ++i) {
    const StoredTensor& tensor = directory.tensors[i];
    if (share && tensor.dtype == "U8" && !names.contains(tensor.name)) continue;
    chosen.push_back(
        {tensor.name, directory.file.bytes().subspan(tensor.offset, tensor.size_bytes)});
    expected.push_back(directory.checksums[i]);
  }
  const std::vector<NamedDigest> found =
      DigestTensors(chosen, /*drop_pages=*/!share.has_value(), pool, progress);
  const auto [differs, wanted] = std::mismatch(found.begin(), found.end(), expected.begin());
  if (differs == found.end()) return {};
  return Damaged(directory, *wanted, differs->digest);
}

Error Damaged(const PackedDirectory& directory, const NamedDigest& stored, uint64_t found) {
  return DataLoss(fmt::format(
      "tensor {} in {} is damaged: its checksum is {:016x}, and {:016x} was stored; copy the file "
      "again, or make the directory again with convene quantize (one below --page-dir is made "
      "again once it is removed)",
      Quote(stored.name), directory.file.path(), found, stored.digest));
}

Status CheckWholeMatrices(const Share& share) {
  if (share.attention_parts == 1 && share.expert_slices == 1) return {};
  return Error{
      "the weights of this directory are packed as whole matrices, which cannot be divided among "
      "ranks; use the original checkpoint, or a layout that divides by whole sequences and "
      "experts only, such as attention=dp2,experts=ep2"};
}

Status CheckParts(const Share& parts, const Share& share) {
  if (parts == Share{}) return CheckWholeMatrices(share);
  if (PartsOf(share) == parts && !share.decode) return {};
  return Error{fmt::format(
      "the weights of this directory are part {} of {} of the heads and part {} of {} of each "
      "expert, which a rank of such a layout has made for itself; use the original checkpoint",
      parts.attention_part + 1, parts.attention_parts, parts.expert_slice + 1,
      parts.expert_slices)};
}

Status KeepShare(const model::ModelSpec& whole, const Share& share, ModelWeights& weights) {
  Result<model::ModelSpec> spec = LocalSpec(whole, share, weights.formats);
  if (!spec) return spec.error();
  if (const auto widest = WidestSpec(whole, share, weights.formats); !widest) {
    return widest.error();
  }
  if (share.decode) SetDecodeExperts(share, weights);
  KeepTensors(share, weights);
  weights.spec = *std::move(spec);
  return {};
}

Result<ModelWeights> MapWeights(PackedDirectory directory, memory::Ledger& ledger,
                                const Share& share) {
  if (const Status fits = CheckParts(directory.parts, share); !fits) return fits.error();
  const model::ModelSpec& whole = directory.configuration.spec;
  const Result<model::ModelSpec> spec = LocalSpec(whole, share, directory.formats);
  if (!spec) return spec.error();
  const Result<model::ModelSpec> stored_spec = LocalSpec(whole, directory.parts, directory.formats);
  if (!stored_spec) return stored_spec.error();
  const ExpertRooms rooms = RoomsOf(whole, directory.formats, share);
  Result<memory::Reservation> reserved = ledger.Reserve(
      memory::Use::kWeights, PackedSizeBytes(*spec, directory.formats, share, rooms));
  if (!reserved) return reserved.error();
  ModelWeights weights;
  weights.storage = *std::move(reserved);
  weights.mapped = std::move(directory.file);
  const std::byte* const file = weights.mapped->bytes().data();
  // As it lies in the file: all of it.
  LayOut(*stored_spec, directory.formats, nullptr, &weights, directory.parts);
  std::vector<const std::byte*> places;
  for (size_t i = 0; i < Matrices(weights).size(); ++i) {
    places.push_back(file + directory.tensors[i].offset);
  }
  SetPlaces(places, &weights);
  const StoredTensor& last = directory.tensors[places.size() - 1];
  weights.bytes = {places.front(), file + last.offset + last.size_bytes};
  const StoredTensor* stored = &directory.tensors[places.size()];
  for (const NamedVector& named : Vectors(weights, directory.parts)) {
    named.values->resize(named.size);
    std::memcpy(named.values->data(), file + (stored++)->offset, named.size * sizeof(float));
  }
  if (const Status finite = CheckVectors(weights); !finite) return finite.error();
  if (const Status kept = KeepShare(whole, share, weights); !kept) return kept.error();
  weights.rooms = rooms;
  return weights;
}

}  // namespace convene::weights
