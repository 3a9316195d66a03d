#include "text/decoder.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/utf8.h"
#include "text/byte_level.h"
#include "text/growth_limit.h"

namespace convene::text {
namespace {

// Removes from `bytes` all that is certain, with U+FFFD for what is no UTF-8. A character that is
// not complete stays, unless `is_end`.
std::string TakeUtf8(std::string* bytes, bool is_end) {
  std::string text;
  size_t at = 0;
  while (at < bytes->size()) {
    const Utf8Unit unit = NextUtf8(std::string_view(*bytes).substr(at));
    if (unit.kind == Utf8Kind::kCut && !is_end) break;
    text += unit.kind == Utf8Kind::kCharacter ? std::string_view(*bytes).substr(at, unit.length)
                                              : kReplacementCharacter;
    at += unit.length;
  }
  bytes->erase(0, at);
  return text;
}

// The byte that a token like <0x41> stands for.
std::optional<char> ByteOfToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  std::string_view digits = token.substr(3, 2);
  if (digits[0] == '+') digits.remove_prefix(1);  // the reference's number parser takes a sign
  unsigned char byte = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return static_cast<char>(byte);
}

// Appends `text` with all matches replaced. Errors: besides the pattern's, too much growth over the
// `original_bytes` that the decoder was given so far.
Status AppendReplaced(const Replace& step, std::string_view text, size_t original_bytes,
                      std::string* result) {
  std::vector<Match> matches;
  if (Status status = step.pattern.FindAll(text, &matches); !status) return status;
  const size_t max_bytes = text.size() + matches.size() * step.content.size();
  if (Status status = CheckGrowth(original_bytes, max_bytes); !status) return status;
  size_t at = 0;
  for (const Match& match : matches) {
    result->append(text.substr(at, match.begin - at));
    result->append(step.content);
    at = match.end;
  }
  result->append(text.substr(at));
  return {};
}

// How much of `text` is certain whatever follows: all but a suffix that may become a match.
size_t CertainLength(std::string_view text, std::string_view literal) {
  size_t at = 0;
  for (size_t match = text.find(literal); match != text.npos; match = text.find(literal, at)) {
    at = match + literal.size();
  }
  at = std::max(at, text.size() - std::min(text.size(), literal.size() - 1));
  while (at < text.size() && !literal.starts_with(text.substr(at))) ++at;
  return at;
}

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  size_t at = 0;
  for (size_t match = text.find(from); match != text.npos; match = text.find(from, at)) {
    result.append(text.substr(at, match - at)).append(to);
    at = match + from.size();
  }
  return result.append(text.substr(at));
}

}  // namespace

Result<std::string> Decoder::BytesOf(std::string_view token) const {
  std::string bytes(token);
  for (const DecoderStep& step : steps_) {
    if (std::holds_alternative<DecodeByteLevel>(step)) {
      if (auto spelled = BytesOfByteLevel(bytes)) bytes = *std::move(spelled);
      return bytes;
    }
    if (std::holds_alternative<DecodeByteFallback>(step)) {
      if (const auto byte = ByteOfToken(bytes)) return std::string(1, *byte);
    } else if (const auto* metaspace = std::get_if<DecodeMetaspace>(&step)) {
      bytes = ReplaceAll(bytes, metaspace->replacement, " ");
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      std::string replaced;
      if (Status status = AppendReplaced(*replace, bytes, token.size(), &replaced); !status) {
        return status.error();
      }
      bytes = std::move(replaced);
    } else if (std::holds_alternative<Fuse>(step)) {
      return bytes;  // what follows concerns the whole text
    }
  }
  return bytes;
}

DecoderState::DecoderState(const Decoder& decoder)
    : decoder_(&decoder), states_(decoder.steps().size()) {}

Status DecoderState::Push(std::string_view token, std::string* text) {
  for (StepState& state : states_) state.num_pushed_bytes += token.size();
  return Run({{.text = std::string(token), .ends_token = true}}, /*is_end=*/false, text);
}

Status DecoderState::Finish(std::string* text) { return Run({}, /*is_end=*/true, text); }

Status DecoderState::Run(Fragments fragments, bool is_end, std::string* text) {
  for (size_t i = 0; i < states_.size(); ++i) {
    auto output = std::visit(
        [&](const auto& step) { return Apply(step, std::move(fragments), is_end, &states_[i]); },
        decoder_->steps()[i]);
    if (!output) return output.error();
    fragments = *std::move(output);
  }
  for (const Fragment& fragment : fragments) *text += fragment.text;
  return {};
}

