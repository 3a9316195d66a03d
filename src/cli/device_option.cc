#include "cli/device_option.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>

#include "base/quote.h"

namespace convene::cli {
namespace {

std::optional<int> GpuOf(const std::string& text) {
  if (text == "cuda") return 0;
  int gpu = 0;
  const bool has_number = text.starts_with("cuda:") &&
                          std::from_chars(text.data() + 5, text.data() + text.size(), gpu).ptr ==
                              text.data() + text.size();
  if (!has_number || text.size() == 5 || gpu < 0) return {};
  return gpu;
}

}  // namespace

CLI::Option* AddDeviceOption(CLI::App& app, std::optional<int>& gpu, const char* description) {
  return app
      .add_option_function<std::string>(
          "--device", [&gpu](const std::string& text) { gpu = GpuOf(text); }, description)
      ->check([](const std::string& text) {
        return text == "cpu" || GpuOf(text)
                   ? std::string()
                   : fmt::format("{} is no device: cpu, cuda or cuda:N", Quote(text));
      })
      ->type_name("DEVICE");
}

}  // namespace convene::cli
