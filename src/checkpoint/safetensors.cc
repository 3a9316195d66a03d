#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/quote.h"

namespace convene::checkpoint {
namespace {

using nlohmann::json;

struct Dtype {
  std::string_view name;
  int bits;
};

constexpr Dtype kDtypes[] = {
    {"BOOL", 8},    {"U8", 8},      {"I8", 8},      {"U16", 16},    {"I16", 16},
    {"U32", 32},    {"I32", 32},    {"U64", 64},    {"I64", 64},    {"F16", 16},
    {"BF16", 16},   {"F32", 32},    {"F64", 64},    {"C64", 64},    {"F8_E4M3", 8},
    {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
};

const Dtype* FindDtype(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                         [&](const Dtype& dtype) { return dtype.name == name; });
  return found == std::end(kDtypes) ? nullptr : found;
}

// The header as it is read: {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
// ..., "__metadata__": {"key": "text"}}. A state machine, so that neither depth nor size of the
// JSON costs memory beyond the tensors themselves.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  // Offsets of the tensors are from the start of the data until Check() moves them.
  std::vector<StoredTensor> tensors;
  std::string error;

  bool start_object(size_t) override {
    if (place_ == Place::kStart) return Enter(Place::kHeader);
    if (place_ == Place::kHeader && key_ == "__metadata__") return Enter(Place::kMetadata);
    if (place_ != Place::kHeader) return Unexpected("an object");
    tensors.emplace_back().name = key_;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    return Enter(Place::kTensor);
  }

  bool key(std::string& name) override {
    key_ = std::move(name);
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kHeader) return Enter(Place::kEnd);
    if (place_ == Place::kTensor && !(has_dtype_ && has_shape_ && has_offsets_)) {
      return Fail(fmt::format("tensor {} lacks {}", Quote(tensors.back().name),
                              !has_dtype_   ? "dtype"
                              : !has_shape_ ? "shape"
                                            : "data_offsets"));
    }
    return Enter(Place::kHeader);
  }

  bool string(std::string& text) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || key_ != "dtype") return Unexpected("a string");
    const Dtype* dtype = FindDtype(text);
    if (dtype == nullptr) {
      return Fail(fmt::format("tensor {} has the unknown dtype {}", Quote(tensors.back().name),
                              Quote(text)));
    }
    tensors.back().dtype = dtype->name;
    has_dtype_ = true;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kTensor) return Unexpected("an array");
    if (key_ == "shape" && !has_shape_) return Enter(Place::kShape);
    if (key_ == "data_offsets" && !has_offsets_) {
      num_offsets_ = 0;
      return Enter(Place::kOffsets);
    }
    return Unexpected("an array");
  }

  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::kShape) {
      constexpr size_t kMaxRank = 16;
      std::vector<int64_t>& shape = tensors.back().shape;
      if (shape.size() == kMaxRank || value > INT64_MAX)
        return Unexpected("too many or too large dimensions");
      shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ != Place::kOffsets || num_offsets_ == 2) return Unexpected("a number");
    (num_offsets_++ == 0 ? tensors.back().offset : tensors.back().size_bytes) = value;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kShape) {
      has_shape_ = true;
      return Enter(Place::kTensor);
    }
    StoredTensor& tensor = tensors.back();
    if (num_offsets_ != 2 || tensor.size_bytes < tensor.offset) {
      return Fail(
          fmt::format("data_offsets of tensor {} are not [begin, end]", Quote(tensor.name)));
    }
    tensor.size_bytes -= tensor.offset;
    has_offsets_ = true;
    return Enter(Place::kTensor);
  }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(int64_t) override { return Unexpected("a negative number"); }
  bool number_float(double, const std::string&) override { return Unexpected("a fraction"); }
  bool binary(json::binary_t&) override { return Unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    return Fail(fmt::format("the header is not JSON (byte {} of it)", position));
  }

 private:
  enum class Place { kStart, kHeader, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool Enter(Place place) {
    place_ = place;
    return true;
  }
  bool Fail(std::string message) {
    error = std::move(message);
    return false;
  }
  bool Unexpected(std::string_view what) {
    return Fail(fmt::format("the header has {} at {}", what, Quote(key_)));
  }

  Place place_ = Place::kStart;
  std::string key_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  int num_offsets_ = 0;
};

