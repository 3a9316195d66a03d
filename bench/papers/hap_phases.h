// Figures 8c, 2 and 5 of HAP in simulation: seconds of both phases, where they go, and how good the
// models of operators are behind them. The values are in pictures alone; what is compared is what
// the text says of them.
#pragma once

namespace convene::papers {

void PrintPhasesOfHap();

}  // namespace convene::papers
