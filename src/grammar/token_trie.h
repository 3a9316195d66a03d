// The tokens of a vocabulary by their bytes, so that all that begin alike are passed over together.
// Immutable; threads may read it at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace convene::grammar {

struct TokenBytes {
  std::string bytes;
  int32_t token = 0;
};

class TokenTrie {
 public:
  // A node is the byte behind its parent's. Nodes are in the order of a walk that takes the first
  // child first, so that what lies below a node follows it.
  struct Node {
    unsigned char byte = 0;
    uint32_t depth = 0;        // bytes before it
    uint32_t end = 0;          // the next node that is not below it
    uint32_t first_token = 0;  // of those whose bytes end here, in tokens()
    uint32_t num_tokens = 0;
  };

  // Tokens without bytes are left out: they would lead nowhere. `num_ids`: of the vocabulary.
  TokenTrie(std::vector<TokenBytes> tokens, int32_t num_ids);

  const std::vector<Node>& nodes() const { return nodes_; }
  int32_t token(uint32_t index) const { return sorted_[index].token; }
  int32_t num_ids() const { return num_ids_; }
  size_t max_depth() const { return max_depth_; }
  // "" where the token is not in it.
  const std::string& BytesOf(int32_t token) const;

 private:
  int32_t num_ids_;
  size_t max_depth_ = 0;
  std::vector<TokenBytes> sorted_;
  std::vector<int32_t> index_of_;  // by id into sorted_; -1: none
  std::vector<Node> nodes_;
};

}  // namespace convene::grammar
