#include "grammar/token_trie.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace convene::grammar {

TokenTrie::TokenTrie(std::vector<TokenBytes> tokens, int32_t num_ids)
    : num_ids_(num_ids), sorted_(std::move(tokens)), index_of_(static_cast<size_t>(num_ids), -1) {
  std::erase_if(sorted_, [&](const TokenBytes& token) {
    return token.bytes.empty() || token.token < 0 || token.token >= num_ids;
  });
  // std::string compares bytes as unsigned.
  std::ranges::sort(sorted_, [](const TokenBytes& a, const TokenBytes& b) {
    return std::tie(a.bytes, a.token) < std::tie(b.bytes, b.token);
  });
  std::vector<uint32_t> path;  // the node of each byte of the token before
  const auto close = [&](size_t depth) {
    while (path.size() > depth) {
      nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
      path.pop_back();
    }
  };
  for (uint32_t i = 0; i < sorted_.size(); ++i) {
    const std::string& bytes = sorted_[i].bytes;
    index_of_[static_cast<size_t>(sorted_[i].token)] = static_cast<int32_t>(i);
    size_t common = 0;
    while (common < std::min(path.size(), bytes.size()) &&
           nodes_[path[common]].byte == static_cast<unsigned char>(bytes[common])) {
      ++common;
    }
    close(common);
    for (size_t depth = common; depth < bytes.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({.byte = static_cast<unsigned char>(bytes[depth]),
                        .depth = static_cast<uint32_t>(depth)});
    }
    max_depth_ = std::max(max_depth_, bytes.size());
    Node& last = nodes_[path.back()];
    if (last.num_tokens++ == 0) last.first_token = i;
  }
  close(0);
}

const std::string& TokenTrie::BytesOf(int32_t token) const {
  static const std::string none;
  if (token < 0 || token >= num_ids_) return none;
  const int32_t index = index_of_[static_cast<size_t>(token)];
  return index < 0 ? none : sorted_[static_cast<size_t>(index)].bytes;
}

}  // namespace convene::grammar
