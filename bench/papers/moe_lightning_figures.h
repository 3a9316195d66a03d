// Figures 1, 4, 9 and 10 of MoE-Lightning in simulation, by the constants of its public code.
#pragma once

namespace convene::papers {

void PrintFiguresOfMoeLightning();

}  // namespace convene::papers
