#include "text/vocabulary_files.h"

#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "base/quote.h"
#include "text/json_fields.h"
#include "text/token_model_json.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_file.h"
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

// By the class that tokenizer_config.json names, else by the model type of config.json.
Result<const TokenizerClass*> FindClass(const std::string& directory,
                                        const TokenizerConfig& config) {
  std::string name = config.tokenizer_class;
  if (name.empty() && FileExists(directory + "/config.json")) {
    const auto model = ReadJsonFile(directory + "/config.json");
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
        fmt::format("{} has vocab.json and merges.txt, but nothing says how its tokenizer "
                    "cuts text: add tokenizer.json, or \"tokenizer_class\" to "
                    "tokenizer_config.json",
                    directory)};
  }
  return Error{
      fmt::format("{}: the tokenizer class {} is not supported without a tokenizer.json; "
                  "convene knows Qwen2Tokenizer and GPT2Tokenizer",
                  directory, Quote(name))};
}

Result<std::vector<Merge>> ReadMergesFile(const std::string& path) {
  const auto contents = ReadTokenizerFile(path);
  if (!contents) return contents.error();
  std::vector<Merge> merges;
  std::string_view rest = *contents;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    auto merge = ReadMergeLine(line);
    if (!merge) return Error{fmt::format("{}, line {}: {}", path, number, merge.error().message)};
    merges.push_back(*std::move(merge));
  }
  return merges;
}

// The configuration of `directory` with what older files beside it say.
Result<TokenizerConfig> ReadConfigFiles(const std::string& directory) {
  TokenizerConfig config;
  if (FileExists(directory + "/tokenizer_config.json")) {
    const auto document = ReadJsonFile(directory + "/tokenizer_config.json");
    if (!document) return document.error();
    auto read = ReadTokenizerConfig(*document);
    if (!read) return Error{fmt::format("{}: {}", directory, read.error().message)};
    config = *std::move(read);
  }
  if (config.added_tokens) return config;
  if (FileExists(directory + "/special_tokens_map.json")) {
    const auto document = ReadJsonFile(directory + "/special_tokens_map.json");
    if (!document) return document.error();
    if (Status status = ReadSpecialTokens(*document, &config); !status) return status.error();
  }
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
Result<std::vector<AddedToken>> CollectAddedTokens(const std::string& directory,
                                                   const TokenizerConfig& config) {
  std::map<int64_t, AddedToken> by_id =
      config.added_tokens.value_or(std::map<int64_t, AddedToken>());
  if (!config.added_tokens && FileExists(directory + "/added_tokens.json")) {
    const auto document = ReadJsonFile(directory + "/added_tokens.json");
    if (!document) return document.error();
    auto tokens = ReadVocabulary(*document);
    if (!tokens) return Error{fmt::format("{}: {}", directory, tokens.error().message)};
    for (const Token& token : *tokens) by_id[token.id] = {.content = token.text};
  }
  std::vector<AddedToken> tokens;
  for (auto& [id, token] : by_id) tokens.push_back(std::move(token));
  for (const char* role : kSpecialTokenRoles) {
    const auto found = config.special_tokens.find(role);
    if (found != config.special_tokens.end() && !found->second.empty()) {
      AddSpecialToken(found->second, &tokens);
    }
  }
  for (const std::string& content : config.additional_special_tokens) {
    AddSpecialToken(content, &tokens);
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
    if (found == config.special_tokens.end() || found->second.empty()) return;
    const auto id = added_tokens.IdOf(found->second);
    CHECK(id.has_value());  // all special tokens have been added
    token_template.parts.emplace_back(std::vector<int32_t>{*id});
  };
  if (config.add_bos_token) append("bos_token");
  token_template.parts.emplace_back(TextTokens{});
  if (config.add_eos_token) append("eos_token");
  return token_template;
}

}  // namespace

Result<TokenizerParts> ReadVocabularyFiles(const std::string& directory) {
  auto config = ReadConfigFiles(directory);
  if (!config) return config.error();
  const auto tokenizer_class = FindClass(directory, *config);
  if (!tokenizer_class) return tokenizer_class.error();
  for (const std::string& role : (*tokenizer_class)->end_of_text_roles) {
    config->special_tokens.try_emplace(role, "<|endoftext|>");
  }

  const auto document = ReadJsonFile(directory + "/vocab.json");
  if (!document) return document.error();
  auto tokens = ReadVocabulary(*document);
  if (!tokens) return Error{fmt::format("{}/vocab.json: {}", directory, tokens.error().message)};
  auto vocabulary = Vocabulary::Create(*std::move(tokens));
  if (!vocabulary) {
    return Error{fmt::format("{}/vocab.json: {}", directory, vocabulary.error().message)};
  }
  const auto merges = ReadMergesFile(directory + "/merges.txt");
  if (!merges) return merges.error();
  auto model = Bpe::Create(*std::move(vocabulary), *merges, {});
  if (!model) return Error{fmt::format("{}/merges.txt: {}", directory, model.error().message)};

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

  const auto to_add = CollectAddedTokens(directory, *config);
  if (!to_add) return to_add.error();
  auto added_tokens = AddedTokens::Create(*to_add, model->vocabulary(), normalizer);
  if (!added_tokens) return Error{fmt::format("{}: {}", directory, added_tokens.error().message)};
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
