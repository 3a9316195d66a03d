// Some consecutive ranks.
#pragma once

namespace convene::strategy {

struct RankRange {
  int first = 0;
  int end = 0;

  int size() const { return end - first; }
  bool contains(int rank) const { return rank >= first && rank < end; }
};

}  // namespace convene::strategy
