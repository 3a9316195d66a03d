#include "cli/model_options.h"

#include <fmt/format.h>

#include "cli/load_messages.h"

namespace convene::cli {

void AddModelOptions(CLI::App& app, ModelOptions& options) {
  app.add_option("MODEL", options.directory, "Directory of a Hugging Face checkpoint")
      ->type_name("")
      ->required();
  app.add_option_function<std::string>(
         "--weights",
         [&options](const std::string& name) {
           options.load.weights = *kernels::WeightFormatFromName(name);
         },
         "Compute in bf16 (default) or, exactly and slower, in f32")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->type_name("FORMAT");
  app.add_option("--threads", options.load.num_threads, "Threads (default: one per usable core)")
      ->type_name("N");
  app.add_option("--chunk", options.load.max_step_tokens, "Most tokens of a step (default: 512)")
      ->type_name("N");
}

void AddContextOption(CLI::App& app, ModelOptions& options) {
  app.add_option("--context", options.load.context,
                 fmt::format("Longest sequence (default: the model's, at most {})",
                             engine::kDefaultContext))
      ->type_name("TOKENS");
}

Result<std::unique_ptr<engine::LoadedModel>> LoadModel(const ModelOptions& options) {
  LoadMessages messages;
  Result<std::unique_ptr<engine::LoadedModel>> model =
      engine::LoadedModel::Load(options.directory, options.load, messages.observer());
  messages.Finish();
  return model;
}

}  // namespace convene::cli
