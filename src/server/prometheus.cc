#include "server/prometheus.h"

#include <algorithm>

namespace convene::server {

std::string EscapedLabel(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    if (c == '\n') {
      escaped += "\\n";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string ModelLabel(std::string_view model_name) {
  return fmt::format("model_name=\"{}\"", EscapedLabel(model_name));
}

void AppendHead(std::string& text, std::string_view name, std::string_view help,
                std::string_view type) {
  fmt::format_to(std::back_inserter(text), "# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

void Histogram::Observe(double value, int64_t times) {
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)] += times;
  sum_ += value * static_cast<double>(times);
}

void Histogram::AppendTo(std::string& text, std::string_view name, std::string_view help,
                         std::string_view labels) const {
  AppendHead(text, name, help, "histogram");
  const auto out = std::back_inserter(text);
  int64_t so_far = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    so_far += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::to_string(bounds_[i]) : "+Inf";
    fmt::format_to(out, "{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, so_far);
  }
  fmt::format_to(out, "{0}_sum{{{1}}} {2}\n{0}_count{{{1}}} {3}\n", name, labels, sum_, so_far);
}

}  // namespace convene::server
