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

// With the first token of the answer, which comes of the prompt.
int64_t NumPromptTokens(const engine::Request& request) { return std::ssize(request.prompt) + 1; }

}  // namespace

JobQueue::Waiting::Waiting(Job waiting)
    : job(std::move(waiting)),
      order(job.requests.size()),
      prompt_of(job.requests.size()),
      is_computed(job.requests.size()) {
  std::iota(order.begin(), order.end(), 0);
  for (const int idx : order) {
    const bool repeats = idx > 0 && job.requests[idx].prompt == job.requests[idx - 1].prompt;
    prompt_of[idx] = repeats ? prompt_of[idx - 1] : idx;
  }
  std::ranges::stable_partition(order, [&](int idx) { return prompt_of[idx] == idx; });
}

Pushed JobQueue::Push(Job job) {
  const std::scoped_lock lock(mutex_);
  if (is_closed_) return {Admission::kClosed};
  const auto num_choices = static_cast<int>(job.requests.size());
  const auto own = clients_.find(job.client);
  const int num_own =
      num_choices + (own == clients_.end() ? 0 : own->second.num_counted(capacity_));
  int num_counted = num_own;
  int num_above = 0;  // what others could give up of what they have more
  for (auto client = clients_.begin(); client != clients_.end(); ++client) {
    if (client == own) continue;
    const Client& other = client->second;
    num_counted += other.num_droppable();
    num_above += std::clamp(other.num_waiting - num_own, 0, other.num_droppable());
  }
  const bool is_alone = num_counted == num_choices;
  if (!is_alone && num_counted - num_above > capacity_) return {Admission::kFull};
  Pushed pushed = {Admission::kAccepted};
  while (num_counted > std::max(capacity_, num_choices)) {
    const auto largest = std::ranges::max_element(clients_, {}, [&](const auto& each) {
      const bool may_drop = each.first != job.client && each.second.num_droppable() > 0;
      return may_drop ? each.second.num_waiting : 0;
    });
    auto newest_first = std::views::reverse(largest->second.waiting);
    const auto last = std::ranges::max_element(newest_first, {}, [](const Waiting& waiting) {
      return std::pair(waiting.num_taken == 0, waiting.job.priority);
    });
    share_.Leave(largest->first);
    num_counted -= last->num_choices();
    pushed.dropped.push_back(TakeOut(largest, std::prev(last.base())).id);
  }
  share_.Enter(job.client);
  Client& client = clients_[job.client];
  client.num_waiting += num_choices;
  num_waiting_ += num_choices;
  client.waiting.emplace_back(std::move(job));
  changed_.notify_one();
  return pushed;
}

Job JobQueue::TakeOut(Clients::iterator client, Jobs::iterator job) {
  const int num_choices = job->num_choices();
  client->second.num_waiting -= num_choices;
  if (job->num_taken > 0) client->second.num_begun -= num_choices;
  num_waiting_ -= num_choices;
  Job taken = std::move(job->job);
  client->second.waiting.erase(job);
  if (client->second.waiting.empty()) clients_.erase(client);
  return taken;
}

// Calls `use` with the job's client and the job, if it waits.
template <typename Use>
void JobQueue::Find(JobId id, const Use& use) {
  for (auto client = clients_.begin(); client != clients_.end(); ++client) {
    const auto found = std::ranges::find(client->second.waiting, id,
                                         [](const Waiting& waiting) { return waiting.job.id; });
    if (found != client->second.waiting.end()) return use(client, found);
  }
}

