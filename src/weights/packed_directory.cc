#include "weights/packed_directory.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "checkpoint/output_directory.h"
#include "checkpoint/output_file.h"
#include "checkpoint/safetensors.h"
#include "weights/weight_layout.h"

namespace convene::weights {
namespace {

namespace fs = std::filesystem;
using checkpoint::StoredTensor;
using model::TensorRole;

constexpr const char* kFormatsName = "convene.json";
constexpr const char* kWeightsName = "convene.safetensors";
constexpr int kVersion = 2;
constexpr uint64_t kMaxFormatsBytes = 1 << 16;

std::string PathIn(const std::string& directory, const char* name) {
  return (fs::path(directory) / name).string();
}

struct NamedMatrix {
  std::string name;
  const kernels::PackedMatrix* matrix;
};

// In the order of weight_layout.h.
std::vector<NamedMatrix> Matrices(const ModelWeights& weights) {
  std::vector<NamedMatrix> all;
  const auto add = [&](std::string name, const kernels::PackedMatrix& matrix) {
    all.push_back({std::move(name), &matrix});
  };
  const auto add_ffn = [&](const std::string& name, const FfnWeights& ffn) {
    add(name + ".up", ffn.up);
    add(name + ".down", ffn.down);
  };
  const auto add_latent = [&](const std::string& prefix, const LatentWeights& latent) {
    if (latent.query_up.rows > 0) add(prefix + "query_up", latent.query_up);
    add(prefix + "key_up", latent.key_up);
    add(prefix + "value_up", latent.value_up);
    for (size_t head = 0; head < latent.query_in.size(); ++head) {
      add(fmt::format("{}query_in.{}", prefix, head), latent.query_in[head]);
    }
  };
  add("head", weights.head);
  if (!weights.embedding_is_head()) add("embedding", weights.embedding);
  const auto add_layer = [&](const LayerWeights& layer, const std::string& prefix) {
    add(prefix + "qkv", layer.qkv);
    if (layer.latent) add_latent(prefix, *layer.latent);
    add(prefix + "output", layer.output);
    if (layer.cross) {
      add(prefix + "cross_query", layer.cross->query);
      add(prefix + "cross_kv", layer.cross->kv);
      add(prefix + "cross_output", layer.cross->output);
    }
    if (layer.dense) add_ffn(prefix + "dense", *layer.dense);
    if (!layer.moe) return;
    add(prefix + "router", layer.moe->router);
    for (size_t expert = 0; expert < layer.moe->experts.size(); ++expert) {
      add_ffn(fmt::format("{}experts.{}", prefix, expert), layer.moe->experts[expert]);
    }
    if (layer.moe->shared) add_ffn(prefix + "shared", *layer.moe->shared);
  };
  if (weights.encoder) {
    if (!weights.spec.tied_embeddings) add("encoder.embedding", weights.encoder->embedding);
    for (size_t i = 0; i < weights.encoder->layers.size(); ++i) {
      add_layer(weights.encoder->layers[i], fmt::format("encoder.layers.{}.", i));
    }
  }
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    add_layer(weights.layers[i], fmt::format("layers.{}.", i));
  }
  return all;
}

struct NamedVector {
  std::string name;
  std::vector<float>* values;
  int64_t size;  // as the model's tensors say
};

// Lists the norms and biases of a model; those that it does not have are left out.
class VectorList {
 public:
  explicit VectorList(const model::ModelSpec& spec) : spec_(spec) {}

  std::vector<NamedVector>& all() { return all_; }

  void AddStack(const std::vector<model::LayerSpec>& layers, bool encoder,
                std::vector<float>& final_norm, std::vector<float>& relative_bias,
                std::vector<LayerWeights>& weights) {
    encoder_ = encoder;
    stack_ = encoder ? "encoder." : "";
    Add("final_norm", -1, final_norm, {TensorRole::kFinalNorm});
    Add("relative_bias", -1, relative_bias, {TensorRole::kRelativeBias});
    for (int layer = 0; layer < std::ssize(layers); ++layer) {
      AddLayer(layers[layer], layer, weights[layer]);
    }
  }

