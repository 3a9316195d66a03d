// Reads the members of a JSON object that somebody else wrote, each with the limits it must keep.
// The first that does not fit is the error, and what comes after it is left as it was.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace convene::cost {

// Beyond these no machine is: what a file has is damage, and would not be priced but overflow.
inline constexpr double kLeastRate = 1;    // FLOP/s and bytes/s
inline constexpr double kMostRate = 1e21;  // likewise
inline constexpr double kMostCost = 1e9;   // seconds of a task, or of a part of one

// Neither holds of what is not a number.
inline bool IsRate(double value) { return value >= kLeastRate && value <= kMostRate; }
inline bool IsRateOrUnknown(double value) { return value == 0 || IsRate(value); }

class JsonReader {
 public:
  // The object outlives the reader. Anything else but an object is an error.
  explicit JsonReader(const nlohmann::json& object);

  void Number(const char* key, double min, double max, double& value);
  void Rate(const char* key, double& value);  // 0: not known
  void Flag(const char* key, bool& value);
  void Text(const char* key, std::string& value);  // of at most 4096 bytes
  void Texts(const char* key, size_t most, std::vector<std::string>& values);
  void Numbers(const char* key, size_t most, double min, double max, std::vector<double>& values);
  void Wholes(const char* key, size_t most, int64_t min, int64_t max, std::vector<int32_t>& values);

  template <typename Integer>
  void Whole(const char* key, int64_t min, int64_t max, Integer& value) {
    if (const std::optional<int64_t> found = FindWhole(key, min, max)) {
      value = static_cast<Integer>(*found);
    }
  }

  // Lists and objects themselves, of at most `most` items; null after an error.
  const nlohmann::json* Array(const char* key, size_t most);
  const nlohmann::json* Object(const char* key, size_t most);

  // Makes it the error that `key` is not what was wanted.
  void Refuse(const char* key, std::string_view wanted);

  Status status() const;

 private:
  const nlohmann::json* Find(const char* key);
  std::optional<int64_t> FindWhole(const char* key, int64_t min, int64_t max);

  const nlohmann::json& object_;
  std::optional<Error> error_;
};

}  // namespace convene::cost
