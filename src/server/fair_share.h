// How much each client has had of what several share, so that it is the turn of the one with the
// least: start-time fair queueing, as Sheng et al. (Fairness in Serving Large Language Models,
// 2024, section 4) count tokens. Who waits, and for what, is its owner's matter.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace convene::server {

class FairShare {
 public:
  // Something of the client's waits or runs from now on, until Leave is called as often. A client
  // who had nothing is owed nothing: it begins with what the one with the least has had.
  void Enter(const std::string& client);
  void Leave(const std::string& client);

  // The client, who is there, has had so much more; negative: less than was said before.
  void Charge(const std::string& client, int64_t amount);
  // Likewise, because it was its turn.
  void TakeTurn(const std::string& client, int64_t amount);

  // Of clients who are there, it is the turn of the one of whom this is least: who has had the
  // least and, of those who have had as much, whose last turn is longest ago.
  std::pair<int64_t, int64_t> PlaceOf(const std::string& client) const {
    const Client& found = clients_.at(client);
    return {found.used, found.last_turn};
  }

 private:
  struct Client {
    int64_t used = 0;
    int64_t last_turn = 0;  // of all turns, by number; 0: it had none
    int num_present = 0;
  };

  std::map<std::string, Client> clients_;
  int64_t num_turns_ = 0;
};

}  // namespace convene::server
