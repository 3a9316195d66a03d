#include "text/tokenizer_steps_json.h"

#include <array>
#include <utility>

#include "base/quote.h"
#include "text/base64.h"
#include "text/code_points.h"
#include "text/growth_limit.h"
#include "text/json_fields.h"

namespace convene::text {
namespace {

Error UnknownType(std::string_view kind, std::string_view type, std::string_view known) {
  return Error{
      fmt::format("the {} {} is not supported; convene reads {}", kind, Quote(type), known)};
}

// Asked before each step is made: making one may take long, as a Split at a long expression does.
template <typename Step>
Status CheckNumber(const std::vector<Step>& steps, std::string_view kind) {
  if (steps.size() <= kMaxSteps) return {};
  return Error{fmt::format("the {} has more than {} steps; remove those that are not needed", kind,
                           kMaxSteps)};
}

// {"String": "text"} or {"Regex": "expression"}.
Result<Pattern> ReadPattern(const nlohmann::json& object, std::string_view where) {
  JsonFields fields(object, where);
  if (fields.Find("Regex") != nullptr) {
    const std::string expression = fields.String("Regex");
    if (!fields.status()) return fields.status().error();
    return Pattern::Expression(expression);
  }
  const std::string text = fields.String("String");
  if (!fields.status()) return fields.status().error();
  return Pattern::Literal(text);
}

Result<Replace> ReadReplace(const nlohmann::json& value, std::string_view where) {
  JsonFields fields(value, where);
  std::string content = fields.String("content");
  auto pattern = ReadPattern(fields.Object("pattern"), where);
  if (!fields.status()) return fields.status().error();
  if (!pattern) return pattern.error();
  return Replace{.pattern = *std::move(pattern), .content = std::move(content)};
}

struct Metaspace {
  std::string replacement;
  std::string scheme;  // "always", "first" or "never"
  bool split;
};

Result<Metaspace> ReadMetaspace(const nlohmann::json& value, std::string_view where) {
  JsonFields fields(value, where);
  // Old files say add_prefix_space; new ones may say both.
  const bool add_prefix_space = fields.Bool("add_prefix_space", true);
  Metaspace metaspace{
      .replacement = fields.Character("replacement"),
      .scheme = fields.String("prepend_scheme", add_prefix_space ? "always" : "never"),
      .split = fields.Bool("split", true)};
  if (metaspace.scheme != "always" && metaspace.scheme != "first" && metaspace.scheme != "never") {
    fields.Fail("prepend_scheme", "\"always\", \"first\" or \"never\"");
  }
  if (!add_prefix_space && metaspace.scheme != "never") {
    fields.Fail("prepend_scheme", "\"never\", since \"add_prefix_space\" is false");
  }
  if (!fields.status()) return fields.status().error();
  return metaspace;
}

Result<MapCharacters> ReadMapCharacters(JsonFields* fields) {
  const std::string encoded = fields->String("precompiled_charsmap");
  if (!fields->status()) return fields->status().error();
  const auto bytes = DecodeBase64(encoded);
  if (!bytes) return Error{"normalizer Precompiled: \"precompiled_charsmap\" is not base64"};
  auto map = CharacterMap::Create(*bytes);
  if (!map) return map.error();
  return MapCharacters{*std::move(map)};
}

Status AppendNormalizer(const nlohmann::json& value, std::vector<NormalizerStep>* steps) {
  if (Status few = CheckNumber(*steps, "normalizer"); !few) return few;
  JsonFields fields(value, "normalizer");
  const std::string type = fields.String("type");
  if (!fields.status()) return fields.status();
  if (type == "Sequence") {
    for (const nlohmann::json& step : fields.Array("normalizers")) {
      if (Status status = AppendNormalizer(step, steps); !status) return status;
    }
  } else if (type == "NFC") {
    steps->push_back(UnicodeForm::kNfc);
  } else if (type == "NFD") {
    steps->push_back(UnicodeForm::kNfd);
  } else if (type == "NFKC") {
    steps->push_back(UnicodeForm::kNfkc);
  } else if (type == "NFKD") {
    steps->push_back(UnicodeForm::kNfkd);
  } else if (type == "Lowercase") {
    steps->push_back(Lowercase{});
  } else if (type == "StripAccents") {
    steps->push_back(StripAccents{});
  } else if (type == "Strip") {
    steps->push_back(Strip{.left = fields.Bool("strip_left"), .right = fields.Bool("strip_right")});
  } else if (type == "Replace") {
    auto replace = ReadReplace(value, "normalizer Replace");
    if (!replace) return replace.error();
    steps->push_back(*std::move(replace));
  } else if (type == "Prepend") {
    steps->push_back(Prepend{.prefix = fields.String("prepend")});
  } else if (type == "ByteLevel") {
    steps->push_back(SpellBytes{});
  } else if (type == "Precompiled") {
    auto map = ReadMapCharacters(&fields);
    if (!map) return map.error();
    steps->push_back(*std::move(map));
  } else {
    return UnknownType("normalizer", type,
                       "NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, "
                       "ByteLevel, Precompiled and Sequence");
  }
  return fields.status();
}

Result<SplitBehavior> ReadBehavior(const std::string& name) {
  constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kBehaviors{
      {{"Removed", SplitBehavior::kRemoved},
       {"Isolated", SplitBehavior::kIsolated},
       {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
       {"MergedWithNext", SplitBehavior::kMergedWithNext},
       {"Contiguous", SplitBehavior::kContiguous}}};
  for (const auto& [known, behavior] : kBehaviors) {
    if (name == known) return behavior;
  }
  return UnknownType("split behavior", name,
                     "Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous");
}

Status AppendSplit(const nlohmann::json& value, std::vector<PreTokenizerStep>* steps) {
  JsonFields fields(value, "pre-tokenizer Split");
  const std::string behavior_name = fields.String("behavior");
  const bool invert = fields.Bool("invert");
  const nlohmann::json& pattern_object = fields.Object("pattern");
  if (!fields.status()) return fields.status();
  auto pattern = ReadPattern(pattern_object, "pre-tokenizer Split");
  if (!pattern) return pattern.error();
  const auto behavior = ReadBehavior(behavior_name);
  if (!behavior) return behavior.error();
  steps->push_back(Split{.pattern = *std::move(pattern), .behavior = *behavior, .invert = invert});
  return {};
}

Status AppendByteLevel(JsonFields* fields, std::vector<PreTokenizerStep>* steps) {
  if (fields->Bool("add_prefix_space")) steps->push_back(PrefixPieces{.prefix = " "});
  if (fields->Bool("use_regex", true)) {
    auto pattern = Pattern::Expression(kGpt2Pattern);
    if (!pattern) return pattern.error();
    steps->push_back(Split{.pattern = *std::move(pattern)});
  }
  steps->push_back(SpellPieces{});
  return fields->status();
}

Status AppendMetaspace(const nlohmann::json& value, std::vector<PreTokenizerStep>* steps) {
  auto metaspace = ReadMetaspace(value, "pre-tokenizer Metaspace");
  if (!metaspace) return metaspace.error();
  auto pattern = Pattern::Literal(metaspace->replacement);
  if (!pattern) return pattern.error();
  steps->push_back(ReplaceSpaces{.replacement = metaspace->replacement});
  if (metaspace->scheme != "never") {
    steps->push_back(
        PrefixPieces{.prefix = metaspace->replacement, .only_first = metaspace->scheme == "first"});
  }
  if (metaspace->split) {
    steps->push_back(
        Split{.pattern = *std::move(pattern), .behavior = SplitBehavior::kMergedWithNext});
  }
  return {};
}

Status AppendPreTokenizer(const nlohmann::json& value, std::vector<PreTokenizerStep>* steps) {
  if (Status few = CheckNumber(*steps, "pre-tokenizer"); !few) return few;
  JsonFields fields(value, "pre-tokenizer");
  const std::string type = fields.String("type");
  if (!fields.status()) return fields.status();
  if (type == "Sequence") {
    for (const nlohmann::json& step : fields.Array("pretokenizers")) {
      if (Status status = AppendPreTokenizer(step, steps); !status) return status;
    }
  } else if (type == "ByteLevel") {
    return AppendByteLevel(&fields, steps);
  } else if (type == "Split") {
    return AppendSplit(value, steps);
  } else if (type == "Metaspace") {
    return AppendMetaspace(value, steps);
  } else if (type == "Digits") {
    const bool individual = fields.Bool("individual_digits");
    steps->push_back(
        Split{.pattern = &IsNumeric,
              .behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
  } else if (type == "Whitespace") {
    // Words of letters and digits as Rust's regular expressions know them (see added_tokens.cc).
    auto pattern =
        Pattern::Expression(R"([\w\x{200c}\x{200d}&&[^²³¹¼½¾]]+|[[^\w\s\x{200c}\x{200d}]²³¹¼½¾]+)");
    if (!pattern) return pattern.error();
    steps->push_back(
        Split{.pattern = *std::move(pattern), .behavior = SplitBehavior::kRemoved, .invert = true});
  } else if (type == "WhitespaceSplit") {
    steps->push_back(Split{.pattern = &IsWhitespace, .behavior = SplitBehavior::kRemoved});
  } else if (type == "Punctuation") {
    const auto behavior = ReadBehavior(fields.String("behavior", "Isolated"));
    if (!behavior) return behavior.error();
    steps->push_back(Split{.pattern = &IsPunctuation, .behavior = *behavior});
  } else {
    return UnknownType("pre-tokenizer", type,
                       "ByteLevel, Split, Metaspace, Digits, Whitespace, WhitespaceSplit, "
                       "Punctuation and Sequence");
  }
  return fields.status();
}

Status AppendDecoder(const nlohmann::json& value, std::vector<DecoderStep>* steps) {
  if (Status few = CheckNumber(*steps, "decoder"); !few) return few;
  JsonFields fields(value, "decoder");
  const std::string type = fields.String("type");
  if (!fields.status()) return fields.status();
  if (type == "Sequence") {
    for (const nlohmann::json& step : fields.Array("decoders")) {
      if (Status status = AppendDecoder(step, steps); !status) return status;
    }
  } else if (type == "ByteLevel") {
    steps->push_back(DecodeByteLevel{});
  } else if (type == "ByteFallback") {
    steps->push_back(DecodeByteFallback{});
  } else if (type == "Fuse") {
    steps->push_back(Fuse{});
  } else if (type == "Strip") {
    steps->push_back(StripToken{.content = fields.Character("content"),
                                .start = fields.Count("start"),
                                .stop = fields.Count("stop")});
  } else if (type == "Metaspace") {
    auto metaspace = ReadMetaspace(value, "decoder Metaspace");
    if (!metaspace) return metaspace.error();
    steps->push_back(DecodeMetaspace{.replacement = metaspace->replacement,
                                     .drops_in_first = metaspace->scheme != "never"});
  } else if (type == "Replace") {
    auto replace = ReadReplace(value, "decoder Replace");
    if (!replace) return replace.error();
    steps->push_back(*std::move(replace));
  } else {
    return UnknownType("decoder", type,
                       "ByteLevel, ByteFallback, Fuse, Strip, Metaspace, Replace and Sequence");
  }
  return fields.status();
}

}  // namespace

Result<Normalizer> ReadNormalizer(const nlohmann::json& value) {
  std::vector<NormalizerStep> steps;
  if (value.is_null()) return Normalizer();
  if (Status status = AppendNormalizer(value, &steps); !status) return status.error();
  if (Status few = CheckNumber(steps, "normalizer"); !few) return few.error();
  return Normalizer(std::move(steps));
}

Result<PreTokenizer> ReadPreTokenizer(const nlohmann::json& value) {
  std::vector<PreTokenizerStep> steps;
  if (value.is_null()) return PreTokenizer();
  if (Status status = AppendPreTokenizer(value, &steps); !status) return status.error();
  if (Status few = CheckNumber(steps, "pre-tokenizer"); !few) return few.error();
  return PreTokenizer(std::move(steps));
}

Result<Decoder> ReadDecoder(const nlohmann::json& value) {
  std::vector<DecoderStep> steps;
  if (value.is_null()) return Decoder();
  if (Status status = AppendDecoder(value, &steps); !status) return status.error();
  if (Status few = CheckNumber(steps, "decoder"); !few) return few.error();
  return Decoder(std::move(steps));
}

}  // namespace convene::text
