#include "text/vocabulary_files.h"

#include <fmt/format.h>

#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "base/is_there.h"
#include "base/json.h"
#include "base/quote.h"
#include "base/read_file.h"
#include "text/json_fields.h"
#include "text/token_model_json.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_steps_json.h"

namespace convene::text {
namespace {

// What the Python class of a tokenizer fixes when there is no tokenizer.json.
struct TokenizerClass {
  std::string_view name;
  bool normalizes;           // to NFC
  std::string_view pattern;  // between which words are cut
  // Roles whose token is <|endoftext|> unless the configuration says otherwise.
  std::vector<std::string> end_of_text_roles;
};

const std::vector<TokenizerClass>& KnownClasses() {
  static const std::vector<TokenizerClass> classes{
      {.name = "Qwen2Tokenizer",
       .normalizes = true,
       .pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                  R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       .end_of_text_roles = {"unk_token", "eos_token", "pad_token"}},
      {.name = "GPT2Tokenizer",
       .normalizes = false,
       .pattern = kGpt2Pattern,
       .end_of_text_roles = {"unk_token", "bos_token", "eos_token"}},
  };
  return classes;
}

// The document that a file holds. Errors name the file.
Result<nlohmann::json> ParseFile(std::string_view text, std::string_view name) {
  auto document = ParseJson(text);
  if (!document) return document.error().At(name);
  return document;
}

// By the class that tokenizer_config.json names, else by the model type of config.json.
Result<const TokenizerClass*> FindClass(const VocabularyTexts& texts,
                                        const TokenizerConfig& config) {
  std::string name = config.tokenizer_class;
  if (name.empty() && texts.model_config) {
    const auto model = ParseFile(*texts.model_config, "config.json");
    if (!model) return model.error();
    const std::string type = JsonFields(*model, "config.json").String("model_type", "");
    if (type.starts_with("qwen2") || type.starts_with("qwen3")) name = "Qwen2Tokenizer";
    if (type == "gpt2") name = "GPT2Tokenizer";
  }
  for (const TokenizerClass& known : KnownClasses()) {
    if (name == known.name) return &known;
  }
  if (name.empty()) {
    return Error{
        "there are vocab.json and merges.txt, but nothing says how the tokenizer cuts text: add "
        "tokenizer.json, or \"tokenizer_class\" to tokenizer_config.json"};
  }
  return Error{
      fmt::format("the tokenizer class {} is not supported without a tokenizer.json; "
                  "convene knows Qwen2Tokenizer and GPT2Tokenizer",
                  Quote(name))};
}

Result<std::vector<Merge>> ParseMerges(std::string_view text) {
  std::vector<Merge> merges;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    auto merge = ReadMergeLine(line);
    if (!merge) return merge.error().At(fmt::format("merges.txt, line {}", number));
    merges.push_back(*std::move(merge));
  }
  return merges;
}

// tokenizer_config.json with what older files beside it say.
Result<TokenizerConfig> ParseConfigs(const VocabularyTexts& texts) {
  TokenizerConfig config;
  if (texts.tokenizer_config) {
    const auto document = ParseFile(*texts.tokenizer_config, "tokenizer_config.json");
    if (!document) return document.error();
    auto read = ReadTokenizerConfig(*document);
    if (!read) return read.error();
    config = *std::move(read);
  }
  if (config.added_tokens || !texts.special_tokens_map) return config;
  const auto document = ParseFile(*texts.special_tokens_map, "special_tokens_map.json");
  if (!document) return document.error();
  if (Status status = ReadSpecialTokens(*document, &config); !status) return status.error();
  return config;
}

// Marks `content` special, or adds it so.
void AddSpecialToken(const std::string& content, std::vector<AddedToken>* tokens) {
  for (AddedToken& token : *tokens) {
    if (token.content != content) continue;
    token.special = true;
    return;
  }
  tokens->push_back({.content = content, .normalized = false, .special = true});
}

// In the order in which they get ids: by those their file gives, then the special tokens.
Result<std::vector<AddedToken>> CollectAddedTokens(const VocabularyTexts& texts,
                                                   const TokenizerConfig& config) {
  std::map<int64_t, AddedToken> by_id =
      config.added_tokens.value_or(std::map<int64_t, AddedToken>());
  if (!config.added_tokens && texts.added_tokens) {
    const auto document = ParseFile(*texts.added_tokens, "added_tokens.json");
    if (!document) return document.error();
    auto tokens = ReadVocabulary(*document);
    if (!tokens) return tokens.error().At("added_tokens.json");
    for (const Token& token : *tokens) by_id[token.id] = {.content = token.text};
  }
  std::vector<AddedToken> tokens;
  for (auto& [id, token] : by_id) tokens.push_back(std::move(token));
  for (const char* role : kSpecialTokenRoles) {
    const auto found = config.special_tokens.find(role);
    if (found != config.special_tokens.end() && !found->second.content.empty()) {
      AddSpecialToken(found->second.content, &tokens);
    }
  }
  for (const AddedToken& token : config.additional_special_tokens) {
    if (!token.content.empty()) AddSpecialToken(token.content, &tokens);
  }
  if (!config.added_tokens) {
    // added_tokens.json says nothing of flags: special tokens are matched as they are.
    for (AddedToken& token : tokens) token.normalized = !token.special;
  }
  return tokens;
}

// <bos> text <eos>, as far as the configuration wants them.
TokenTemplate MakeTemplate(const TokenizerConfig& config, const AddedTokens& added_tokens) {
  TokenTemplate token_template;
  const auto append = [&](const char* role) {
    const auto found = config.special_tokens.find(role);
    if (found == config.special_tokens.end() || found->second.content.empty()) return;
    const auto id = added_tokens.IdOf(found->second.content);
    CHECK(id.has_value());  // all special tokens have been added
    token_template.parts.emplace_back(std::vector<int32_t>{*id});
  };
  if (config.add_bos_token) append("bos_token");
  token_template.parts.emplace_back(TextTokens{});
  if (config.add_eos_token) append("eos_token");
  return token_template;
}

}  // namespace

