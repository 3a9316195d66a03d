#include "server/fair_share.h"

#include <algorithm>
#include <optional>

namespace convene::server {

void FairShare::Enter(const std::string& client) {
  Client& entering = clients_[client];
  if (entering.num_present++ > 0) return;
  std::optional<int64_t> least;
  for (const auto& [name, other] : clients_) {
    if (other.num_present > 0 && name != client)
      least = std::min(least.value_or(other.used), other.used);
  }
  if (least) entering.used = std::max(entering.used, *least);
}

void FairShare::Leave(const std::string& client) {
  --clients_.at(client).num_present;
  const bool is_anyone_there =
      std::ranges::any_of(clients_, [](const auto& each) { return each.second.num_present > 0; });
  if (!is_anyone_there) clients_.clear();
}

void FairShare::Charge(const std::string& client, int64_t amount) {
  clients_.at(client).used += amount;
}

void FairShare::TakeTurn(const std::string& client, int64_t amount) {
  Charge(client, amount);
  clients_.at(client).last_turn = ++num_turns_;
}

}  // namespace convene::server
