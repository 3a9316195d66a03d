#include "text/token_model_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/quote.h"
#include "text/json_fields.h"

namespace convene::text {
namespace {

Result<std::vector<Merge>> ReadMerges(const nlohmann::json& array) {
  std::vector<Merge> merges;
  merges.reserve(array.size());
  for (const nlohmann::json& value : array) {
    if (value.is_string()) {
      const std::string& line = value.get_ref<const std::string&>();
      if (line.starts_with("#version")) continue;
      auto merge = ReadMergeLine(line);
      if (!merge) return merge.error();
      merges.push_back(*std::move(merge));
    } else if (value.is_array() && value.size() == 2 && value[0].is_string() &&
               value[1].is_string()) {
      merges.push_back({.left = value[0].get_ref<const std::string&>(),
                        .right = value[1].get_ref<const std::string&>()});
    } else {
      return Error{"model: \"merges\" must hold pairs of tokens"};
    }
  }
  return merges;
}

// The oldest files do not name the type of their model.
std::string TypeOfOldModel(const JsonFields& fields) {
  const nlohmann::json* vocabulary = fields.Find("vocab");
  if (fields.Find("merges") != nullptr) return "BPE";
  return vocabulary != nullptr && vocabulary->is_array() ? "Unigram" : "WordPiece";
}

Result<TokenModel> ReadBpe(JsonFields fields) {
  if (const nlohmann::json* dropout = fields.Find("dropout");
      dropout != nullptr && (!dropout->is_number() || dropout->get<double>() != 0)) {
    return Error{"model: \"dropout\" makes tokens random, which is for training; set it to null"};
  }
  BpeOptions options{.unk_token = std::nullopt,
                     .continuing_subword_prefix = fields.String("continuing_subword_prefix", ""),
                     .end_of_word_suffix = fields.String("end_of_word_suffix", ""),
                     .fuse_unk = fields.Bool("fuse_unk", false),
                     .byte_fallback = fields.Bool("byte_fallback", false),
                     .ignore_merges = fields.Bool("ignore_merges", false)};
  if (fields.Find("unk_token") != nullptr) options.unk_token = fields.String("unk_token");
  const nlohmann::json& vocab = fields.Object("vocab");
  const nlohmann::json& merge_array = fields.Array("merges");
  if (!fields.status()) return fields.status().error();
  auto tokens = ReadVocabulary(vocab);
  if (!tokens) return tokens.error();
  auto vocabulary = Vocabulary::Create(*std::move(tokens));
  if (!vocabulary) return vocabulary.error();
  const auto merges = ReadMerges(merge_array);
  if (!merges) return merges.error();
  auto bpe = Bpe::Create(*std::move(vocabulary), *merges, std::move(options));
  if (!bpe) return bpe.error();
  return TokenModel(*std::move(bpe));
}

// The number that the reference reads where a file says `value` in its shortest form: the digits,
// rounded once, by a power of ten, rounded again. Among ways to cut a word that should be equally
// good, the last bit decides.
double AsTheReferenceReads(double value) {
  std::array<char, 32> digits{};
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value,
                                          std::chars_format::scientific);
  if (error != std::errc() || !std::isfinite(value)) return value;
  const std::string_view text(digits.data(), end - digits.data());
  const size_t exponent_at = text.find('e');
  int64_t significand = 0;
  int exponent = 0;
  for (const char c : text.substr(0, exponent_at)) {
    if (c >= '0' && c <= '9') significand = significand * 10 + (c - '0');
  }
  const size_t point = text.find('.');
  if (point != text.npos) exponent = -static_cast<int>(exponent_at - point - 1);
  exponent += std::stoi(std::string(text.substr(exponent_at + 1)));
  if (std::abs(exponent) > 22) return value;  // beyond the powers of ten that are exact
  const auto digits_alone = static_cast<double>(significand);
  const double magnitude = exponent < 0 ? digits_alone / std::pow(10.0, -exponent)
                                        : digits_alone * std::pow(10.0, exponent);
  return std::signbit(value) ? -magnitude : magnitude;
}

// Pairs of tokens and scores; ids are their places.
Result<TokenModel> ReadUnigram(JsonFields fields) {
  UnigramOptions options{.unk_id = std::nullopt,
                         .byte_fallback = fields.Bool("byte_fallback", false)};
  if (fields.Find("unk_id") != nullptr) {
    options.unk_id = static_cast<int32_t>(
        std::min(fields.Count("unk_id"), static_cast<uint64_t>(kMaxTokenId) + 1));
  }
  const nlohmann::json& vocab = fields.Array("vocab");
  if (!fields.status()) return fields.status().error();
  std::vector<Token> tokens;
  std::vector<double> scores;
  tokens.reserve(vocab.size());
  scores.reserve(vocab.size());
  for (const nlohmann::json& pair : vocab) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_number()) {
      return Error{"model: \"vocab\" must hold pairs of tokens and scores"};
    }
    if (tokens.size() > kMaxTokenId) {
      return Error{fmt::format("model: more than {} tokens", kMaxTokenId + 1)};
    }
    tokens.push_back(
        {.text = pair[0].get_ref<const std::string&>(), .id = static_cast<int32_t>(tokens.size())});
    scores.push_back(AsTheReferenceReads(pair[1].get<double>()));
  }
  auto vocabulary = Vocabulary::Create(std::move(tokens));
  if (!vocabulary) return vocabulary.error();
  auto unigram = Unigram::Create(*std::move(vocabulary), std::move(scores), options);
  if (!unigram) return unigram.error();
  return TokenModel(*std::move(unigram));
}

}  // namespace

Result<std::vector<Token>> ReadVocabulary(const nlohmann::json& object) {
  if (!object.is_object()) return Error{"the vocabulary must be an object of tokens and their ids"};
  std::vector<Token> tokens;
  tokens.reserve(object.size());
  for (auto entry = object.begin(); entry != object.end(); ++entry) {
    if (!entry->is_number_unsigned() || entry->get<uint64_t>() > kMaxTokenId) {
      return Error{fmt::format("the vocabulary gives {} no id from 0 to {}", Quote(entry.key()),
                               kMaxTokenId)};
    }
    tokens.push_back({.text = entry.key(), .id = entry->get<int32_t>()});
  }
  return tokens;
}

Result<Merge> ReadMergeLine(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == line.npos || line.find(' ', space + 1) != line.npos) {
    return Error{fmt::format("the merge {} is not two tokens and a space between", Quote(line))};
  }
  return Merge{.left = std::string(line.substr(0, space)),
               .right = std::string(line.substr(space + 1))};
}

Result<TokenModel> ReadTokenModel(const nlohmann::json& value) {
  JsonFields fields(value, "model");
  const std::string type = fields.String("type", TypeOfOldModel(fields));
  if (!fields.status()) return fields.status().error();
  if (type == "BPE") return ReadBpe(std::move(fields));
  if (type == "Unigram") return ReadUnigram(std::move(fields));
  return Error{fmt::format("the tokenizer model {} is not supported; convene reads BPE and Unigram",
                           Quote(type))};
}

}  // namespace convene::text
