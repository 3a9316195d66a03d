// The result file of `convene batch`: JSON lines that are appended whole, so that whatever ends the
// program, each finished request is there and the next run goes on behind it.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"

namespace convene::openai {

// A line of the file that says why a request was refused.
struct RefusedRequest {
  std::optional<std::string> custom_id;
  int64_t line = 0;   // of the input; counts where there is no custom_id
  int64_t begin = 0;  // bytes of the result file
  int64_t end = 0;
};

// What earlier runs have left.
struct EarlierResults {
  std::multiset<std::string> finished;  // custom_ids
  std::vector<RefusedRequest> refused;  // in the order of the file
};

class BatchResults {
 public:
  // Opens `path` for appending, creating it where needed, and locks it until it is closed. What an
  // earlier run left unfinished at its end (a line without its end, or one that is not JSON) is cut
  // off. "-" is standard output, where nothing is found. Errors: it cannot be opened, another run
  // has it open, or it holds something else than results (a line before the last that is none: it
  // is left as it is).
  static Result<BatchResults> Open(const std::string& path);

  BatchResults(BatchResults&& other) noexcept;
  BatchResults& operator=(BatchResults&&) = delete;
  ~BatchResults();

  const EarlierResults& earlier() const { return earlier_; }

  // Takes those lines of earlier().refused out for which `is_retried` holds, all at once: whatever
  // ends the program, the file has either all of its lines or all but these. Before any Append.
  Status Forget(const std::function<bool(const RefusedRequest&)>& is_retried);

  // Appends one line at once; it must begin with an "id" of "batch_req_...", by which the next run
  // knows it if it is torn. On an error (a full disk) what was written of it is cut off again.
  Status Append(const nlohmann::ordered_json& result);

  // After the last line: waits until the disk has everything.
  Status Close();

 private:
  explicit BatchResults(std::string path) : path_(std::move(path)) {}
  Status ReadEarlier();
  Status CopyKept(const std::vector<RefusedRequest>& forgotten, int target, int64_t* size_bytes);
  Error CannotWrite(int error_number) const;

  std::string path_;
  int file_ = -1;
  bool is_regular_ = false;
  int64_t size_bytes_ = 0;
  EarlierResults earlier_;
};

}  // namespace convene::openai
