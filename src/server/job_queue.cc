#include "server/job_queue.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <ranges>
#include <tuple>
#include <utility>

namespace convene::server {
namespace {

// Of those that wait, who could overtake: each is looked up in the KV cache.
constexpr int kMostLookedAt = 64;

int NumChoices(const Job& job) { return static_cast<int>(job.requests.size()); }

// With the first token of each answer, which comes of the prompt.
int64_t NumPromptTokens(const Job& job) {
  return std::transform_reduce(
      job.requests.begin(), job.requests.end(), int64_t{0}, std::plus<>(),
      [](const engine::Request& request) { return std::ssize(request.prompt) + 1; });
}

}  // namespace

Pushed JobQueue::Push(Job job) {
  const std::scoped_lock lock(mutex_);
  if (is_closed_) return {Admission::kClosed};
  const int num_choices = NumChoices(job);
  const auto own = clients_.find(job.client);
  const int num_own = num_choices + (own == clients_.end() ? 0 : own->second.num_waiting);
  // What others have above that.
  int num_above = 0;
  for (const auto& [name, client] : clients_) {
    num_above += std::max(0, client.num_waiting - num_own);
  }
  if (num_waiting_ > 0 && num_waiting_ + num_choices - num_above > capacity_) {
    return {Admission::kFull};
  }
  Pushed pushed = {Admission::kAccepted};
  while (num_waiting_ > 0 && num_waiting_ + num_choices > capacity_) {
    const auto largest = std::ranges::max_element(
        clients_, {}, [](const auto& each) { return each.second.num_waiting; });
    auto newest_first = std::views::reverse(largest->second.waiting);
    const auto last = std::ranges::max_element(newest_first, {}, &Job::priority);
    share_.Leave(largest->first);
    pushed.dropped.push_back(TakeOut(largest, std::prev(last.base())).id);
  }
  share_.Enter(job.client);
  Client& client = clients_[job.client];
  client.num_waiting += num_choices;
  num_waiting_ += num_choices;
  client.waiting.push_back(std::move(job));
  changed_.notify_one();
  return pushed;
}

Job JobQueue::TakeOut(Clients::iterator client, std::vector<Job>::iterator job) {
  Job taken = std::move(*job);
  client->second.waiting.erase(job);
  client->second.num_waiting -= NumChoices(taken);
  num_waiting_ -= NumChoices(taken);
  if (client->second.waiting.empty()) clients_.erase(client);
  return taken;
}

void JobQueue::Cancel(JobId id) {
  const std::scoped_lock lock(mutex_);
  for (auto client = clients_.begin(); client != clients_.end(); ++client) {
    const auto found = std::ranges::find(client->second.waiting, id, &Job::id);
    if (found == client->second.waiting.end()) continue;
    share_.Leave(client->first);
    TakeOut(client, found);
    break;
  }
  cancelled_.push_back(id);
  changed_.notify_one();
}

void JobQueue::Close() {
  const std::scoped_lock lock(mutex_);
  is_closed_ = true;
  changed_.notify_one();
}

void JobQueue::Abort() {
  const std::scoped_lock lock(mutex_);
  is_closed_ = true;
  is_aborted_ = true;
  changed_.notify_one();
}

std::vector<Job> JobQueue::TakeExpired() {
  std::vector<Job> expired;
  const Clock::time_point now = Clock::now();
  for (auto client = clients_.begin(); client != clients_.end();) {
    const auto next_client = std::next(client);
    for (size_t i = 0; i < client->second.waiting.size();) {
      const auto job = client->second.waiting.begin() + static_cast<ptrdiff_t>(i);
      if (!job->deadline || *job->deadline > now) {
        ++i;
        continue;
      }
      share_.Leave(client->first);
      const bool is_last = client->second.waiting.size() == 1;
      expired.push_back(TakeOut(client, job));
      if (is_last) break;  // and the client is gone
    }
    client = next_client;
  }
  return expired;
}

Work JobQueue::Take(int room, bool is_idle, const EngineRules& rules) {
  std::unique_lock lock(mutex_);
  if (is_idle) {
    changed_.wait(lock, [&] { return !clients_.empty() || !cancelled_.empty() || is_closed_; });
  }
  Work work;
  work.cancelled = std::exchange(cancelled_, {});
  work.is_aborted = is_aborted_;
  work.expired = TakeExpired();
  if (!clients_.empty()) work.job = TakeNext(room, is_aborted_ || is_idle, rules);
  work.is_closed = is_closed_ && clients_.empty();
  return work;
}

std::optional<Job> JobQueue::TakeNext(int room, bool takes_any, const EngineRules& rules) {
  const auto client = NextClient();
  Client& chosen = client->second;
  const auto next = NextOf(chosen);
  if (!takes_any && NumChoices(*next) > room) return std::nullopt;
  if (!takes_any && !rules.has_room(*next)) return TakeOvertaking(room - 1, rules);
  if (next == chosen.waiting.begin()) {
    chosen.num_overtakes = 0;
  } else if (next->priority < chosen.waiting.front().priority) {
    ++chosen.num_overtakes;
  }
  return TakeInTurn(client, next);
}

std::optional<Job> JobQueue::TakeOvertaking(int room, const EngineRules& rules) {
  std::vector<Clients::iterator> clients;
  for (auto client = clients_.begin(); client != clients_.end(); ++client) {
    clients.push_back(client);
  }
  std::ranges::sort(clients, {}, [&](auto client) { return share_.PlaceOf(client->first); });
  int num_left = kMostLookedAt;
  for (const auto client : clients) {
    std::vector<Job>& waiting = client->second.waiting;
    for (auto job = waiting.begin(); job != waiting.end(); ++job) {
      if (num_left-- == 0) return std::nullopt;
      if (NumChoices(*job) <= room && rules.may_overtake(*job)) return TakeInTurn(client, job);
    }
  }
  return std::nullopt;
}

Job JobQueue::TakeInTurn(Clients::iterator client, std::vector<Job>::iterator job) {
  share_.TakeTurn(client->first, NumPromptTokens(*job));
  return TakeOut(client, job);
}

// Who has had the least; of those who had as much, who waits longest.
JobQueue::Clients::iterator JobQueue::NextClient() {
  return std::ranges::min_element(clients_, {}, [&](const auto& each) {
    return std::tuple(share_.PlaceOf(each.first), each.second.waiting.front().arrival);
  });
}

// By priority, then the oldest; or the oldest of all, where it was overtaken often enough.
std::vector<Job>::iterator JobQueue::NextOf(Client& client) {
  if (client.num_overtakes >= kMostOvertakes) return client.waiting.begin();
  return std::ranges::min_element(client.waiting, {}, &Job::priority);
}

void JobQueue::Charge(const std::string& client, int64_t num_tokens) {
  const std::scoped_lock lock(mutex_);
  share_.Charge(client, num_tokens);
}

void JobQueue::Finish(const std::string& client) {
  const std::scoped_lock lock(mutex_);
  share_.Leave(client);
}

int JobQueue::num_waiting() const {
  const std::scoped_lock lock(mutex_);
  return num_waiting_;
}

bool JobQueue::is_closed() const {
  const std::scoped_lock lock(mutex_);
  return is_closed_;
}

}  // namespace convene::server