 private:
  // As large as the model's tensors say.
  void Add(const std::string& name, int layer, std::vector<float>& values,
           std::initializer_list<TensorRole> roles) {
    int64_t size = 0;
    for (const model::TensorBinding& binding : spec_.tensors) {
      if (binding.layer != layer || binding.encoder != encoder_) continue;
      for (const TensorRole role : roles) {
        if (binding.role == role) size += binding.rows * binding.cols;
      }
    }
    if (size > 0) all_.push_back({stack_ + name, &values, size});
  }

  void AddLayer(const model::LayerSpec& spec, int i, LayerWeights& layer) {
    using enum TensorRole;
    const std::string prefix = fmt::format("layers.{}.", i);
    Add(prefix + "attention_norm", i, layer.attention_norm, {kAttentionNorm});
    const bool latent_bias = spec.attention.latent && spec.attention.qkv_bias;
    if (latent_bias) {
      AddSized(prefix + "qkv_bias", layer.qkv_bias, layer.qkv.rows);
    } else {
      Add(prefix + "qkv_bias", i, layer.qkv_bias, {kQueryBias, kKeyBias, kValueBias});
    }
    Add(prefix + "query_norm", i, layer.query_norm, {kQueryNorm, kQueryDownNorm});
    Add(prefix + "key_norm", i, layer.key_norm, {kKeyNorm, kKvDownNorm});
    Add(prefix + "sinks", i, layer.sinks, {kSinks});
    Add(prefix + "output_bias", i, layer.output_bias, {kAttentionOutputBias});
    if (layer.cross) Add(prefix + "cross_norm", i, layer.cross->norm, {kCrossNorm});
    Add(prefix + "ffn_norm", i, layer.ffn_norm, {kFfnNorm});
    if (layer.moe) AddMoe(*spec.moe, prefix, *layer.moe);
  }

  void AddMoe(const model::MoeSpec& spec, const std::string& prefix, MoeWeights& moe) {
    if (spec.router_bias) AddSized(prefix + "router_bias", moe.router_bias, moe.router.rows);
    if (spec.correction_bias) {
      AddSized(prefix + "correction_bias", moe.correction_bias, spec.num_experts);
    }
    if (!spec.expert_bias) return;
    for (int expert = 0; expert < spec.num_experts; ++expert) {
      FfnWeights& ffn = moe.experts[expert];
      const std::string name = fmt::format("{}experts.{}", prefix, expert);
      AddSized(name + ".up_bias", ffn.up_bias, ffn.up.rows);
      AddSized(name + ".down_bias", ffn.down_bias, ffn.down.rows);
    }
  }

  void AddSized(const std::string& name, std::vector<float>& values, int64_t size) {
    all_.push_back({stack_ + name, &values, size});
  }

