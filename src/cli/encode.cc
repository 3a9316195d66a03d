#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/message.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/npy.h"
#include "cli/output.h"
#include "cli/token_file.h"
#include "cli/value_options.h"
#include "engine/encode_inputs.h"
#include "text/tokenizer.h"

namespace convene::cli {
namespace {

class EncodeText : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    CLI::Option* text = AddText(app, "--text", text_, "The text to encode");
    CLI::Option* file = AddPath(app, "--text-file", text_path_,
                                "A file to encode, less its last line break ('-': stdin)")
                            ->excludes(text);
    AddPath(app, "--tokens", tokens_path_,
            "Token ids instead of text: text, or .npy of int32 or int64 ('-': stdin)")
        ->excludes(text)
        ->excludes(file);
    app.add_flag("--lines", lines_, "Every line of the file is an input of its own");
    AddPath(app, "--out", out_path_,
            "Where to write the states: float32 (tokens of all inputs, hidden)")
        ->type_name("FILE.npy")
        ->check(NoStandardOutput("states are a file"))
        ->check(WritableFile())
        ->required();
    AddJsonOption(app, json_path_);
    AddModelOptions(app, model_);
    AddCapacityOption(app, model_);
  }

  bool refuses_ranks() const override { return true; }

  Status Run() override {
    const Result<model::ModelSpec> spec = ReadSpec(model_.directory);
    if (!spec) return spec.error();
    if (!spec->has_encoder()) {
      return Error{fmt::format("the model in {} has no encoder", model_.directory)};
    }
    if (const Status read = ReadInputs(); !read) return read;
    size_t num_tokens = 0;
    size_t longest = 1;
    for (const std::vector<int32_t>& input : inputs_) {
      num_tokens += input.size();
      longest = std::max(longest, input.size());
    }
    model_.load.context = static_cast<int>(std::max<size_t>(longest, 2));
    FitInputs(model_, num_tokens);
    // Room for as many of the longest inputs as a step may hold.
    const int fitting = std::max(1, model_.load.max_step_tokens / static_cast<int>(longest));
    model_.load.max_sequences = std::min(static_cast<int>(inputs_.size()), fitting);
    const Result<std::unique_ptr<engine::LoadedModel>> model = LoadModel(model_, nullptr);
    if (!model) return model.error();
    return model_.watch->WriteAfter(Compute(**model, static_cast<int64_t>(num_tokens)));
  }

 private:
  Status ReadInputs() {
    if (!tokens_path_.empty()) {
      if (lines_) return Error{"--lines is for text; token ids are one input"};
      Result<std::vector<int32_t>> tokens = ReadTokenFile(tokens_path_);
      if (!tokens) return tokens.error();
      inputs_.push_back(*std::move(tokens));
      return {};
    }
    if (!text_ && text_path_.empty()) return Error{"give --text, --text-file or --tokens"};
    const Result<text::Tokenizer> tokenizer = text::Tokenizer::Load(model_.directory);
    if (!tokenizer)
      return Error{tokenizer.error().message + "; --tokens needs none", tokenizer.error().kind};
    std::string text;
    if (text_) {
      text = *text_;
    } else {
      Result<std::string> read = ReadText(text_path_);
      if (!read) return read.error();
      text = *std::move(read);
      if (text.ends_with('\n')) text.pop_back();
    }
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = lines_ ? std::min(text.find('\n', begin), text.size()) : text.size();
      Result<std::vector<int32_t>> tokens = tokenizer->Encode(text.substr(begin, end - begin));
      if (!tokens) return tokens.error();
      inputs_.push_back(*std::move(tokens));
      begin = end + 1;
    }
    return {};
  }

  Status Compute(engine::LoadedModel& model, int64_t num_tokens) {
    Result<NpyWriter> writer = NpyWriter::Create(out_path_, num_tokens, model.spec().hidden_size);
    if (!writer) return writer.error();
    const std::vector<std::span<const int32_t>> inputs(inputs_.begin(), inputs_.end());
    Status written;
    const auto start = std::chrono::steady_clock::now();
    const Status encoded =
        engine::EncodeInputs(model, inputs, [&](int, int, std::span<const float> states) {
          if (written) written = writer->WriteRow(states);
        });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (!encoded) return encoded;
    if (!written) return written;
    if (const Status closed = writer->Close(); !closed) return closed;
    const double rate = static_cast<double>(num_tokens) / elapsed.count();
    PrintNote("encode: {}, {} in {:.3f} s ({:.1f} tokens/s) -> {}\n",
              FormatCount(inputs_.size(), "input"),
              FormatCount(static_cast<uint64_t>(num_tokens), "token"), elapsed.count(), rate,
              out_path_);
    std::vector<size_t> lengths;
    for (const std::vector<int32_t>& input : inputs_) lengths.push_back(input.size());
    return WriteJson(json_path_, {{"out", out_path_},
                                  {"hidden_size", model.spec().hidden_size},
                                  {"tokens", num_tokens},
                                  {"tokens_of_inputs", lengths},
                                  {"seconds", elapsed.count()},
                                  {"tokens_per_s", rate}});
  }

  ModelOptions model_;
  std::optional<std::string> text_;
  std::string text_path_;
  std::string tokens_path_;
  bool lines_ = false;
  std::string out_path_;
  std::string json_path_;
  std::vector<std::vector<int32_t>> inputs_;
};

}  // namespace

std::unique_ptr<Command> MakeEncode() { return std::make_unique<EncodeText>(); }

}  // namespace convene::cli
