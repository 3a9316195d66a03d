// How a program begins that reproduces a paper's figures: --help, an error for any other argument,
// and what a reader needs before the first table. It computes nothing.
#pragma once

#include <optional>

namespace convene::papers {

// Sentences in Markdown. A newcomer reads them before the tables, so they explain every word of a
// table's head that is not plain English.
struct PaperProgram {
  const char* name;       // of the executable
  const char* title;      // "HAP's figures, reproduced in simulation"
  const char* paper;      // title, authors, place
  const char* simulated;  // which machines, models and loads, by which part of convene
  const char* cells;      // what published and predicted figures are, and over what a speed-up is
  const char* errors;     // how an error is computed
  const char* words;      // what the heads of tables mean
  const char* duration;   // how long it takes
  const char* document;   // that has this output with reasons
};

// How most programs compute the error of a speed-up, which is scored by its gain: 1.10 for 1.20 is
// half of what was published.
inline constexpr const char* kErrorOfGain =
    "The error of a gain is |predicted - published| / |published - 1|, where both are speed-ups: "
    "of "
    "a published 1.20, a predicted 1.10 misses 50 % of the gain. Rank correlations are Spearman's.";

// Prints what the program does and goes on with nothing, or the exit status with which it is to
// end at once: 0 after --help, 2 after an argument, since it takes none.
std::optional<int> Begin(const PaperProgram& program, int argc, char** argv);

}  // namespace convene::papers