Result<std::string> ReadTokenizerFile(const std::string& path) {
  constexpr uint64_t kMaxBytes = 512 << 20;
  return ReadFile(path, kMaxBytes);
}

Result<std::optional<std::string>> ReadTokenizerFileIfThere(const std::string& path) {
  if (!IsThere(path)) return std::optional<std::string>();
  auto contents = ReadTokenizerFile(path);
  if (!contents) return contents.error();
  return std::optional(*std::move(contents));
}

Result<TokenizerParts> ReadVocabularyFiles(const std::string& directory) {
  VocabularyTexts texts;
  const std::pair<const char*, std::string*> needed[] = {{"vocab.json", &texts.vocab},
                                                         {"merges.txt", &texts.merges}};
  for (const auto& [name, text] : needed) {
    auto contents = ReadTokenizerFile(directory + "/" + name);
    if (!contents) return contents.error();
    *text = *std::move(contents);
  }
  const std::pair<const char*, std::optional<std::string>*> optional[] = {
      {"tokenizer_config.json", &texts.tokenizer_config},
      {"special_tokens_map.json", &texts.special_tokens_map},
      {"added_tokens.json", &texts.added_tokens},
      {"config.json", &texts.model_config}};
  for (const auto& [name, text] : optional) {
    auto contents = ReadTokenizerFileIfThere(directory + "/" + name);
    if (!contents) return contents.error();
    *text = *std::move(contents);
  }
  auto parts = ParseVocabularyTexts(texts);
  if (!parts) return parts.error().At(directory);
  return parts;
}

Result<TokenizerParts> ParseVocabularyTexts(const VocabularyTexts& texts) {
  auto config = ParseConfigs(texts);
  if (!config) return config.error();
  const auto tokenizer_class = FindClass(texts, *config);
  if (!tokenizer_class) return tokenizer_class.error();
  for (const std::string& role : (*tokenizer_class)->end_of_text_roles) {
    config->special_tokens.try_emplace(role, AddedToken{.content = "<|endoftext|>"});
  }

  const auto document = ParseFile(texts.vocab, "vocab.json");
  if (!document) return document.error();
  auto tokens = ReadVocabulary(*document);
  if (!tokens) return tokens.error().At("vocab.json");
  auto vocabulary = Vocabulary::Create(*std::move(tokens));
  if (!vocabulary) return vocabulary.error().At("vocab.json");
  const auto merges = ParseMerges(texts.merges);
  if (!merges) return merges.error();
  auto model = Bpe::Create(*std::move(vocabulary), *merges, {});
  if (!model) return model.error().At("merges.txt");

  Normalizer normalizer;
  if ((*tokenizer_class)->normalizes) normalizer = Normalizer({UnicodeForm::kNfc});
  auto pattern = Pattern::Expression((*tokenizer_class)->pattern);
  if (!pattern) return pattern.error();
  std::vector<PreTokenizerStep> steps{Split{.pattern = *std::move(pattern)}};
  // Qwen2 prefixes every word that has no space, GPT-2 the text.
  if (config->add_prefix_space) {
    steps.insert((*tokenizer_class)->normalizes ? steps.end() : steps.begin(),
                 PrefixPieces{.prefix = " "});
  }
  steps.emplace_back(SpellPieces{});

  const auto to_add = CollectAddedTokens(texts, *config);
  if (!to_add) return to_add.error();
  auto added_tokens = AddedTokens::Create(*to_add, model->vocabulary(), normalizer);
  if (!added_tokens) return added_tokens.error();
  TokenTemplate token_template = MakeTemplate(*config, *added_tokens);
  return TokenizerParts{.normalizer = std::move(normalizer),
                        .pre_tokenizer = PreTokenizer(std::move(steps)),
                        .model = *std::move(model),
                        .added_tokens = *std::move(added_tokens),
                        .templates = {std::move(token_template)},
                        .decoder = Decoder({DecodeByteLevel{}}),
                        .named_tokens = RolesOf(*config)};
}

}  // namespace convene::text
