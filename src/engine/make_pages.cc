#include "engine/make_pages.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <utility>

#include "base/file_lock.h"
#include "base/is_there.h"
#include "comm/agree.h"
#include "engine/page_directory.h"
#include "engine/rank_options.h"
#include "engine/same_model.h"
#include "memory/spill_file.h"
#include "weights/pack_directory.h"
#include "weights/packed_file.h"
#include "weights/page_index.h"
#include "weights/share.h"

namespace convene::engine {
namespace {

// One process at a time: two would write the same files.
Status PackPages(const std::string& directory, const PagesRequest& request,
                 const checkpoint::Checkpoint& checkpoint) {
  const LoadOptions& options = request.options;
  const LoadObserver& observer = request.observer;
  std::error_code ignored;  // making the lock says so
  std::filesystem::create_directories(options.page_directory, ignored);
  const Result<FileLock> lock = FileLock::Take(directory + ".lock", [&] {
    if (!observer.decided) return;
    observer.decided(fmt::format(
        "another process packs this checkpoint into {}: waiting until it has", directory));
  });
  if (!lock) return lock.error().At("--page-dir");
  if (weights::IsPackedDirectory(directory)) return {};  // by now
  if (observer.decided) {
    observer.decided(fmt::format("packing {} into {}, once: later runs read what is there",
                                 checkpoint.directory(), directory));
    const std::string stale = DescribeStalePages(directory);
    if (!stale.empty()) observer.decided(stale);
  }
  const Result<uint64_t> packed =
      weights::PackDirectory(checkpoint, request.formats,
                             {.directory = directory,
                              .parts = weights::PartsOf(ShareOf(options)),
                              .resumes = true,
                              .remedy = "give another --page-dir, or make room there"},
                             request.pool, request.ledger, observer.packing);
  return packed ? Status() : packed.error();
}

}  // namespace

uint64_t PagesToMakeBytes(const LoadOptions& options, const checkpoint::Checkpoint& checkpoint,
                          const weights::WeightFormats& formats) {
  if (options.page_directory.empty()) return 0;
  const std::filesystem::path pages = PagesOf(options, checkpoint, formats);
  if (IsThere(pages / weights::kWeightsName)) return 0;
  const int rank = options.group != nullptr ? options.group->rank() : 0;
  const weights::PagedSizes sizes =
      weights::PagedSizesOf(checkpoint.spec(), formats, {options.plan.layout, rank});
  return sizes.bytes_with(sizes.num_pages);
}

Status MakePages(const PagesRequest& request, ModelSource* source) {
  const LoadOptions& options = request.options;
  const checkpoint::Checkpoint& checkpoint = *source->checkpoint();
  if (memory::SpillFile::IsInMemory(options.page_directory)) {
    return Error{
        fmt::format("experts that have no room in memory cannot be read from {}, which lies in "
                    "memory itself (tmpfs): give --page-dir DIR, which is on a disk",
                    options.page_directory)};
  }
  const std::string directory = PagesOf(options, checkpoint, request.formats);
  if (!weights::IsPackedDirectory(directory)) {
    if (Status packed = PackPages(directory, request, checkpoint); !packed) return packed;
  }
  Result<ModelSource> pages = ModelSource::Open(directory);
  if (!pages) {
    Error error = pages.error();
    error.message +=
        fmt::format("; remove {}, and it is made again from {}", directory, checkpoint.directory());
    return error;
  }
  *source = *std::move(pages);
  return {};
}

Status MakePagesInTurn(comm::Group* group, const PagesRequest& request, ModelSource* source) {
  if (group == nullptr) return MakePages(request, source);
  for (int turn = 0; turn < group->size(); ++turn) {
    Status mine;
    if (turn == group->rank()) mine = MakePages(request, source);
    if (const Status all = comm::AgreeOnSuccess(*group, mine); !all) return all;
  }
  return AgreeOnTensors(*group, source->known_digests());
}

}  // namespace convene::engine