  const model::ModelSpec& spec_;
  bool encoder_ = false;
  std::string stack_;
  std::vector<NamedVector> all_;
};

std::vector<NamedVector> Vectors(ModelWeights& weights) {
  VectorList list(weights.spec);
  if (weights.encoder) {
    EncoderWeights& encoder = *weights.encoder;
    list.AddStack(weights.spec.encoder_layers, true, encoder.final_norm, encoder.relative_bias,
                  encoder.layers);
  }
  list.AddStack(weights.spec.layers, false, weights.final_norm, weights.relative_bias,
                weights.layers);
  return list.all();
}

StoredTensor TensorOf(const NamedMatrix& named) {
  return {.name = named.name,
          .dtype = "U8",
          .shape = {static_cast<int64_t>(named.matrix->size_bytes())}};
}

StoredTensor TensorOf(const NamedVector& named) {
  return {.name = named.name, .dtype = "F32", .shape = {named.size}};
}

Result<WeightFormats> ParseFormats(const nlohmann::json& json, bool* tied) {
  if (!json.contains("version") || json["version"] != kVersion) {
    return Error{fmt::format("version {} is not {}; make the directory again with this program",
                             json.contains("version") ? json["version"].dump() : "(none)",
                             kVersion)};
  }
  const auto weights = json.find("weights");
  const auto group = json.find("group");
  const auto is_tied = json.find("tied_embeddings");
  if (weights == json.end() || !weights->is_string() || group == json.end() ||
      !group->is_number_integer() || is_tied == json.end() || !is_tied->is_boolean()) {
    return Error{"it needs weights (a name), group (a number) and tied_embeddings (true or false)"};
  }
  const auto format = kernels::WeightFormatFromName(weights->get<std::string>());
  if (!format) return Error{fmt::format("the format {} is not known", Quote(weights->dump()))};
  if (*group != 32 && *group != 64 && *group != 128) {
    return Error{fmt::format("groups of {} are not supported", group->dump())};
  }
  *tied = is_tied->get<bool>();
  return WeightFormats{.matrices = *format, .group = group->get<int>()};
}

template <typename Named>
Status CheckTensor(const Named& expected, const std::vector<StoredTensor>& stored, size_t index) {
  const StoredTensor wanted = TensorOf(expected);
  const bool is_there = index < stored.size() && stored[index].name == wanted.name &&
                        stored[index].dtype == wanted.dtype && stored[index].shape == wanted.shape;
  if (is_there) return {};
  return Error{
      fmt::format("tensor {} should be {} of {} {}, for the model of config.json and the "
                  "formats of convene.json",
                  index, Quote(wanted.name), wanted.shape[0], wanted.dtype)};
}

// Everything of a model but weights and tables of contents that do not fit the packed file.
bool IsCopied(const fs::directory_entry& entry) {
  std::error_code ignored;
  if (!entry.is_regular_file(ignored)) return false;
  const std::string name = entry.path().filename().string();
  for (const char* ending : {".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json",
                             ".pth", ".pt", ".gguf", ".onnx", ".h5", ".msgpack"}) {
    if (name.ends_with(ending)) return false;
  }
  return name != kFormatsName;
}

Status WriteWeights(const ModelWeights& weights, const std::string& path) {
  // Only the addresses of the vectors are needed; they are not changed.
  const std::vector<NamedVector> vectors = Vectors(const_cast<ModelWeights&>(weights));
  std::vector<StoredTensor> tensors;
  uint64_t data_bytes = weights.bytes.size();
  for (const NamedMatrix& named : Matrices(weights)) tensors.push_back(TensorOf(named));
  for (const NamedVector& named : vectors) {
    tensors.push_back(TensorOf(named));
    data_bytes += named.values->size() * sizeof(float);
  }
  const std::string prefix = checkpoint::SafetensorsPrefix(tensors);
  Result<checkpoint::OutputFile> file =
      checkpoint::OutputFile::Create(path, prefix.size() + data_bytes);
  if (!file) return file.error();
  uint64_t offset = 0;
  const auto write = [&](std::span<const std::byte> bytes) -> Status {
    const Status written = file->WriteAt(offset, bytes);
    offset += bytes.size();
    return written;
  };
  if (Status written = write(std::as_bytes(std::span(prefix))); !written) return written;
  if (Status written = write(weights.bytes); !written) return written;
  for (const NamedVector& named : vectors) {
    if (Status written = write(std::as_bytes(std::span(*named.values))); !written) return written;
  }
  return file->Finish();
}

}  // namespace

bool IsPackedDirectory(const std::string& directory) {
  std::error_code ignored;
  return fs::exists(PathIn(directory, kFormatsName), ignored);
}

