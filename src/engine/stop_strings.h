// Ends an answer where one of its stop strings begins, wherever the pieces of text are cut. It
// knows text only, no tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace convene::engine {

class StopStrings {
 public:
  // None of `stops` may be empty (CHECK).
  explicit StopStrings(std::vector<std::string> stops);

  // Appends `piece` (whole UTF-8 characters) and returns the text that may now be shown: none of it
  // can still turn out to be part of a stop string. Where a stop string ends first the answer ends,
  // with what stands before that string; later pieces are dropped.
  std::string Push(std::string_view piece);

  // The text held back, when no more will come. Empty once stopped.
  std::string Finish();

  bool stopped() const { return stopped_; }

 private:
  size_t HeldBackBytes() const;

  std::vector<std::string> stops_;
  std::string pending_;  // neither shown nor dropped
  bool stopped_ = false;
};

}  // namespace convene::engine
