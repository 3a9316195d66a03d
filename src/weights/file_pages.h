// Pages of a packed directory, read past the page cache and compared with their checksums.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory/page_reader.h"
#include "memory/read_pace.h"
#include "weights/page_source.h"

namespace convene::weights {

class FilePages final : public PageSource {
 public:
  // Errors: as PageReader::Open.
  static Result<std::unique_ptr<FilePages>> Open(const std::string& path,
                                                 memory::PageReader::Options options);

  // Errors: the disk fails; the file was cut; a page differs from its checksum when it was read a
  // second time, too (says which, and where it lies in the file). Where the disk has become much
  // slower than it was, PageReader::Options::told is told.
  Status Read(std::span<const PageRead> reads, const std::function<void(size_t)>& done,
              const Next& next) override;
  std::string Describe() const override;

 private:
  FilePages(std::unique_ptr<memory::PageReader> reader,
            std::function<void(const std::string&)> told)
      : reader_(std::move(reader)), told_(std::move(told)) {}
  // Appends what `next` gives to `reads`.
  Status ReadChecked(std::vector<PageRead>& reads, const std::function<void(size_t)>& done,
                     const Next& next);

  std::unique_ptr<memory::PageReader> reader_;
  std::function<void(const std::string&)> told_;
  memory::ReadPace pace_;
};

}  // namespace convene::weights
