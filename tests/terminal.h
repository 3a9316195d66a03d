// A program on a terminal of its own, at which a test types and looks. The test sees bytes, not a
// screen: cursor movements and colours are among them.
#pragma once

#include <termios.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace convene {

class Terminal {
 public:
  // Starts `words` with `environment` (names and values) added to the test's own.
  Terminal(std::vector<std::string> words,
           const std::vector<std::pair<std::string, std::string>>& environment);
  ~Terminal();  // kills what still runs
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Types `keys`, and takes what is shown meanwhile, or neither would go on with long texts.
  void Type(std::string_view keys);

  // Whether `text` is shown within a minute, behind what the call before has found.
  bool Shows(std::string_view text);

  // The same of the program's end; `status` is its exit status, or 128 and the signal's number.
  bool Ends();
  int status() const { return status_; }

  void Signal(int signal) const;

  // All that was shown so far.
  const std::string& shown() const { return shown_; }

  // What the program has made of the terminal.
  termios modes() const;

 private:
  bool Read(int timeout_ms);

  int master_ = -1;
  int slave_ = -1;  // kept open: the modes outlive the program
  int child_ = -1;
  int status_ = -1;
  std::string shown_;
  size_t found_ = 0;  // end of what Shows has found
};

}  // namespace convene
