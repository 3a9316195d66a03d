// How a GEMM asks memory for the panels that it reads. Results are the same whatever it says; which
// way is the fastest differs between kinds of CPU, formats and numbers of rows: streaming_choice.h.
#pragma once

#include <cstdint>

namespace convene::kernels {

struct PanelStreaming {
  // Few rows, which read a panel once: lines are fetched into the second-level cache so far ahead
  // of what is read; 0: not at all, and the CPU alone foresees what comes. Of int4 weights that
  // holds where they are multiplied as they lie, in whole panels. With 0 a narrower panel, and
  // tiles of a matrix unit for up to 16 rows, ask for the very lines that are read; and weights
  // that are unpacked for vectors are fetched 4,096 bytes ahead whatever this says
  // (kUnpackAheadBytes).
  int ahead_bytes = 8192;
  // More rows, which read a panel several times: the next one is fetched meanwhile.
  bool fetches_next = true;
  // A line that comes from memory is loaded as two halves, where registers are as wide as a line.
  bool half_lines = false;
  // Each thread has panels of its own that follow each other in memory (unit_shares.h); otherwise
  // threads take a panel in turn.
  bool own_shares = false;
  // Few rows: so many of a thread's panels are read in turn, piece by piece, where they are alike.
  int streams = 1;
  int piece_bytes = 1024;  // of a panel, before the next one's turn

  bool operator==(const PanelStreaming&) const = default;
};

}  // namespace convene::kernels
