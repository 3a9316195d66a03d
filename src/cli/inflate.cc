#include "cli/inflate.h"

#include <fmt/format.h>
#include <zlib.h>

#include <array>

#include "base/units.h"

namespace convene::cli {

bool IsGzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

Result<std::string> Inflate(std::string_view bytes, uint64_t max_bytes) {
  constexpr int kGzipOnly = 16;  // added to the window's bits: no other format
  z_stream stream = {};
  if (inflateInit2(&stream, MAX_WBITS + kGzipOnly) != Z_OK) {
    return ResourceExhausted("there is no memory to unpack it");
  }
  // zlib takes a pointer to what it does not change, without const.
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::string text;
  std::array<char, 1 << 16> part;
  int state = Z_OK;
  while (state == Z_OK && text.size() <= max_bytes) {
    stream.next_out = reinterpret_cast<Bytef*>(part.data());
    stream.avail_out = part.size();
    state = inflate(&stream, Z_NO_FLUSH);
    text.append(part.data(), part.size() - stream.avail_out);
  }
  inflateEnd(&stream);
  if (text.size() > max_bytes) {
    return Error{fmt::format("it unpacks to more than {}", FormatBytes(max_bytes))};
  }
  if (state != Z_STREAM_END) return DataLoss("what gzip has packed is damaged or ends too early");
  if (stream.avail_in > 0) {
    return DataLoss(fmt::format("{} behind the end of what gzip has packed: pack it as one piece",
                                FormatBytes(stream.avail_in)));
  }
  return text;
}

}  // namespace convene::cli
