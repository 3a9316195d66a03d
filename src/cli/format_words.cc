#include "cli/format_words.h"

#include <fmt/format.h>

#include "base/quote.h"

namespace convene::cli {
namespace {

using kernels::WeightFormat;

// One part behind the weights' format. False: unknown, or there already.
bool ParsePart(std::string_view part, engine::FormatWishes* wishes, bool* has_group) {
  for (const int group : {32, 64, 128}) {
    if (part != std::to_string(group)) continue;
    if (wishes->weights != WeightFormat::kInt4 || *has_group) return false;
    *has_group = true;
    wishes->int4_group = group;
    return true;
  }
  const bool is_int8 = part.ends_with("=int8");
  if (!is_int8 && !part.ends_with("=bf16")) return false;
  const std::string_view name = part.substr(0, part.find('='));
  if (name == "act" && !wishes->activations) {
    wishes->activations =
        is_int8 ? kernels::ActivationFormat::kInt8 : kernels::ActivationFormat::kBf16;
    return true;
  }
  if (name == "kv" && !wishes->kv) {
    wishes->kv = is_int8 ? kernels::KvFormat::kInt8 : kernels::KvFormat::kBf16;
    return true;
  }
  return false;
}

}  // namespace

Result<engine::FormatWishes> ParseFormatWord(std::string_view word) {
  engine::FormatWishes wishes;
  size_t end = word.find(':');
  wishes.weights = kernels::WeightFormatFromName(word.substr(0, end));
  if (!wishes.weights) {
    return Error{fmt::format("{} is no format; use f32, bf16, int8 or int4, as in int4:64:act=bf16",
                             Quote(word))};
  }
  bool has_group = false;
  while (end != std::string_view::npos) {
    const size_t begin = end + 1;
    end = word.find(':', begin);
    const std::string_view part = word.substr(begin, end - begin);
    if (!ParsePart(part, &wishes, &has_group)) {
      return Error{
          fmt::format("{} cannot be in {}; behind the weights there may be, once each, "
                      "act=bf16 or int8, kv=bf16 or int8 and for int4 32, 64 or 128",
                      Quote(part), Quote(word))};
    }
  }
  const Result<runtime::Formats> formats = engine::ResolveFormats(wishes, *wishes.weights);
  if (!formats) return formats.error().At(Quote(word));
  return wishes;
}

}  // namespace convene::cli
