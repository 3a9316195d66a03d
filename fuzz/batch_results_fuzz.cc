// Any bytes as the result file that an earlier `convene batch` left: it is refused and left as it
// is, or cut to whole results, behind which the next one is appended.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "base/check.h"
#include "openai/batch_results.h"

namespace {

using convene::openai::BatchResults;

// A file in memory, with a path by which it is opened.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content) : file_(memfd_create("results", MFD_CLOEXEC)) {
    CHECK(file_ >= 0);
    const auto written = write(file_, content.data(), content.size());
    CHECK(written == static_cast<ssize_t>(content.size()));
  }
  ~MemoryFile() { close(file_); }

  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

  std::string Content() const {
    struct stat status = {};
    CHECK(fstat(file_, &status) == 0);
    std::string content(static_cast<size_t>(status.st_size), '\0');
    CHECK(pread(file_, content.data(), content.size(), 0) == status.st_size);
    return content;
  }

 private:
  int file_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view before(reinterpret_cast<const char*>(data), size);
  const MemoryFile file(before);
  size_t num_finished = 0;
  {
    auto results = BatchResults::Open(file.path());
    if (!results) {
      CHECK(file.Content() == before, "refused, but changed");
      return 0;
    }
    const std::string kept = file.Content();
    CHECK(before.starts_with(kept), "{} bytes are no beginning of {}", kept.size(), size);
    CHECK(kept.empty() || kept.ends_with('\n'));
    num_finished = results->earlier().finished.size();
    for (const auto& refused : results->earlier().refused) {
      CHECK(refused.begin >= 0 && refused.begin < refused.end);
      CHECK(refused.end <= std::ssize(kept) && kept[static_cast<size_t>(refused.end - 1)] == '\n');
    }
    const auto appended = results->Append(
        {{"id", "batch_req_new"}, {"custom_id", "new"}, {"response", {{"status_code", 200}}}});
    CHECK(appended.ok(), "{}", appended.error().message);
    CHECK(results->Close().ok());
    CHECK(file.Content().starts_with(kept));
  }
  const std::string after = file.Content();
  const auto again = BatchResults::Open(file.path());
  CHECK(again.ok(), "{}", again.error().message);
  CHECK(again->earlier().finished.size() == num_finished + 1);
  CHECK(again->earlier().finished.contains("new"));
  CHECK(file.Content() == after);
  return 0;
}
