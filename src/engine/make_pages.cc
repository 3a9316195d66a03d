#include "engine/make_pages.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <utility>

#include "base/digest.h"
#include "base/file_lock.h"
#include "comm/agree.h"
#include "engine/rank_options.h"
#include "engine/same_model.h"
#include "memory/spill_file.h"
#include "weights/pack_directory.h"
#include "weights/packed_file.h"
#include "weights/share.h"

namespace convene::engine {
namespace {

// Where this checkpoint in these formats is packed below a directory of pages.
std::string PagesOf(const std::string& page_directory, const std::string& checkpoint_directory,
                    const std::string& source, const weights::WeightFormats& formats,
                    const weights::Share& parts) {
  namespace fs = std::filesystem;
  const std::string key = fmt::format("{} {}", weights::kPackedVersion, source);
  const fs::path path = fs::weakly_canonical(checkpoint_directory);
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
  return (fs::path(page_directory) / fmt::format("{}-{}{}-{:016x}", name, format, part,
                                                 DigestOf(std::as_bytes(std::span(key)))))
      .string();
}

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

Status MakePages(const PagesRequest& request, ModelSource* source) {
  const LoadOptions& options = request.options;
  const checkpoint::Checkpoint& checkpoint = *source->checkpoint();
  if (memory::SpillFile::IsInMemory(options.page_directory)) {
    return Error{
        fmt::format("experts that have no room in memory cannot be read from {}, which lies in "
                    "memory itself (tmpfs): give --page-dir DIR, which is on a disk",
                    options.page_directory)};
  }
  const std::string directory =
      PagesOf(options.page_directory, checkpoint.directory(), weights::SourceOfPages(checkpoint),
              request.formats, weights::PartsOf(ShareOf(options)));
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
