#include "comm/first_ranks.h"

#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace convene::comm {
namespace {

class FirstRanksGroup : public Group {
 public:
  FirstRanksGroup(Group& all, int num_ranks) : all_(all), num_ranks_(num_ranks) {}

  int rank() const override { return all_.rank(); }
  int size() const override { return num_ranks_; }
  void NameRoles(std::span<const std::string> names) override {
    std::vector<std::string> all(names.begin(), names.end());
    all.resize(static_cast<size_t>(all_.size()));
    all_.NameRoles(all);
  }

 private:
  // Nothing goes to the others, and so nobody waits for them.
  std::unique_ptr<Exchange> StartMessages(int queue,
                                          std::span<const std::span<const std::byte>> send,
                                          std::span<const std::span<std::byte>> receive,
                                          std::string what) override {
    std::vector<std::span<const std::byte>> all_send(send.begin(), send.end());
    std::vector<std::span<std::byte>> all_receive(receive.begin(), receive.end());
    all_send.resize(static_cast<size_t>(all_.size()));
    all_receive.resize(static_cast<size_t>(all_.size()));
    // What goes to itself has been copied.
    all_send[static_cast<size_t>(rank())] = {};
    all_receive[static_cast<size_t>(rank())] = {};
    return all_.StartAllToAll(queue, all_send, all_receive, std::move(what));
  }

  Group& all_;
  int num_ranks_;
};

}  // namespace

std::unique_ptr<Group> FirstRanks(Group& all, int num_ranks) {
  CHECK(all.rank() < num_ranks && num_ranks <= all.size(), "rank {} of the first {} of {}",
        all.rank(), num_ranks, all.size());
  return std::make_unique<FirstRanksGroup>(all, num_ranks);
}

}  // namespace convene::comm
