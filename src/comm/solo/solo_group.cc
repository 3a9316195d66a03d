#include "comm/solo/solo_group.h"

namespace convene::comm {
namespace {

class DoneExchange : public Exchange {
 public:
  bool Test() override { return true; }
};

class SoloGroup : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

 private:
  std::unique_ptr<Exchange> StartMessages(int, std::span<const std::span<const std::byte>>,
                                          std::span<const std::span<std::byte>>,
                                          std::string) override {
    return std::make_unique<DoneExchange>();
  }
};

}  // namespace

std::unique_ptr<Group> MakeSoloGroup() { return std::make_unique<SoloGroup>(); }

}  // namespace convene::comm
