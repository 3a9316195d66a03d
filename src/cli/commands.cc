#include <array>

#include "cli/command.h"

namespace convene::cli {
namespace {

constexpr std::array<CommandEntry, 0> kCommands = {};

}  // namespace

std::span<const CommandEntry> Commands() { return kCommands; }

}  // namespace convene::cli
