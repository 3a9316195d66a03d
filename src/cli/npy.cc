#include "cli/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "base/quote.h"

namespace convene::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "npy files here are little-endian");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kHeaderAlignment = 64;

Error Malformed(std::string_view why) {
  return Error{fmt::format("not a one-dimensional int32 or int64 .npy file: {}", why)};
}

struct Content {
  std::string_view header;  // a Python dictionary
  std::string_view data;
};

std::optional<Content> SplitHeader(std::string_view bytes) {
  constexpr size_t kVersionEnd = kMagic.size() + 2;
  if (bytes.size() < kVersionEnd) return std::nullopt;
  // Version 1 has a length of two bytes, later ones of four.
  const size_t length_bytes = bytes[kMagic.size()] == 1 ? 2 : 4;
  if (bytes.size() < kVersionEnd + length_bytes) return std::nullopt;
  uint32_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data() + kVersionEnd, length_bytes);
  bytes.remove_prefix(kVersionEnd + length_bytes);
  if (bytes.size() < header_bytes) return std::nullopt;
  return Content{bytes.substr(0, header_bytes), bytes.substr(header_bytes)};
}

// What follows "'key':" in the dictionary, without leading spaces.
std::optional<std::string_view> Field(std::string_view header, std::string_view key) {
  const size_t at = header.find(fmt::format("'{}':", key));
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view value = header.substr(at + key.size() + 3);
  value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
  return value;
}

// The only dimension in "(300,)" or "(300, )".
std::optional<uint64_t> OnlyDimension(std::string_view shape) {
  if (!shape.starts_with('(')) return std::nullopt;
  uint64_t dimension = 0;
  const char* end = shape.data() + shape.size();
  const auto [stop, error] = std::from_chars(shape.data() + 1, end, dimension);
  if (error != std::errc()) return std::nullopt;
  std::string_view rest(stop, static_cast<size_t>(end - stop));
  if (!rest.starts_with(',')) return std::nullopt;
  rest.remove_prefix(std::min(rest.find_first_not_of(' ', 1), rest.size()));
  return rest.starts_with(')') ? std::optional(dimension) : std::nullopt;
}

template <typename Integer>
Result<std::vector<int32_t>> ReadIntegers(std::string_view data) {
  std::vector<int32_t> values(data.size() / sizeof(Integer));
  for (size_t i = 0; i < values.size(); ++i) {
    Integer value = 0;
    std::memcpy(&value, data.data() + i * sizeof(Integer), sizeof(Integer));
    if (!std::in_range<int32_t>(value)) {
      return Error{fmt::format("the value {} at index {} is no token id", value, i)};
    }
    values[i] = static_cast<int32_t>(value);
  }
  return values;
}

}  // namespace

bool IsNpy(std::string_view bytes) { return bytes.starts_with(kMagic); }

Result<std::vector<int32_t>> ParseNpyTokens(std::string_view bytes) {
  if (!IsNpy(bytes)) return Malformed("it does not begin with \\x93NUMPY");
  const std::optional<Content> content = SplitHeader(bytes);
  if (!content) return Malformed("its header is cut off");
  const std::optional<std::string_view> type = Field(content->header, "descr");
  const bool is_int32 = type && type->starts_with("'<i4'");
  const bool is_int64 = type && type->starts_with("'<i8'");
  if (!is_int32 && !is_int64) return Malformed("its header is " + Quote(content->header));
  const std::optional<std::string_view> shape = Field(content->header, "shape");
  const std::optional<uint64_t> count = shape ? OnlyDimension(*shape) : std::nullopt;
  if (!count) return Malformed("its header is " + Quote(content->header));
  const size_t element_bytes = is_int32 ? 4 : 8;
  if (content->data.size() % element_bytes != 0 || content->data.size() / element_bytes != *count) {
    return Malformed(fmt::format("its header says {} elements of {} bytes, but {} bytes follow",
                                 *count, element_bytes, content->data.size()));
  }
  return is_int32 ? ReadIntegers<int32_t>(content->data) : ReadIntegers<int64_t>(content->data);
}

Result<NpyWriter> NpyWriter::Create(const std::string& path, int64_t rows, int64_t cols) {
  NpyWriter writer;
  writer.path_ = path;
  writer.rows_left_ = rows;
  writer.cols_ = cols;
  Result<Stream> file = OpenToWrite(path);
  if (!file) return file.error();
  writer.file_ = *std::move(file);
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, cols);
  const size_t unpadded_bytes = kMagic.size() + 4 + header.size() + 1;
  header.append((kHeaderAlignment - unpadded_bytes % kHeaderAlignment) % kHeaderAlignment, ' ');
  header += '\n';
  std::string start(kMagic);
  start += {'\x01', '\x00', static_cast<char>(header.size() & 0xff),
            static_cast<char>(header.size() >> 8)};
  start += header;
  if (std::fwrite(start.data(), 1, start.size(), writer.file_.get()) != start.size()) {
    return SystemError("cannot write " + path, errno);
  }
  return writer;
}

Status NpyWriter::WriteRow(std::span<const float> row) {
  CHECK(std::ssize(row) == cols_ && rows_left_ > 0, "a row of {} in a matrix of {} columns",
        row.size(), cols_);
  --rows_left_;
  if (std::fwrite(row.data(), sizeof(float), row.size(), file_.get()) != row.size()) {
    return SystemError("cannot write " + path_, errno);
  }
  return {};
}

Status NpyWriter::Close() {
  CHECK(rows_left_ == 0, "{} rows are missing", rows_left_);
  if (std::fclose(file_.release()) == 0) return {};
  const Error error = SystemError("cannot write " + path_, errno);
  RemoveUnfinished(path_);
  return error;
}

NpyWriter::~NpyWriter() {
  if (file_) RemoveUnfinished(path_);
}

}  // namespace convene::cli
