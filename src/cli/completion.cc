#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/completion_scripts.h"
#include "cli/output.h"

namespace convene::cli {
namespace {

class Completion : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.description(app.get_description() +
                    "\nThe script is written to standard output. To have it in every session, add "
                    "one line to the shell's start file:\n"
                    "  bash, ~/.bashrc:                   source <(convene completion bash)\n"
                    "  zsh, ~/.zshrc, after compinit:     source <(convene completion zsh)\n"
                    "  fish, ~/.config/fish/config.fish:  convene completion fish | source");
    app.add_option("SHELL", shell_, "bash, zsh or fish")
        ->type_name("")
        ->check(CLI::IsMember({"bash", "zsh", "fish"}))
        ->required();
    program_ = app.get_parent();
  }

  Status Run() override {
    const std::vector<CompletionCommand> commands = CompletionsOf(*program_);
    const std::string name = program_->get_name();
    return ShowOutput(shell_ == "bash"  ? BashCompletion(name, commands)
                      : shell_ == "zsh" ? ZshCompletion(name, commands)
                                        : FishCompletion(name, commands));
  }

 private:
  std::string shell_;
  const CLI::App* program_ = nullptr;  // lives as long as the command line
};

}  // namespace

std::unique_ptr<Command> MakeCompletion() { return std::make_unique<Completion>(); }

}  // namespace convene::cli