std::vector<std::string> DecoderState::TakeWholeTokens(const Fragments& input, StepState* state) {
  std::vector<std::string> tokens;
  for (const Fragment& fragment : input) {
    state->token += fragment.text;
    if (fragment.ends_token) tokens.push_back(std::exchange(state->token, {}));
  }
  return tokens;
}

Result<DecoderState::Fragments> DecoderState::Apply(const DecodeByteLevel& /*step*/,
                                                    const Fragments& input, bool is_end,
                                                    StepState* state) {
  for (const std::string& token : TakeWholeTokens(input, state)) {
    // A token with a character that stands for no byte is taken as it is.
    state->held += BytesOfByteLevel(token).value_or(token);
  }
  return Fragments{{.text = TakeUtf8(&state->held, is_end), .ends_token = is_end}};
}

Result<DecoderState::Fragments> DecoderState::Apply(const DecodeByteFallback& /*step*/,
                                                    const Fragments& input, bool is_end,
                                                    StepState* state) {
  Fragments output;
  const auto end_run = [&] {
    std::string& bytes = state->held;  // one byte per token of the run
    if (bytes.empty()) return;
    if (ValidUtf8Prefix(bytes) == bytes.size()) {
      output.push_back({.text = bytes, .ends_token = true});
    } else {
      output.insert(output.end(), bytes.size(),
                    {.text = std::string(kReplacementCharacter), .ends_token = true});
    }
    bytes.clear();
  };
  for (std::string& token : TakeWholeTokens(input, state)) {
    if (const auto byte = ByteOfToken(token)) {
      state->held += *byte;
    } else {
      end_run();
      output.push_back({.text = std::move(token), .ends_token = true});
    }
  }
  if (is_end) end_run();
  return output;
}

Result<DecoderState::Fragments> DecoderState::Apply(const Fuse& step, const Fragments& input,
                                                    bool is_end, StepState* state) {
  Fragment fused{.text = {}, .ends_token = is_end};
  for (const Fragment& fragment : input) {
    if (!state->is_in_token && state->num_tokens > 0) fused.text += step.separator;
    fused.text += fragment.text;
    state->is_in_token = !fragment.ends_token;
    if (fragment.ends_token) ++state->num_tokens;
  }
  return Fragments{std::move(fused)};
}

Result<DecoderState::Fragments> DecoderState::Apply(const StripToken& step, Fragments input,
                                                    bool /*is_end*/, StepState* state) {
  for (Fragment& fragment : input) {
    std::string_view text = fragment.text;
    while (state->num_stripped < step.start && text.starts_with(step.content)) {
      text.remove_prefix(step.content.size());
      ++state->num_stripped;
    }
    if (!text.empty()) state->num_stripped = step.start;  // another character ends the stripping
    std::string rest = state->held.append(text);
    size_t end = rest.size();
    for (uint64_t i = 0; i < step.stop; ++i) {
      if (!std::string_view(rest).substr(0, end).ends_with(step.content)) break;
      end -= step.content.size();
    }
    state->held = fragment.ends_token ? "" : rest.substr(end);
    if (fragment.ends_token) state->num_stripped = 0;
    fragment.text = rest.substr(0, end);
  }
  return input;
}

Result<DecoderState::Fragments> DecoderState::Apply(const DecodeMetaspace& step, Fragments input,
                                                    bool /*is_end*/, StepState* state) {
  for (Fragment& fragment : input) {
    const bool drops = step.drops_in_first && state->num_tokens == 0;
    fragment.text = ReplaceAll(fragment.text, step.replacement, drops ? "" : " ");
    if (fragment.ends_token) ++state->num_tokens;
  }
  return input;
}

Result<DecoderState::Fragments> DecoderState::Apply(const Replace& step, Fragments input,
                                                    bool /*is_end*/, StepState* state) {
  const std::string& literal = step.pattern.literal();
  for (Fragment& fragment : input) {
    state->held += fragment.text;
    size_t certain = state->held.size();
    if (!fragment.ends_token) certain = literal.empty() ? 0 : CertainLength(state->held, literal);
    fragment.text.clear();
    const auto text = std::string_view(state->held).substr(0, certain);
    Status status = AppendReplaced(step, text, state->num_pushed_bytes, &fragment.text);
    if (!status) return status.error();
    state->held.erase(0, certain);
  }
  return input;
}

}  // namespace convene::text
