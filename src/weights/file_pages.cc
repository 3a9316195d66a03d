#include "weights/file_pages.h"

#include <fmt/format.h>

#include <chrono>
#include <vector>

#include "base/quote.h"
#include "base/units.h"
#include "weights/tensor_digests.h"

namespace convene::weights {
namespace {

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
      "when it was read, and again when it was read once more; copy the file again, or make the "
      "directory again with convene quantize",
      Quote(part.name), path, page.size_bytes, page.offset));
}

// Nothing, or the part that differs from its checksum.
const PagePart* DamagedPart(const PageRead& read) {
  for (const PagePart& part : read.page->parts) {
    if (DigestOfBlock({read.target + part.begin, part.matrix->size_bytes()}) != part.digest) {
      return &part;
    }
  }
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<FilePages>> FilePages::Open(const std::string& path,
                                                   memory::PageReader::Options options) {
  auto told = options.told;
  auto reader = memory::PageReader::Open(path, std::move(options));
  if (!reader) return reader.error();
  return std::unique_ptr<FilePages>(new FilePages(*std::move(reader), std::move(told)));
}

Status FilePages::Read(std::span<const PageRead> reads, const std::function<void(size_t)>& done) {
  const auto start = std::chrono::steady_clock::now();
  uint64_t read_bytes = 0;
  const Status read = ReadChecked(reads, [&](size_t i) {
    read_bytes += reads[i].page->size_bytes;
    done(i);
  });
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const auto slower = pace_.Add(read_bytes, elapsed.count());
  if (slower && told_) {
    told_(fmt::format("the disk of {} has become slow: it gave {}/s lately, and {}/s before",
                      reader_->path(), FormatBytes(static_cast<uint64_t>(slower->bytes_per_second)),
                      FormatBytes(static_cast<uint64_t>(slower->best_bytes_per_second))));
  }
  return read;
}

Status FilePages::ReadChecked(std::span<const PageRead> reads,
                              const std::function<void(size_t)>& done) {
  std::vector<memory::PageRead> of_file;
  for (const PageRead& read : reads) {
    of_file.push_back(
        {.offset = read.page->offset, .size_bytes = read.page->size_bytes, .target = read.target});
  }
  const auto at_tensors = [&](const Error& error) {
    return error.At(fmt::format("tensors {} to {}", Quote(reads.front().page->parts.front().name),
                                Quote(reads.back().page->parts.back().name)));
  };
  std::vector<size_t> damaged;
  const Status read = reader_->Read(of_file, [&](size_t i) {
    if (DamagedPart(reads[i]) != nullptr) {
      damaged.push_back(i);
    } else {
      done(i);
    }
  });
  if (!read) return at_tensors(read.error());
  for (const size_t i : damaged) {
    if (Status again = reader_->Read({&of_file[i], 1}, {}); !again) {
      return at_tensors(again.error());
    }
    if (const PagePart* part = DamagedPart(reads[i])) {
      return DamagedError(*part, *reads[i].page, *reader_);
    }
    done(i);
  }
  return {};
}

std::string FilePages::Describe() const {
  return fmt::format("{} ({})", reader_->path(), reader_->Describe());
}

}  // namespace convene::weights
