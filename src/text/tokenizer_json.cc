#include "text/tokenizer_json.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/quote.h"
#include "text/json_fields.h"
#include "text/token_model_json.h"
#include "text/tokenizer_steps_json.h"

namespace convene::text {
namespace {

// The ids of a special token, as "special_tokens" lists them.
Result<std::vector<int32_t>> ReadTemplateIds(const nlohmann::json& special_tokens,
                                             const std::string& name) {
  const std::string where = fmt::format("post-processor TemplateProcessing, token {}", Quote(name));
  JsonFields tokens(special_tokens, where);
  const nlohmann::json& token = tokens.Object(name.c_str());
  if (!tokens.status()) return tokens.status().error();
  JsonFields fields(token, where);
  std::vector<int32_t> ids;
  for (const nlohmann::json& id : fields.Array("ids")) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMaxTokenId) {
      return Error{fmt::format("{}: \"ids\" must hold ids of tokens", where)};
    }
    ids.push_back(id.get<int32_t>());
  }
  if (!fields.status()) return fields.status().error();
  return ids;
}

Result<TokenTemplate> ReadTemplate(const nlohmann::json& value) {
  constexpr std::string_view kWhere = "post-processor TemplateProcessing";
  JsonFields fields(value, kWhere);
  const nlohmann::json& special_tokens = fields.Object("special_tokens");
  const nlohmann::json& single = fields.Array("single");
  if (!fields.status()) return fields.status().error();
  TokenTemplate token_template;
  for (const nlohmann::json& part : single) {
    JsonFields part_fields(part, kWhere);
    if (part_fields.Find("Sequence") != nullptr) {
      JsonFields sequence(part_fields.Object("Sequence"), kWhere);
      if (sequence.String("id") != "A") sequence.Fail("id", "\"A\" in \"single\"");
      if (!sequence.status()) return sequence.status().error();
      token_template.parts.emplace_back(TextTokens{});
      continue;
    }
    JsonFields special(part_fields.Object("SpecialToken"), kWhere);
    const std::string name = special.String("id");
    if (!part_fields.status()) return part_fields.status().error();
    if (!special.status()) return special.status().error();
    auto ids = ReadTemplateIds(special_tokens, name);
    if (!ids) return ids.error();
    token_template.parts.emplace_back(*std::move(ids));
  }
  const auto num_texts =
      std::count_if(token_template.parts.begin(), token_template.parts.end(),
                    [](const auto& part) { return std::holds_alternative<TextTokens>(part); });
  if (num_texts != 1) {
    return Error{fmt::format("{}: \"single\" has the text {} times, but must have it once", kWhere,
                             num_texts)};
  }
  return token_template;
}

Status AppendTemplates(const nlohmann::json& value, std::vector<TokenTemplate>* templates) {
  JsonFields fields(value, "post-processor");
  const std::string type = fields.String("type");
  if (!fields.status()) return fields.status();
  if (type == "Sequence") {
    for (const nlohmann::json& processor : fields.Array("processors")) {
      if (Status status = AppendTemplates(processor, templates); !status) return status;
    }
  } else if (type == "TemplateProcessing") {
    auto token_template = ReadTemplate(value);
    if (!token_template) return token_template.error();
    templates->push_back(*std::move(token_template));
  } else if (type != "ByteLevel") {  // which only moves offsets
    return Error{
        fmt::format("the post-processor {} is not supported; convene reads "
                    "TemplateProcessing, ByteLevel and Sequence",
                    Quote(type))};
  }
  return fields.status();
}

Result<std::vector<AddedToken>> ReadAddedTokens(const nlohmann::json& value) {
  std::vector<AddedToken> tokens;
  if (value.is_null()) return tokens;
  if (!value.is_array()) return Error{"\"added_tokens\" must be an array"};
  for (const nlohmann::json& entry : value) {
    auto token = ReadAddedToken(entry);
    if (!token) return token.error();
    // It says nothing (see AddedTokens::Create), but a file with nonsense here is broken.
    const std::string where = fmt::format("added token {}", Quote(token->content));
    JsonFields fields(entry, where);
    const uint64_t id = fields.Count("id");
    if (id > kMaxTokenId) fields.Fail("id", fmt::format("from 0 to {}", kMaxTokenId));
    if (!fields.status()) return fields.status().error();
    tokens.push_back(*std::move(token));
  }
  return tokens;
}

