// Byte pair encoding: cuts a word into tokens by merging neighbours, the best ranked pair first. It
// knows no bytes: byte-level vocabularies spell bytes as characters (byte_level.h), and what a word
// is the pre-tokenizer decided.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/vocabulary.h"
#include "text/word_cache.h"

namespace convene::text {

struct Merge {
  std::string left;
  std::string right;
};

struct BpeOptions {
  std::optional<std::string> unk_token = {};   // stands for characters outside the vocabulary
  std::string continuing_subword_prefix = {};  // of every character of a word but the first
  std::string end_of_word_suffix = {};         // of the last one
  bool fuse_unk = false;                       // one unk_token for neighbouring unknown characters
  bool byte_fallback =
      false;  // unknown characters become the tokens <0x00> to <0xFF> of their bytes
  bool ignore_merges = false;  // a word that is a token is that token
};

// Thread-safe.
class Bpe {
 public:
  // The best ranked merge first. Errors: a merge with a part or a result that is no token.
  static Result<Bpe> Create(Vocabulary vocabulary, const std::vector<Merge>& merges,
                            BpeOptions options);

  // Appends the ids of `word`, valid UTF-8. Errors: it needs the unknown token, which is no token.
  Status Encode(std::string_view word, WordCache* cache, std::vector<int32_t>* ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Product {
    int32_t rank;
    int32_t id;
  };
  // Open addressing: a prompt of new words looks up several pairs per character.
  class MergeTable {
   public:
    explicit MergeTable(size_t num_merges);
    void Insert(int32_t left, int32_t right, Product product);
    const Product* Find(int32_t left, int32_t right) const;

   private:
    struct Slot {
      uint64_t pair = kEmpty;
      Product product = {};
    };
    static constexpr uint64_t kEmpty = ~uint64_t{0};

    size_t SlotOf(uint64_t pair) const;

    std::vector<Slot> slots_;  // a power of two, at most half of them used
  };
  // A token in the making: a part of the word, linked to its neighbours.
  struct Symbol {
    int32_t id;
    int32_t previous = -1;   // index, -1 at the beginning
    int32_t next = -1;       // index, -1 at the end
    bool is_merged = false;  // into its left neighbour
  };

  Bpe(Vocabulary vocabulary, size_t num_merges, BpeOptions options);

  Status EncodePart(std::string_view word, WordCache* cache, std::vector<int32_t>* ids) const;
  Status AppendCharacters(std::string_view word, std::vector<Symbol>* symbols) const;
  bool AppendBytes(std::string_view spelling, std::vector<Symbol>* symbols) const;
  void MergeAll(std::vector<Symbol>* symbols) const;

  Vocabulary vocabulary_;
  BpeOptions options_;
  MergeTable merges_;
  // Characters that some token has side by side; between others a long word can be cut in two. The
  // products mean nothing.
  MergeTable neighbours_;
  std::vector<int32_t> byte_ids_;  // of <0x00> to <0xFF>, -1 for those that are no token
};

}  // namespace convene::text