// What dtype and shape need; nothing where that overflows or ends inside a byte.
std::optional<uint64_t> NeededBytes(const StoredTensor& tensor) {
  uint64_t bits = DtypeBits(tensor.dtype);
  bool overflow = false;
  for (const int64_t dimension : tensor.shape) {
    overflow |= __builtin_mul_overflow(bits, static_cast<uint64_t>(dimension), &bits);
  }
  if (overflow || bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

Status CheckSize(const StoredTensor& tensor) {
  if (NeededBytes(tensor) == tensor.size_bytes) return {};
  return DataLoss(fmt::format("tensor {} is {} [{}], which does not fit its {} bytes",
                              Quote(tensor.name), tensor.dtype, fmt::join(tensor.shape, ", "),
                              tensor.size_bytes));
}

Status CheckNames(const std::vector<StoredTensor>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const StoredTensor& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) return DataLoss(fmt::format("tensor {} is there twice", Quote(*twice)));
  return {};
}

// `tensors` in the order of their bytes must cover [0, data_size) without overlap or hole.
Status CheckLayout(const std::vector<StoredTensor>& tensors, uint64_t data_size) {
  uint64_t end = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.offset + tensor.size_bytes > data_size) {
      return DataLoss(fmt::format(
          "tensor {} ends at byte {} of the data, but the file holds only {}: it is cut short",
          Quote(tensor.name), tensor.offset + tensor.size_bytes, data_size));
    }
    if (tensor.offset != end) {
      return DataLoss(fmt::format(
          "tensor {} starts at byte {} of the data, but the one before ends at {}: tensors {}",
          Quote(tensor.name), tensor.offset, end,
          tensor.offset < end ? "overlap" : "leave a hole"));
    }
    end = tensor.offset + tensor.size_bytes;
    if (Status size = CheckSize(tensor); !size) return size;
  }
  if (end != data_size) {
    return DataLoss(fmt::format("{} bytes follow the last tensor", data_size - end));
  }
  return {};
}

}  // namespace

int DtypeBits(std::string_view dtype) {
  const Dtype* found = FindDtype(dtype);
  return found == nullptr ? 0 : found->bits;
}

Result<std::vector<StoredTensor>> ParseSafetensors(std::span<const std::byte> prefix,
                                                   uint64_t file_size) {
  constexpr uint64_t kLengthBytes = 8;
  CHECK(prefix.size() <= file_size);
  if (prefix.size() < kLengthBytes) {
    return DataLoss(fmt::format("{} bytes are too few for a safetensors file", prefix.size()));
  }
  uint64_t header_size = 0;
  std::memcpy(&header_size, prefix.data(), kLengthBytes);
  if (header_size > kMaxHeaderBytes) {
    return DataLoss(fmt::format(
        "the header should be {} bytes long; at most {} are read: is this a safetensors file?",
        header_size, kMaxHeaderBytes));
  }
  if (header_size > file_size - kLengthBytes || header_size > prefix.size() - kLengthBytes) {
    return DataLoss(fmt::format("the header is {} bytes long, but the file ends after {}",
                                header_size, file_size - kLengthBytes));
  }
  const auto* text = reinterpret_cast<const char*>(prefix.data() + kLengthBytes);
  if (header_size == 0 || text[0] != '{') return DataLoss("the header does not start with '{'");

  HeaderReader reader;
  if (!json::sax_parse(text, text + header_size, &reader)) return DataLoss(reader.error);

  std::vector<StoredTensor>& tensors = reader.tensors;
  std::ranges::stable_sort(tensors, [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.offset, a.size_bytes) < std::pair(b.offset, b.size_bytes);
  });
  const uint64_t data_start = kLengthBytes + header_size;
  if (Status layout = CheckLayout(tensors, file_size - data_start); !layout) return layout.error();
  if (Status names = CheckNames(tensors); !names) return names.error();
  for (StoredTensor& tensor : tensors) tensor.offset += data_start;
  return std::move(tensors);
}

std::string SafetensorsPrefix(std::span<const StoredTensor> tensors, size_t alignment) {
  json header = json::object();
  header["__metadata__"] = {{"format", "pt"}};  // transformers asks for it
  uint64_t end = 0;
  for (const StoredTensor& tensor : tensors) {
    const std::optional<uint64_t> size = NeededBytes(tensor);
    CHECK(size.has_value(), "{}", tensor.name);
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {end, end + *size}}};
    end += *size;
  }
  std::string text = header.dump();
  text.append((alignment - (8 + text.size()) % alignment) % alignment, ' ');
  const uint64_t length = text.size();
  std::string prefix(8, '\0');
  std::memcpy(prefix.data(), &length, 8);
  return prefix + text;
}

}  // namespace convene::checkpoint
