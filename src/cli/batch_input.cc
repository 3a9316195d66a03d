#include "cli/batch_input.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "openai/batch_line.h"

namespace convene::cli {

BatchInput ReadBatchInput(std::string_view text, const std::multiset<std::string>& finished) {
  BatchInput input;
  std::multiset<std::string> seen;
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const InputLine line{++number, text.substr(0, end)};
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::optional<std::string> custom_id = openai::CustomIdOf(line.text);
    bool is_answered = false;
    bool is_duplicate = false;
    if (custom_id) {
      is_duplicate = seen.contains(*custom_id);
      seen.insert(*custom_id);
      is_answered = finished.count(*custom_id) >= seen.count(*custom_id);
    }
    if (is_answered) {
      ++input.num_skipped;
    } else {
      (is_duplicate ? input.duplicates : input.pending).push_back(line);
    }
  }
  return input;
}

Status ForgetRetried(const BatchInput& input, openai::BatchResults& results) {
  std::set<std::string> custom_ids;
  std::set<int64_t> numbers;
  for (const std::vector<InputLine>* lines : {&input.pending, &input.duplicates}) {
    for (const InputLine& line : *lines) {
      std::optional<std::string> custom_id = openai::CustomIdOf(line.text);
      if (custom_id) {
        custom_ids.insert(*std::move(custom_id));
      } else {
        numbers.insert(line.number);
      }
    }
  }
  return results.Forget([&](const openai::RefusedRequest& refused) {
    return refused.custom_id ? custom_ids.contains(*refused.custom_id)
                             : numbers.contains(refused.line);
  });
}

}  // namespace convene::cli
