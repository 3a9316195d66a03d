#include "text/token_template.h"

#include <utility>

namespace convene::text {

std::vector<int32_t> ApplyTemplates(const std::vector<TokenTemplate>& templates,
                                    std::vector<int32_t> ids, bool add_special_tokens) {
  for (const TokenTemplate& token_template : templates) {
    std::vector<int32_t> filled;
    filled.reserve(ids.size() + token_template.parts.size());
    for (const auto& part : token_template.parts) {
      if (const auto* special = std::get_if<std::vector<int32_t>>(&part)) {
        if (add_special_tokens) filled.insert(filled.end(), special->begin(), special->end());
      } else {
        filled.insert(filled.end(), ids.begin(), ids.end());
      }
    }
    ids = std::move(filled);
  }
  return ids;
}

}  // namespace convene::text
