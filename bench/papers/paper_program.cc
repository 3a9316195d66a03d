#include "bench/papers/paper_program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

namespace convene::papers {

std::optional<int> Begin(const PaperProgram& program, int argc, char** argv) {
  constexpr int kUsageError = 2;
  const std::string about = fmt::format(
      "Paper: {}\n\nSimulated: {}\n\nCells: {}\n\nErrors: {}\n\nWords: {}\n\nAssumptions, and why "
      "predictions miss: {}\n",
      program.paper, program.simulated, program.cells, program.errors, program.words,
      program.document);
  CLI::App app(fmt::format("{}\n\n{}", program.title, about), program.name);
  app.footer(
      fmt::format("It takes no arguments and prints Markdown; duration: {}.", program.duration));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  fmt::print("# {}\n\n{}", program.title, about);
  // A reader has something to look at while the tables are computed.
  std::fflush(stdout);
  return std::nullopt;
}

}  // namespace convene::papers
