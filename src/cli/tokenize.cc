#include "cli/tokenize.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/output.h"
#include "cli/token_file.h"
#include "text/tokenizer.h"

namespace convene::cli {
namespace {

class Tokenize : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.add_option("MODEL", directory_, "Directory with a tokenizer")->type_name("")->required();
    CLI::Option* text = app.add_option("--text", text_, "The text");
    app.add_option("--file", path_, "Read the text from a file ('-', the default: stdin)")
        ->type_name("FILE")
        ->excludes(text);
    app.add_flag("--no-special", no_special_,
                 "Leave out the tokens that the tokenizer puts around a text, as <s>");
    app.add_flag("--plain", plain_, "Special tokens spelt out in the text are text");
    app.add_flag("--pieces", pieces_, "A line per token: its id and its text as a JSON string");
    AddJsonOption(app, json_path_);
  }

  Status Run() override {
    const Result<text::Tokenizer> tokenizer = text::Tokenizer::Load(directory_);
    if (!tokenizer) return tokenizer.error();
    Result<std::string> text = text_ ? Result<std::string>(*text_) : ReadText(path_);
    if (!text) return text.error();
    const Result<std::vector<int32_t>> ids =
        tokenizer->Encode(*text, {.add_special_tokens = !no_special_, .parse_special = !plain_});
    if (!ids) return ids.error();
    if (!json_path_.empty()) {
      const Status written = WriteJson(json_path_, {{"count", ids->size()}, {"ids", *ids}});
      if (!written || json_path_ == "-") return written;
    }
    return pieces_ ? WritePieces(*tokenizer, *ids) : WriteIds(*ids);
  }

 private:
  static Status WriteIds(const std::vector<int32_t>& ids) {
    if (const Status written = WriteOutput(fmt::format("{}\n", fmt::join(ids, " "))); !written) {
      return written;
    }
    return FlushOutput();
  }

  static Status WritePieces(const text::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) {
      const Result<std::string> bytes = tokenizer.BytesOf(id);
      if (!bytes) return bytes.error();
      const std::string quoted =
          nlohmann::json(*bytes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      if (const Status written = WriteOutput(fmt::format("{:>7} {}\n", id, quoted)); !written) {
        return written;
      }
    }
    return FlushOutput();
  }

  std::string directory_;
  std::optional<std::string> text_;
  std::string path_ = "-";
  bool no_special_ = false;
  bool plain_ = false;
  bool pieces_ = false;
  std::string json_path_;
};

class Detokenize : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.add_option("MODEL", directory_, "Directory with a tokenizer")->type_name("")->required();
    CLI::Option* ids = app.add_option("--ids", ids_, "Token ids, separated by spaces or commas");
    app.add_option("--file", path_,
                   "Read the ids from a file: text or .npy ('-', the default: stdin)")
        ->type_name("FILE")
        ->excludes(ids);
    app.add_flag("--skip-special", skip_special_, "Leave special tokens out");
    AddJsonOption(app, json_path_);
  }

  Status Run() override {
    const Result<text::Tokenizer> tokenizer = text::Tokenizer::Load(directory_);
    if (!tokenizer) return tokenizer.error();
    const Result<std::vector<int32_t>> ids = ids_ ? ParseTokenText(*ids_) : ReadTokenFile(path_);
    if (!ids) return ids.error();
    const Result<std::string> text = tokenizer->Decode(*ids, skip_special_);
    if (!text) return text.error();
    if (!json_path_.empty()) {
      const Status written = WriteJson(json_path_, {{"count", ids->size()}, {"text", *text}});
      if (!written || json_path_ == "-") return written;
    }
    if (const Status written = WriteOutput(*text + "\n"); !written) return written;
    return FlushOutput();
  }

 private:
  std::string directory_;
  std::optional<std::string> ids_;
  std::string path_ = "-";
  bool skip_special_ = false;
  std::string json_path_;
};

}  // namespace

std::unique_ptr<Command> MakeTokenize() { return std::make_unique<Tokenize>(); }
std::unique_ptr<Command> MakeDetokenize() { return std::make_unique<Detokenize>(); }

}  // namespace convene::cli
