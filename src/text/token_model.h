// The model that cuts words into tokens: one of the kinds that there are.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "text/bpe.h"
#include "text/unigram.h"

namespace convene::text {

// Thread-safe. Pointers and not a std::variant, about whose moves g++ 12 warns without cause.
class TokenModel {
 public:
  TokenModel(Bpe bpe) : bpe_(std::make_unique<const Bpe>(std::move(bpe))) {}  // NOLINT
  TokenModel(Unigram unigram)                                                 // NOLINT
      : unigram_(std::make_unique<const Unigram>(std::move(unigram))) {}

  // Appends the ids of `word`, valid UTF-8. Errors: as the kind's.
  Status Encode(std::string_view word, WordCache* cache, std::vector<int32_t>* ids) const {
    return bpe_ ? bpe_->Encode(word, cache, ids) : unigram_->Encode(word, cache, ids);
  }

  const Vocabulary& vocabulary() const {
    return bpe_ ? bpe_->vocabulary() : unigram_->vocabulary();
  }

 private:
  std::unique_ptr<const Bpe> bpe_;  // one of the two
  std::unique_ptr<const Unigram> unigram_;
};

}  // namespace convene::text
