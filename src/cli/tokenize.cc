#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/npy.h"
#include "cli/output.h"
#include "cli/token_file.h"
#include "cli/value_options.h"
#include "text/tokenizer.h"

namespace convene::cli {
namespace {

// Whether the input is one text, or one in each of its lines.
struct LineFlags {
  bool plain = false;
  bool json = false;

  bool any() const { return plain || json; }
};

void AddLineFlags(CLI::App& app, LineFlags& flags, const char* plain, const char* json) {
  CLI::Option* lines = app.add_flag("--lines", flags.plain, plain);
  app.add_flag("--json-lines", flags.json, json)->excludes(lines);
}

std::string JsonString(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Calls `each` with every line of `text`, without its line break. An error says in which.
template <typename Each>
Status ForEachLine(std::string_view text, Each each) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (const Status done = each(line); !done) {
      return done.error().At(fmt::format("line {}", number));
    }
  }
  return {};
}

class Tokenize : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddPath(app, "MODEL", directory_, "Directory with a tokenizer");
    CLI::Option* text = AddText(app, "--text", text_, "The text");
    AddPath(app, "--file", path_, "Read the text from a file ('-', the default: stdin)")
        ->excludes(text);
    app.add_flag("--no-special", no_special_,
                 "Leave out the tokens that the tokenizer puts around a text, as <s>");
    app.add_flag("--plain", plain_, "Special tokens spelt out in the text are text");
    CLI::Option* pieces =
        app.add_flag("--pieces", pieces_, "A line per token: its id and its text as a JSON string");
    AddLineFlags(app, lines_, "Each line is a text of its own, and its ids are a line",
                 "Each line is a text as a JSON string, and its ids are a line with a JSON array; "
                 "for texts with line breaks");
    for (const char* name : {"--lines", "--json-lines"}) pieces->excludes(app.get_option(name));
    AddJsonOption(app, json_path_);
  }

  Status Run() override {
    const Result<text::Tokenizer> tokenizer = text::Tokenizer::Load(directory_);
    if (!tokenizer) return tokenizer.error();
    Result<std::string> text = text_ ? Result<std::string>(*text_) : ReadText(path_);
    if (!text) return text.error();
    if (lines_.any()) return EncodeLines(*tokenizer, *text);
    const Result<std::vector<int32_t>> ids = Encode(*tokenizer, *text);
    if (!ids) return ids.error();
    if (!json_path_.empty()) {
      const Status written = WriteJson(json_path_, {{"count", ids->size()}, {"ids", *ids}});
      if (!written || json_path_ == "-") return written;
    }
    if (pieces_) return WritePieces(*tokenizer, *ids);
    return ShowOutput(fmt::format("{}\n", fmt::join(*ids, " ")));
  }

 private:
  Result<std::vector<int32_t>> Encode(const text::Tokenizer& tokenizer,
                                      std::string_view text) const {
    return tokenizer.Encode(text, {.add_special_tokens = !no_special_, .parse_special = !plain_});
  }

  Status EncodeLines(const text::Tokenizer& tokenizer, std::string_view input) const {
    size_t count = 0;
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    const Status encoded = ForEachLine(input, [&](std::string_view line) -> Status {
      std::string text(line);
      if (lines_.json) {
        const Result<nlohmann::json> parsed = ParseJson(line);
        if (!parsed) return parsed.error();
        if (!parsed->is_string()) return Error{"holds no JSON string, as in \"a text\""};
        text = parsed->get<std::string>();
      }
      const Result<std::vector<int32_t>> ids = Encode(tokenizer, text);
      if (!ids) return ids.error();
      count += ids->size();
      if (!json_path_.empty()) all.push_back(*ids);
      if (json_path_ == "-") return {};
      return WriteOutput(lines_.json ? fmt::format("[{}]\n", fmt::join(*ids, ","))
                                     : fmt::format("{}\n", fmt::join(*ids, " ")));
    });
    if (!encoded) return encoded;
    const Status written = WriteJson(json_path_, {{"count", count}, {"ids", all}});
    return written ? FlushOutput() : written;
  }

  static Status WritePieces(const text::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) {
      const Result<std::string> bytes = tokenizer.BytesOf(id);
      if (!bytes) return bytes.error();
      const std::string line = fmt::format("{:>7} {}\n", id, JsonString(*bytes));
      if (const Status written = WriteOutput(line); !written) return written;
    }
    return FlushOutput();
  }

  std::string directory_;
  std::optional<std::string> text_;
  std::string path_ = "-";
  bool no_special_ = false;
  bool plain_ = false;
  bool pieces_ = false;
  LineFlags lines_;
  std::string json_path_;
};

class Detokenize : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddPath(app, "MODEL", directory_, "Directory with a tokenizer");
    CLI::Option* ids = AddText(app, "--ids", ids_, "Token ids, separated by spaces or commas");
    AddPath(app, "--file", path_,
            "Read the ids from a file: text or .npy ('-', the default: stdin)")
        ->excludes(ids);
    app.add_flag("--skip-special", skip_special_, "Leave special tokens out");
    AddLineFlags(app, lines_, "Each line has the ids of a text, and the text is a line",
                 "Each line has the ids of a text, and the text is a line with a JSON string; for "
                 "texts with line breaks");
    AddJsonOption(app, json_path_);
  }

  Status Run() override {
    const Result<text::Tokenizer> tokenizer = text::Tokenizer::Load(directory_);
    if (!tokenizer) return tokenizer.error();
    if (lines_.any()) return DecodeLines(*tokenizer);
    const Result<std::vector<int32_t>> ids = ids_ ? ParseTokenText(*ids_) : ReadTokenFile(path_);
    if (!ids) return ids.error();
    const Result<std::string> text = tokenizer->Decode(*ids, skip_special_);
    if (!text) return text.error();
    const Status written = WriteJson(json_path_, {{"count", ids->size()}, {"text", *text}});
    if (!written || json_path_ == "-") return written;
    return ShowOutput(*text + "\n");
  }

 private:
  Status DecodeLines(const text::Tokenizer& tokenizer) const {
    const Result<std::string> input = ids_ ? Result<std::string>(*ids_) : ReadText(path_);
    if (!input) return input.error();
    if (IsNpy(*input)) return Error{"lines of ids are text; leave --lines out for a .npy file"};
    size_t count = 0;
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    const Status decoded = ForEachLine(*input, [&](std::string_view line) -> Status {
      const Result<std::vector<int32_t>> ids = ParseTokenText(line);
      if (!ids) return ids.error();
      const Result<std::string> text = tokenizer.Decode(*ids, skip_special_);
      if (!text) return text.error();
      if (lines_.plain && text->find('\n') != std::string::npos) {
        return Error{"its text has line breaks, and would be several lines; use --json-lines"};
      }
      count += ids->size();
      if (!json_path_.empty()) all.push_back(*text);
      if (json_path_ == "-") return {};
      return WriteOutput((lines_.json ? JsonString(*text) : *text) + "\n");
    });
    if (!decoded) return decoded;
    const Status written = WriteJson(json_path_, {{"count", count}, {"texts", all}});
    return written ? FlushOutput() : written;
  }

  std::string directory_;
  std::optional<std::string> ids_;
  std::string path_ = "-";
  bool skip_special_ = false;
  LineFlags lines_;
  std::string json_path_;
};

}  // namespace

std::unique_ptr<Command> MakeTokenize() { return std::make_unique<Tokenize>(); }
std::unique_ptr<Command> MakeDetokenize() { return std::make_unique<Detokenize>(); }

}  // namespace convene::cli
