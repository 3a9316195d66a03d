// Routed experts by grouped products of CUTLASS, as a model of an operator on A100: the kernels of
// TensorRT-LLM, which descend from those of FasterTransformer that DeepSpeed-FastGen computes
// experts with. Presets have the kernels of SGLang instead.
#pragma once

#include <string>

namespace convene::papers {

// JSON of cost::OperatorModel, "grouped_product bf16".
std::string CutlassExperts();

}  // namespace convene::papers
