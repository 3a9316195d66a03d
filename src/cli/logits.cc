#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
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
#include "engine/check_tokens.h"
#include "engine/score_tokens.h"

namespace convene::cli {
namespace {

class Logits : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddPath(app, "--tokens", tokens_path_,
            "Token ids: text, or .npy of int32 or int64 ('-': stdin)")
        ->required();
    AddPath(app, "--out", out_path_, "Where to write the logits: float32 (positions, vocab)")
        ->type_name("FILE.npy")
        ->check(NoStandardOutput("logits are a file"))
        ->check(WritableFile())
        ->required();
    AddJsonOption(app, json_path_);
    AddModelOptions(app, model_);
  }

  std::string model_directory() const override { return model_.directory; }

  Status Run() override {
    if (const Status checked = CheckPredictsText(model_.directory); !checked) return checked;
    const Result<std::vector<int32_t>> tokens = ReadTokenFile(tokens_path_);
    if (!tokens) return tokens.error();
    if (tokens->empty()) return Error{fmt::format("{} holds no token ids", tokens_path_)};
    model_.load.context = std::max<int>(static_cast<int>(tokens->size()), 2);
    const Result<std::unique_ptr<engine::LoadedModel>> model = LoadModel(model_, ranks());
    if (!model) return model.error();
    return model_.watch->WriteAfter(Compute(**model, *tokens));
  }

 private:
  Status Compute(engine::LoadedModel& model, const std::vector<int32_t>& tokens) {
    const int vocab_size = model.spec().vocab_size;
    if (const Status known = engine::CheckTokens(tokens, vocab_size); !known) return known;
    Result<NpyWriter> writer = NpyWriter::Create(out_path_, std::ssize(tokens), vocab_size);
    if (!writer) return writer.error();

    const auto start = std::chrono::steady_clock::now();
    const std::span<const int32_t> sequences[] = {tokens};
    Status written;
    const Status computed =
        engine::ForEachLogits(model, sequences, [&](int, int, std::span<const float> logits) {
          if (written) written = writer->WriteRow(logits);
        });
    if (!computed) return computed;
    if (!written) return written;
    if (const Status closed = writer->Close(); !closed) return closed;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;

    const double tokens_per_s = static_cast<double>(tokens.size()) / elapsed.count();
    PrintNote("logits: {} x {} in {:.2f} s ({:.1f} tokens/s) -> {}\n",
              FormatCount(tokens.size(), "position"),
              FormatCount(static_cast<uint64_t>(vocab_size)), elapsed.count(), tokens_per_s,
              out_path_);
    return WriteJson(json_path_, {{"positions", tokens.size()},
                                  {"vocab_size", vocab_size},
                                  {"seconds", elapsed.count()},
                                  {"tokens_per_s", tokens_per_s},
                                  {"out", out_path_}});
  }

  ModelOptions model_;
  std::string tokens_path_;
  std::string out_path_;
  std::string json_path_;
};

}  // namespace

std::unique_ptr<Command> MakeLogits() { return std::make_unique<Logits>(); }

}  // namespace convene::cli
