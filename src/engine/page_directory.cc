#include "engine/page_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/is_there.h"
#include "base/units.h"
#include "engine/rank_options.h"
#include "weights/pack_directory.h"
#include "weights/packed_file.h"
#include "weights/share.h"

namespace convene::engine {
namespace {

namespace fs = std::filesystem;

// Digits of what tells checkpoints of one name from each other, and states of one checkpoint.
constexpr size_t kPlaceDigits = 8;
constexpr size_t kStateDigits = 16;

uint64_t DigestOfText(const std::string& text) { return DigestOf(std::as_bytes(std::span(text))); }

bool IsHex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// Of the name of a directory what all directories of its checkpoint begin with, and its state; both
// empty: it is none of these.
struct PagesName {
  std::string_view checkpoint;
  std::string_view state;
};
PagesName ReadName(std::string_view name) {
  const size_t state_at = name.rfind('-');
  if (state_at == std::string_view::npos) return {};
  const std::string_view state = name.substr(state_at + 1);
  if (state.size() != kStateDigits || !IsHex(state)) return {};
  // Behind the last place are the format and the part, which are no such digits.
  for (size_t end = state_at; end != std::string_view::npos && end > kPlaceDigits;) {
    const size_t begin = name.rfind('-', end - 1);
    if (begin == std::string_view::npos) return {};
    const std::string_view word = name.substr(begin + 1, end - begin - 1);
    if (word.size() == kPlaceDigits && IsHex(word)) return {name.substr(0, end), state};
    end = begin;
  }
  return {};
}

uint64_t BytesIn(const fs::path& directory) {
  uint64_t total = 0;
  std::error_code error;
  for (auto at = fs::recursive_directory_iterator(directory, error);
       !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    std::error_code ignored;
    if (at->is_regular_file(ignored)) total += at->file_size(ignored);
  }
  return total;
}

}  // namespace

std::string PagesOf(const LoadOptions& options, const checkpoint::Checkpoint& checkpoint,
                    const weights::WeightFormats& formats) {
  const weights::Share parts = weights::PartsOf(ShareOf(options));
  const fs::path path = fs::weakly_canonical(checkpoint.directory());
  const std::string name = path.has_filename() ? path.filename() : path.parent_path().filename();
  const std::string format = formats.matrices == kernels::WeightFormat::kInt4
                                 ? fmt::format("int4-{}", formats.group)
                                 : std::string(kernels::Name(formats.matrices));
  std::string part;
  if (parts.attention_parts > 1) {
    part += fmt::format("-part{}of{}", parts.attention_part + 1, parts.attention_parts);
  }
  if (parts.expert_slices > 1) {
    part += fmt::format("-slice{}of{}", parts.expert_slice + 1, parts.expert_slices);
  }
  const uint64_t place = DigestOfText(path.string()) >> (64 - 4 * kPlaceDigits);
  const uint64_t state = DigestOfText(
      fmt::format("{} {}", weights::kPackedVersion, weights::SourceOfPages(checkpoint)));
  return (fs::path(options.page_directory) / fmt::format("{}-{:0{}x}-{}{}-{:0{}x}", name, place,
                                                         kPlaceDigits, format, part, state,
                                                         kStateDigits))
      .string();
}

std::string DescribeStalePages(const std::string& pages) {
  const std::string own_name = fs::path(pages).filename();
  const PagesName own = ReadName(own_name);
  if (own.state.empty()) return "";
  std::vector<std::string> stale;
  uint64_t total = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fs::path(pages).parent_path(), ignored)) {
    const std::string name = entry.path().filename();
    const PagesName other = ReadName(name);
    const bool is_stale = other.checkpoint == own.checkpoint && other.state != own.state &&
                          entry.is_directory(ignored) && !IsThere(entry.path().string() + ".lock");
    if (!is_stale) continue;
    const uint64_t size_bytes = BytesIn(entry.path());
    total += size_bytes;
    stale.push_back(fmt::format("{} ({})", entry.path().string(), FormatBytes(size_bytes)));
  }
  if (stale.empty()) return "";
  std::ranges::sort(stale);
  return fmt::format(
      "{} of the disk can be had back: pages of this checkpoint as it was before, which nothing "
      "reads any more, are in {}; remove {}",
      FormatBytes(total), fmt::join(stale, " and "), stale.size() == 1 ? "it" : "them");
}

}  // namespace convene::engine
