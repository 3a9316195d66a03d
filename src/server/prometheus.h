// The text form in which Prometheus reads metrics
// (https://prometheus.io/docs/instrumenting/exposition_formats/). What is measured is metrics.h.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace convene::server {

// In a label's value.
std::string EscapedLabel(std::string_view text);

// The label that all of a server's metrics have, as vLLM's do.
std::string ModelLabel(std::string_view model_name);

// The two lines before the values of a metric.
void AppendHead(std::string& text, std::string_view name, std::string_view help,
                std::string_view type);

// `labels`: name="value", separated by commas; not empty.
template <typename Number>
void AppendValue(std::string& text, std::string_view name, std::string_view labels, Number value) {
  fmt::format_to(std::back_inserter(text), "{}{{{}}} {}\n", name, labels, value);
}

// A metric that has one value.
template <typename Number>
void AppendNumber(std::string& text, std::string_view name, std::string_view help,
                  std::string_view type, std::string_view labels, Number value) {
  AppendHead(text, name, help, type);
  AppendValue(text, name, labels, value);
}

// Counts of values up to each bound, with their sum.
class Histogram {
 public:
  // `bounds` ascend; the last bucket, +Inf, is not among them.
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds), counts_(bounds.size() + 1) {}

  void Observe(double value, int64_t times = 1);
  // The lines of a histogram with the label model_name.
  void AppendTo(std::string& text, std::string_view name, std::string_view help,
                std::string_view labels) const;

 private:
  std::span<const double> bounds_;  // static
  std::vector<int64_t> counts_;     // per bucket, the last one beyond all bounds
  double sum_ = 0;
};

}  // namespace convene::server
