// How long the requests of a workload are, in the order of their prompts, with what is asked of all
// of them together again and again: sums, means, the longest. Where they come from is workload.h,
// and which steps they are run in is workload_steps.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace convene::planner {

inline constexpr int kMostTokens = 1 << 24;  // of a prompt or an answer
inline constexpr size_t kMostRequests = 1 << 20;

struct RequestLengths {
  int prompt_tokens = 0;
  int gen_tokens = 0;

  bool operator==(const RequestLengths&) const = default;
};

// Of requests that are neighbours in the order of their prompts.
struct RequestSums {
  int64_t num_requests = 0;
  int64_t prompt_tokens = 0;
  int64_t gen_tokens = 0;

  bool operator==(const RequestSums&) const = default;
};

// Sorted and summed once; it does not change. Copies share what they hold, since a workload is
// copied for every value at which a plan is asked about, and a trace has a hundred thousand lines.
//
// Each request is known by itself, or in parts of neighbours with their sums, as a plan's file has
// a trace: whoever goes over the requests then sees the mean of each part.
class Requests {
 public:
  Requests(std::initializer_list<RequestLengths> each) : Requests(std::vector(each)) {}
  Requests(std::vector<RequestLengths> each);
  // `mean_context`: of all requests, which sums do not say; none: those of a part are all alike.
  explicit Requests(std::vector<RequestSums> parts, std::optional<double> mean_context = {});

  int64_t count() const { return sums().num_requests; }
  bool empty() const { return known_->each.empty(); }
  auto begin() const { return known_->each.begin(); }
  auto end() const { return known_->each.end(); }
  const RequestLengths& front() const { return known_->each.front(); }

  RequestSums sums() const { return empty() ? RequestSums{} : known_->ends.back(); }
  int longest_prompt() const { return known_->each.back().prompt_tokens; }
  // In tokens, prompt and answer together.
  int64_t longest() const { return known_->longest; }
  // Tokens before a generated one, in the mean over all generated ones: long answers have more.
  double mean_context() const { return known_->mean_context; }
  // Of those from `first` to `end` in the order of their prompts, at least a token of each. What
  // begins or ends within a part has its share of the part. Precondition: first < end <= count().
  RequestLengths MeanOf(int64_t first, int64_t end) const;

  // Parts that say as much as the requests of what is asked of them all, and of sequences that run
  // together (TypicalSequences) as many as any of `counts` says: the longest prompt, the longest
  // answer and the longest request are parts of their own.
  std::vector<RequestSums> InParts(std::span<const int> counts) const;
  // With prompts or answers so many times as long, of at least a token each.
  Requests Scaled(int64_t RequestSums::*tokens, double factor) const;
  Requests Without(const std::function<bool(const RequestLengths&)>& is_left_out) const;

  bool operator==(const Requests& other) const;

 private:
  struct Known {
    std::vector<RequestLengths> each = {};  // of a part the mean
    std::vector<RequestSums> ends = {};     // of all up to it
    int64_t longest = 0;
    double mean_context = 0;
  };

  std::vector<RequestSums> parts() const;
  // Others, of which those of a part are as unlike each other as here.
  Requests WithParts(std::vector<RequestSums> others) const;

  std::shared_ptr<const Known> known_;
};

}  // namespace convene::planner
