// The result file of `convene batch`: JSON lines that are appended whole, so that whatever ends the
// program, each finished request is there and the next run goes on behind it.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "base/result.h"

namespace convene::cli {

// What an earlier run has finished.
struct FinishedRequests {
  std::multiset<std::string> custom_ids;
  std::set<int64_t> lines;  // numbers of input lines that had no custom_id
};

class BatchResults {
 public:
  // Opens `path` for appending, creating it where needed, and locks it until it is closed. What an
  // earlier run left unfinished at its end (a line without its end, or one that is not JSON) is cut
  // off. Errors: it cannot be opened, another run has it open, or it holds something else than
  // results (a line before the last that is none: it is left as it is).
  static Result<BatchResults> Open(const std::string& path);

  BatchResults(BatchResults&& other) noexcept;
  BatchResults& operator=(BatchResults&&) = delete;
  ~BatchResults();

  const FinishedRequests& finished() const { return finished_; }

  // Appends one line at once; it must begin with an "id" of "batch_req_...", by which the next run
  // knows it if it is torn. On an error (a full disk) what was written of it is cut off again.
  Status Append(const nlohmann::ordered_json& result);

  // After the last line: waits until the disk has everything.
  Status Close();

 private:
  explicit BatchResults(std::string path) : path_(std::move(path)) {}
  Status ReadFinished();
  Error CannotWrite(int error_number) const;

  std::string path_;
  int file_ = -1;
  bool is_regular_ = false;
  int64_t size_bytes_ = 0;
  FinishedRequests finished_;
};

}  // namespace convene::cli
