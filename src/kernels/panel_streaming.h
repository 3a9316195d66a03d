// How a GEMM asks memory for the panels that it reads. Results are the same whatever it says; which
// way is the fastest differs between kinds of CPU, formats and numbers of rows: streaming_choice.h.
// What of it does something to a product, KernelSet::acting tells.
#pragma once

#include <cstdint>

namespace convene::kernels {

struct PanelStreaming {
  // Few rows, which read a panel once: lines are fetched into the second-level cache so far ahead
  // of what is read; 0: not at all, and the CPU alone foresees what comes. Rounded down to whole
  // KiB, 4 KiB where a matrix unit multiplies, but for int4 weights. Of those it holds where they
  // are multiplied as they lie, for however many rows, and where a matrix unit reads up to 16; with
  // 0 the latter, and panels narrower than kPanelRows, ask for the very lines that are read. int4
  // weights that are unpacked are fetched 4,096 bytes ahead whatever this says
  // (kUnpackAheadBytes); int8 weights that are made bf16 are not.
  int ahead_bytes = 8192;
  // More rows, which read a panel several times, and all rows whose weights are unpacked: the next
  // panel is fetched meanwhile.
  bool fetches_next = true;
  // A line that comes from memory is loaded as two halves, where registers are as wide as a line
  // and hold the sums of a whole panel: all lines that few rows read one panel after the other;
  // with more rows those that the first of them read, unless the panel was fetched before.
  bool half_lines = false;
  // Each thread has panels of its own that follow each other in memory (unit_shares.h); otherwise
  // threads take a panel in turn.
  bool own_shares = false;
  // Few rows, which vectors multiply, of a thread with panels of its own: so many of them are read
  // in turn, piece by piece, where they are alike.
  int streams = 1;
  int piece_bytes = 1024;  // of a panel, before the next one's turn; of int4 always 32 columns

  bool operator==(const PanelStreaming&) const = default;
};

}  // namespace convene::kernels
