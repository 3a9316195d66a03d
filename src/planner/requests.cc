#include "planner/requests.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

namespace convene::planner {
namespace {

RequestSums SumsOf(const RequestLengths& one) {
  return {.num_requests = 1, .prompt_tokens = one.prompt_tokens, .gen_tokens = one.gen_tokens};
}

RequestSums Between(const RequestSums& start, const RequestSums& end) {
  return {.num_requests = end.num_requests - start.num_requests,
          .prompt_tokens = end.prompt_tokens - start.prompt_tokens,
          .gen_tokens = end.gen_tokens - start.gen_tokens};
}

double MeanPrompt(const RequestSums& part) {
  return static_cast<double>(part.prompt_tokens) / static_cast<double>(part.num_requests);
}

double MeanAnswer(const RequestSums& part) {
  return static_cast<double>(part.gen_tokens) / static_cast<double>(part.num_requests);
}

// As though the requests of a part were all alike.
double MeanContextOf(const std::vector<RequestSums>& parts) {
  double sum = 0;
  double tokens = 0;
  for (const RequestSums& part : parts) {
    const auto generated = static_cast<double>(part.gen_tokens);
    sum += generated * (MeanPrompt(part) + MeanAnswer(part) / 2);
    tokens += generated;
  }
  return tokens > 0 ? sum / tokens : 0;
}

std::vector<RequestSums> SumsOfEach(const std::vector<RequestLengths>& each) {
  std::vector<RequestSums> sums;
  sums.reserve(each.size());
  for (const RequestLengths& one : each) sums.push_back(SumsOf(one));
  return sums;
}

}  // namespace

Requests::Requests(std::vector<RequestLengths> each) : Requests(SumsOfEach(each)) {}

Requests::Requests(std::vector<RequestSums> parts, std::optional<double> mean_context) {
  // Those of one length stay in the order in which they came.
  std::ranges::stable_sort(parts, {}, MeanPrompt);
  Known known{.mean_context = mean_context ? *mean_context : MeanContextOf(parts)};
  known.each.reserve(parts.size());
  known.ends.reserve(parts.size());
  RequestSums all;
  for (const RequestSums& part : parts) {
    all.num_requests += part.num_requests;
    all.prompt_tokens += part.prompt_tokens;
    all.gen_tokens += part.gen_tokens;
    known.ends.push_back(all);
    known.each.push_back({.prompt_tokens = static_cast<int>(std::lround(MeanPrompt(part))),
                          .gen_tokens = static_cast<int>(std::lround(MeanAnswer(part)))});
    known.longest =
        std::max(known.longest, (part.prompt_tokens + part.gen_tokens) / part.num_requests);
  }
  known_ = std::make_shared<const Known>(std::move(known));
}

std::vector<RequestSums> Requests::parts() const {
  std::vector<RequestSums> parts;
  parts.reserve(known_->ends.size());
  RequestSums start;
  for (const RequestSums& end : known_->ends) {
    parts.push_back(Between(start, end));
    start = end;
  }
  return parts;
}

RequestLengths Requests::MeanOf(int64_t first, int64_t end) const {
  const std::vector<RequestSums>& ends = known_->ends;
  // Of the first so many.
  const auto tokens_of = [&](int64_t count, int64_t RequestSums::*tokens) {
    const auto next = std::ranges::upper_bound(ends, count, {}, &RequestSums::num_requests);
    const RequestSums before = next == ends.begin() ? RequestSums{} : *std::prev(next);
    auto sum = static_cast<double>(before.*tokens);
    if (count > before.num_requests) {
      const RequestSums part = Between(before, *next);
      sum += static_cast<double>(part.*tokens) * static_cast<double>(count - before.num_requests) /
             static_cast<double>(part.num_requests);
    }
    return sum;
  };
  const auto mean_of = [&](int64_t RequestSums::*tokens) {
    const double sum = tokens_of(end, tokens) - tokens_of(first, tokens);
    return std::max(1, static_cast<int>(std::lround(sum / static_cast<double>(end - first))));
  };
  return {.prompt_tokens = mean_of(&RequestSums::prompt_tokens),
          .gen_tokens = mean_of(&RequestSums::gen_tokens)};
}

std::vector<RequestSums> Requests::InParts(std::span<const int> counts) const {
  std::set<int64_t> ends;
  for (const int64_t equal : counts) {
    for (int64_t i = 1; i <= equal; ++i) ends.insert(count() * i / equal);
  }
  const auto of_its_own = [&](auto measure) {
    const auto longest = std::ranges::max_element(known_->each, {}, measure);
    const auto part = known_->ends.begin() + (longest - known_->each.begin());
    ends.insert(part->num_requests);
    if (part != known_->ends.begin()) ends.insert(std::prev(part)->num_requests);
  };
  of_its_own([](const RequestLengths& one) { return one.prompt_tokens; });
  of_its_own([](const RequestLengths& one) { return one.gen_tokens; });
  of_its_own([](const RequestLengths& one) { return int64_t{one.prompt_tokens} + one.gen_tokens; });
  std::vector<RequestSums> parts;
  RequestSums start;
  for (const RequestSums& end : known_->ends) {
    if (!ends.contains(end.num_requests)) continue;
    parts.push_back(Between(start, end));
    start = end;
  }
  return parts;
}

Requests Requests::Scaled(int64_t RequestSums::*tokens, double factor) const {
  std::vector<RequestSums> scaled = parts();
  for (RequestSums& part : scaled) {
    const double most = static_cast<double>(part.num_requests) * kMostTokens;
    const double wanted = static_cast<double>(part.*tokens) * factor;
    part.*tokens = std::max<int64_t>(part.num_requests, std::llround(std::min(most, wanted)));
  }
  return WithParts(std::move(scaled));
}

Requests Requests::Without(const std::function<bool(const RequestLengths&)>& is_left_out) const {
  const std::vector<RequestSums> all = parts();
  std::vector<RequestSums> left;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!is_left_out(known_->each[i])) left.push_back(all[i]);
  }
  return WithParts(std::move(left));
}

Requests Requests::WithParts(std::vector<RequestSums> others) const {
  const double unlike = mean_context() / MeanContextOf(parts());
  const double context = unlike * MeanContextOf(others);
  return Requests(std::move(others), context);
}

bool Requests::operator==(const Requests& other) const {
  return known_ == other.known_ ||
         (known_->ends == other.known_->ends && known_->mean_context == other.known_->mean_context);
}

}  // namespace convene::planner
