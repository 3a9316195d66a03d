// Figures 5, 6, 7 and 10 of EPS-MoE in simulation. The values are in pictures alone; what is
// compared is what the text says of them.
#pragma once

namespace convene::papers {

void PrintFiguresOfEpsMoe();

}  // namespace convene::papers
