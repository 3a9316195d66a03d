#include "weights/file_pages.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "base/quote.h"
#include "base/units.h"
#include "weights/tensor_digests.h"

namespace convene::weights {
namespace {

// Of pages that are asked for while others are under way: enough for a disk's full rate, and little
// to wait for where what comes next is not among them.
constexpr uint64_t kFedBytes = uint64_t{8} << 20;

// Of a part that differed from its checksum twice.
Error DamagedError(const PagePart& part, const StoredPage& page, const memory::PageReader& reader) {
  const std::string& path = reader.path();
  if (const Status unchanged = reader.CheckUnchanged(); !unchanged) {
    return unchanged.error().At(
        fmt::format("tensor {} differs from its checksum (its page of {} bytes begins at byte {})",
                    Quote(part.name), page.size_bytes, page.offset));
  }
  return DataLoss(fmt::format(
      "tensor {} in {} is damaged (its page of {} bytes begins at byte {}): its checksum differed "
      "when it was read, and again when it was read once more; where convene made {} itself, below "
      "--page-dir, remove it, and it is made again from the model that was given; otherwise copy "
      "the file again, or make the directory again with convene quantize",
      Quote(part.name), path, page.size_bytes, page.offset,
      std::filesystem::path(path).parent_path().string()));
}

// Compares the parts of a page with their checksums while it arrives, so that little is left to do
// when its end is there.
class PageCheck {
 public:
  explicit PageCheck(const PageRead& read) : read_(read) {}

  // So many bytes of the page are there, no fewer than before.
  void Arrived(uint64_t num_bytes) {
    const std::vector<PagePart>& parts = read_.page->parts;
    while (damaged_ == nullptr && next_ < parts.size() && parts[next_].begin < num_bytes) {
      const PagePart& part = parts[next_];
      if (!digest_) {
        digest_.emplace(std::span(read_.target + part.begin, part.matrix->size_bytes()));
      }
      digest_->Arrived(num_bytes - part.begin);
      if (part.begin + part.matrix->size_bytes() > num_bytes) return;
      if (digest_->Finish() != part.digest) damaged_ = &part;
      digest_.reset();
      ++next_;
    }
  }
  // The first part that differs; null: none of those that are there.
  const PagePart* damaged() const { return damaged_; }

 private:
  PageRead read_;
  size_t next_ = 0;                    // part
  std::optional<BlockDigest> digest_;  // of it
  const PagePart* damaged_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<FilePages>> FilePages::Open(const std::string& path,
                                                   memory::PageReader::Options options) {
  auto told = options.told;
  auto reader = memory::PageReader::Open(path, std::move(options));
  if (!reader) return reader.error();
  return std::unique_ptr<FilePages>(new FilePages(*std::move(reader), std::move(told)));
}

Status FilePages::Read(std::span<const PageRead> given, const std::function<void(size_t)>& done,
                       const Next& next) {
  const auto start = std::chrono::steady_clock::now();
  uint64_t read_bytes = 0;
  std::vector<PageRead> reads(given.begin(), given.end());
  const auto is_there = [&](size_t i) {
    read_bytes += reads[i].page->size_bytes;
    done(i);
  };
  const Status read = ReadChecked(reads, is_there, next);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const auto slower = pace_.Add(read_bytes, elapsed.count());
  if (slower && told_) {
    told_(fmt::format("the disk of {} has become slow: it gave {}/s lately, and {}/s before",
                      reader_->path(), FormatBytes(static_cast<uint64_t>(slower->bytes_per_second)),
                      FormatBytes(static_cast<uint64_t>(slower->best_bytes_per_second))));
  }
  return read;
}

Status FilePages::ReadChecked(std::vector<PageRead>& reads, const std::function<void(size_t)>& done,
                              const Next& next) {
  const auto of_file = [](const PageRead& read) -> memory::PageRead {
    return {
        .offset = read.page->offset, .size_bytes = read.page->size_bytes, .target = read.target};
  };
  std::vector<memory::PageRead> first_reads;
  for (const PageRead& read : reads) first_reads.push_back(of_file(read));
  const auto at_tensors = [&](const Error& error) {
    return error.At(fmt::format("tensors {} to {}", Quote(reads.front().page->parts.front().name),
                                Quote(reads.back().page->parts.back().name)));
  };
  std::vector<size_t> damaged;
  std::vector<PageCheck> checks(reads.begin(), reads.end());
  const auto arrived = [&](size_t i, uint64_t num_bytes) {
    checks[i].Arrived(num_bytes);
    if (num_bytes < reads[i].page->size_bytes) return;
    if (checks[i].damaged() != nullptr) {
      damaged.push_back(i);
    } else {
      done(i);
    }
  };
  memory::PageReader::Feed feed{.bytes = kFedBytes};
  if (next) {
    feed.next = [&]() -> std::optional<memory::PageRead> {
      const std::optional<PageRead> further = next();
      if (!further) return std::nullopt;
      reads.push_back(*further);
      checks.emplace_back(*further);
      return of_file(*further);
    };
  }
  const Status read = reader_->Read(first_reads, arrived, std::move(feed));
  if (!read) return at_tensors(read.error());
  for (const size_t i : damaged) {
    const memory::PageRead once_more = of_file(reads[i]);
    if (Status again = reader_->Read({&once_more, 1}, {}); !again) {
      return at_tensors(again.error());
    }
    PageCheck check(reads[i]);
    check.Arrived(reads[i].page->size_bytes);
    if (check.damaged() != nullptr) return DamagedError(*check.damaged(), *reads[i].page, *reader_);
    done(i);
  }
  return {};
}

std::string FilePages::Describe() const {
  return fmt::format("{} ({})", reader_->path(), reader_->Describe());
}

}  // namespace convene::weights
