#include "model/quantization.h"

#include "base/quote.h"

namespace convene::model {

Storage ReadStorage(ConfigFields& config) {
  if (!config.Has("quantization_config")) return Storage::kPlain;
  ConfigFields quantization = config.Object("quantization_config");
  const std::string method = quantization.Text("quant_method", "");
  if (method == "mxfp4") return Storage::kMxfp4;
  if (method != "fp8") {
    config.Fail(fmt::format(
        "quantised checkpoints ({}) are not supported; use the F32, F16 or BF16 version of this "
        "model",
        method.empty() ? "quantization_config" : "quant_method " + Quote(method)));
    return Storage::kPlain;
  }
  const std::string format = quantization.Text("fmt", "e4m3");
  const std::vector<int> block = quantization.Has("weight_block_size")
                                     ? quantization.Integers("weight_block_size", {1, 1 << 20})
                                     : std::vector<int>();
  if (format != "e4m3" || block != std::vector<int>{128, 128}) {
    config.Fail(fmt::format(
        "FP8 ({}) with blocks of [{}] is not supported; it must be e4m3 with weight_block_size "
        "[128, 128]",
        Quote(format), fmt::join(block, ", ")));
  }
  return Storage::kFp8Block;
}

}  // namespace convene::model