Result<PackedDirectory> OpenPackedDirectory(const std::string& directory) {
  Result<checkpoint::ModelConfiguration> configuration =
      checkpoint::ReadModelConfiguration(directory);
  if (!configuration) return configuration.error();
  const std::string formats_path = PathIn(directory, kFormatsName);
  const Result<nlohmann::json> json = checkpoint::ReadOptionalJson(formats_path, kMaxFormatsBytes);
  if (!json) return json.error();
  const Result<WeightFormats> formats = ParseFormats(*json, &configuration->spec.tied_embeddings);
  if (!formats) return Error{fmt::format("{}: {}", formats_path, formats.error().message)};

  Result<checkpoint::MappedFile> file =
      checkpoint::MappedFile::Open(PathIn(directory, kWeightsName));
  if (!file) return file.error();
  const Result<std::vector<StoredTensor>> stored =
      checkpoint::ParseSafetensors(file->bytes(), file->bytes().size());
  const auto in_file = [&](const Error& error) {
    return Error{fmt::format("{}: {}", file->path(), error.message)};
  };
  if (!stored) return in_file(stored.error());
  ModelWeights expected;
  LayOut(configuration->spec, *formats, nullptr, &expected);
  size_t index = 0;
  for (const NamedMatrix& named : Matrices(expected)) {
    if (Status checked = CheckTensor(named, *stored, index++); !checked) {
      return in_file(checked.error());
    }
  }
  for (const NamedVector& named : Vectors(expected)) {
    if (Status checked = CheckTensor(named, *stored, index++); !checked) {
      return in_file(checked.error());
    }
  }
  if (index != stored->size()) {
    return in_file(Error{fmt::format("{} tensors where {} are expected", stored->size(), index)});
  }
  const uint64_t first_byte = stored->front().offset;
  if (first_byte % 64 != 0) {
    return in_file(Error{"the matrices do not begin at a multiple of 64 bytes"});
  }
  return PackedDirectory{*std::move(configuration), *formats, *std::move(file), first_byte};
}

ModelWeights MapWeights(PackedDirectory directory) {
  ModelWeights weights;
  weights.mapped = std::move(directory.file);
  const std::byte* base = weights.mapped->bytes().data() + directory.first_byte;
  const uint64_t size_bytes =
      LayOut(directory.configuration.spec, directory.formats, base, &weights);
  weights.bytes = {base, size_bytes};
  const std::byte* next = base + size_bytes;
  for (const NamedVector& named : Vectors(weights)) {
    named.values->resize(named.size);
    std::memcpy(named.values->data(), next, named.size * sizeof(float));
    next += named.size * sizeof(float);
  }
  checkpoint::WillNeed(weights.bytes);
  return weights;
}

Status WritePackedDirectory(const ModelWeights& weights, const std::string& source,
                            const std::string& target) {
  Result<checkpoint::OutputDirectory> output = checkpoint::OutputDirectory::Prepare(target);
  if (!output) return output.error();
  if (Status room =
          output->CheckRoom(weights.bytes.size(), "choose another directory or a smaller format");
      !room)
    return room;
  if (Status written = WriteWeights(weights, output->Add(kWeightsName)); !written) return written;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(source, error)) {
    if (!IsCopied(entry)) continue;
    const std::string path = output->Add(entry.path().filename().string());
    if (!fs::copy_file(entry.path(), path, error)) break;
  }
  if (error) {
    return Error{
        fmt::format("cannot copy the files of {} to {}: {}", source, target, error.message())};
  }
  const nlohmann::json formats = {{"version", kVersion},
                                  {"weights", kernels::Name(weights.formats.matrices)},
                                  {"group", weights.formats.group},
                                  {"tied_embeddings", weights.spec.tied_embeddings}};
  if (Status written =
          checkpoint::WriteWholeFile(output->Add(kFormatsName), formats.dump(2) + "\n");
      !written) {
    return written;
  }
  output->Keep();
  return {};
}

}  // namespace convene::weights