// The tokens that have a role, in the order in which transformers adds them.
std::vector<const AddedToken*> TokensWithRoles(const TokenizerConfig& config) {
  std::vector<const AddedToken*> tokens;
  for (const char* role : kSpecialTokenRoles) {
    const auto found = config.special_tokens.find(role);
    if (found == config.special_tokens.end() || found->second.content.empty()) continue;
    tokens.push_back(&found->second);
  }
  return tokens;
}

// Appends to `tokens`, those of tokenizer.json, what the configuration adds.
void AddConfiguredTokens(const TokenizerConfig& config, std::vector<AddedToken>* tokens) {
  const std::vector<const AddedToken*> with_roles = TokensWithRoles(config);
  const auto has_role = [&](const std::string& content) {
    return std::ranges::any_of(with_roles,
                               [&](const AddedToken* token) { return token->content == content; });
  };
  if (config.added_tokens) {
    // Those that are there already are added again, because then the last one's flags count.
    for (const auto& [id, configured] : *config.added_tokens) {
      AddedToken& token = tokens->emplace_back(configured);
      token.special |= has_role(token.content);
    }
  } else {
    for (AddedToken& token : *tokens) token.special |= has_role(token.content);
  }
  std::unordered_set<std::string> known;
  for (const AddedToken& token : *tokens) known.insert(token.content);
  for (const AddedToken* with_role : with_roles) {
    if (!known.insert(with_role->content).second) continue;
    tokens->push_back(*with_role);
    tokens->back().special = true;
  }
  for (const AddedToken& token : config.additional_special_tokens) {
    if (known.insert(token.content).second) tokens->push_back(token);
  }
}

}  // namespace

Result<TokenizerParts> ReadTokenizerJson(const nlohmann::json& document,
                                         const TokenizerConfig* config) {
  JsonFields fields(document, "tokenizer.json");
  if (const std::string version = fields.String("version", "1.0"); version != "1.0") {
    fields.Fail("version", "\"1.0\"");
  }
  const nlohmann::json& model_object = fields.Object("model");
  if (!fields.status()) return fields.status().error();
  const auto field = [&](const char* key) {
    static const nlohmann::json null;
    const nlohmann::json* value = fields.Find(key);
    return std::cref(value == nullptr ? null : *value);
  };

  auto model = ReadTokenModel(model_object);
  if (!model) return model.error();
  auto normalizer = ReadNormalizer(field("normalizer"));
  if (!normalizer) return normalizer.error();
  auto pre_tokenizer = ReadPreTokenizer(field("pre_tokenizer"));
  if (!pre_tokenizer) return pre_tokenizer.error();
  auto decoder = ReadDecoder(field("decoder"));
  if (!decoder) return decoder.error();
  auto tokens = ReadAddedTokens(field("added_tokens"));
  if (!tokens) return tokens.error();
  if (config != nullptr) AddConfiguredTokens(*config, &*tokens);
  auto added_tokens = AddedTokens::Create(*tokens, model->vocabulary(), *normalizer);
  if (!added_tokens) return added_tokens.error();
  std::vector<TokenTemplate> templates;
  if (const nlohmann::json* processor = fields.Find("post_processor")) {
    if (Status status = AppendTemplates(*processor, &templates); !status) return status.error();
  }
  return TokenizerParts{.normalizer = *std::move(normalizer),
                        .pre_tokenizer = *std::move(pre_tokenizer),
                        .model = *std::move(model),
                        .added_tokens = *std::move(added_tokens),
                        .templates = std::move(templates),
                        .decoder = *std::move(decoder),
                        .named_tokens = config != nullptr ? RolesOf(*config) : NamedTokens()};
}

NamedTokens RolesOf(const TokenizerConfig& config) {
  const auto found = config.special_tokens.find("eos_token");
  if (found == config.special_tokens.end() || found->second.content.empty()) return {};
  return {.eos = NamedToken{.text = found->second.content, .id = std::nullopt}};
}

}  // namespace convene::text