void JobQueue::Cancel(JobId id) {
  const std::scoped_lock lock(mutex_);
  Find(id, [&](Clients::iterator client, Jobs::iterator job) {
    // Of what was taken the engine's thread says that it has ended.
    if (job->num_taken == 0) share_.Leave(client->first);
    TakeOut(client, job);
  });
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

std::vector<Job> JobQueue::TakeUntaken(const std::function<bool(const Job&)>& is_wanted) {
  std::vector<Job> taken;
  for (auto client = clients_.begin(); client != clients_.end();) {
    const auto next_client = std::next(client);
    for (size_t i = 0; i < client->second.waiting.size();) {
      const auto job = client->second.waiting.begin() + static_cast<ptrdiff_t>(i);
      if (job->num_taken > 0 || !is_wanted(job->job)) {
        ++i;
        continue;
      }
      share_.Leave(client->first);
      const bool is_last = client->second.waiting.size() == 1;
      taken.push_back(TakeOut(client, job));
      if (is_last) break;  // and the client is gone
    }
    client = next_client;
  }
  return taken;
}

Work JobQueue::Take(int room, bool is_idle, const EngineRules& rules) {
  std::unique_lock lock(mutex_);
  if (is_idle) {
    changed_.wait(lock, [&] { return !clients_.empty() || !cancelled_.empty() || is_closed_; });
  }
  Work work;
  work.cancelled = std::exchange(cancelled_, {});
  work.is_aborted = is_aborted_;
  if (is_aborted_) work.aborted = TakeUntaken([](const Job&) { return true; });
  work.expired = TakeUntaken(
      [now = Clock::now()](const Job& job) { return job.deadline && *job.deadline <= now; });
  if (!is_aborted_ && room > 0) work.choice = TakeNext(is_idle, room, rules);
  work.is_closed = is_closed_ && clients_.empty();
  return work;
}

// Of who has had the least; of those who had as much, of who waits longest.
std::optional<JobChoice> JobQueue::TakeNext(bool takes_any, int room, const EngineRules& rules) {
  auto client = clients_.end();
  std::tuple<std::pair<int64_t, int64_t>, Clock::time_point> place;
  for (auto each = clients_.begin(); each != clients_.end(); ++each) {
    Jobs& waiting = each->second.waiting;
    if (std::ranges::all_of(waiting, &Waiting::is_held)) continue;
    const std::tuple of_each(share_.PlaceOf(each->first), waiting.front().job.arrival);
    if (client != clients_.end() && place <= of_each) continue;
    client = each;
    place = of_each;
  }
  if (client == clients_.end()) return std::nullopt;
  Client& chosen = client->second;
  const auto next = NextOf(chosen);
  if (!takes_any && !rules.has_room(next->job.requests[next->next()])) {
    return room > 1 ? TakeOvertaking(rules) : std::nullopt;
  }
  const auto oldest = std::ranges::find_if_not(chosen.waiting, &Waiting::is_held);
  if (next == oldest) {
    chosen.num_overtakes = 0;
  } else if (next->job.priority < oldest->job.priority) {
    ++chosen.num_overtakes;
  }
  return TakeInTurn(client, next);
}

std::optional<JobChoice> JobQueue::TakeOvertaking(const EngineRules& rules) {
  std::vector<Clients::iterator> clients;
  for (auto client = clients_.begin(); client != clients_.end(); ++client) {
    clients.push_back(client);
  }
  std::ranges::sort(clients, {}, [&](auto client) { return share_.PlaceOf(client->first); });
  int num_left = kMostLookedAt;
  for (const auto client : clients) {
    Jobs& waiting = client->second.waiting;
    for (auto job = waiting.begin(); job != waiting.end(); ++job) {
      if (job->is_held()) continue;
      if (num_left-- == 0) return std::nullopt;
      if (rules.may_overtake(job->job.requests[job->next()])) return TakeInTurn(client, job);
    }
  }
  return std::nullopt;
}

JobChoice JobQueue::TakeInTurn(Clients::iterator client, Jobs::iterator job) {
  const int idx = job->next();
  JobChoice taken = {.job = job->job.id,
                     .idx = idx,
                     .num_choices = static_cast<int>(job->order.size()),
                     .request = std::move(job->job.requests[idx]),
                     .client = client->first,
                     .deadline = job->job.deadline};
  share_.TakeTurn(client->first, NumPromptTokens(taken.request));
  if (job->num_choices() == 1) {
    TakeOut(client, job);
    return taken;
  }
  if (job->num_taken == 0) client->second.num_begun += job->num_choices();
  ++job->num_taken;
  --client->second.num_waiting;
  --client->second.num_begun;
  --num_waiting_;
  return taken;
}

void JobQueue::PromptComputed(JobId id, int choice_idx) {
  const std::scoped_lock lock(mutex_);
  Find(id, [&](Clients::iterator, Jobs::iterator job) { job->is_computed[choice_idx] = true; });
}

// By priority, then the oldest; or the oldest of all, where it was overtaken often enough.
JobQueue::Jobs::iterator JobQueue::NextOf(Client& client) {
  const auto oldest = std::ranges::find_if_not(client.waiting, &Waiting::is_held);
  if (client.num_overtakes >= kMostOvertakes) return oldest;
  return std::ranges::min_element(client.waiting, {}, [](const Waiting& waiting) {
    return std::pair(waiting.is_held(), waiting.job.priority);
  });
}

void JobQueue::Charge(const std::string& client, int64_t num_tokens) {
  const std::scoped_lock lock(mutex_);
  share_.Charge(client, num_tokens);
}

void JobQueue::Finish(JobId id, const std::string& client) {
  const std::scoped_lock lock(mutex_);
  Find(id, [&](Clients::iterator its, Jobs::iterator job) { TakeOut(its, job); });
  share_.Leave(client);
}

int JobQueue::num_waiting() const {
  const std::scoped_lock lock(mutex_);
  return num_waiting_;
}

}  // namespace convene::server
