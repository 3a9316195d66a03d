// NumPy's .npy files as far as convene needs them: reads one row of integers, writes a float32
// matrix row by row. Not a general reader: no Fortran order of matrices, no structures, no pickles.
// Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/open_file.h"
#include "base/result.h"

namespace convene::cli {

// True if `bytes` begin as every .npy file does.
bool IsNpy(std::string_view bytes);

// The elements of a one-dimensional .npy file of int32 or int64 with the content `bytes`.
// Errors: anything else, a size that does not match, a value that is no int32.
Result<std::vector<int32_t>> ParseNpyTokens(std::string_view bytes);

// A file that is not written to its end does not stay.
class NpyWriter {
 public:
  NpyWriter(NpyWriter&&) = default;
  NpyWriter& operator=(NpyWriter&&) = delete;
  ~NpyWriter();

  // Creates the file `path`, replacing what is there, for a matrix (rows, cols).
  static Result<NpyWriter> Create(const std::string& path, int64_t rows, int64_t cols);

  // Appends a row (cols).
  Status WriteRow(std::span<const float> row);

  // After the last row: makes sure that everything has reached the file.
  Status Close();

 private:
  NpyWriter() = default;

  std::string path_;
  Stream file_;
  int64_t rows_left_ = 0;
  int64_t cols_ = 0;
};

}  // namespace convene::cli
