// A group of processes connected by MPI. Made by ConnectMpi, which has initialised MPI; destroying
// it finalises MPI.
#pragma once

#include <cstddef>
#include <memory>

#include "comm/group.h"
#include "comm/mpi/mpi_job.h"
#include "comm/mpi/watchdog.h"

namespace convene::comm {

// What MPI is told to send over TCP without asking whoever receives it first.
inline constexpr size_t kEagerPieceBytes = size_t{256} << 10;

class MpiGroup : public Group {
 public:
  explicit MpiGroup(std::unique_ptr<MpiJob> job);
  ~MpiGroup() override;

  int rank() const override { return job_->rank; }
  int size() const override { return job_->size; }
  void NameRoles(std::span<const std::string> names) override;

 private:
  std::unique_ptr<Exchange> StartMessages(int queue,
                                          std::span<const std::span<const std::byte>> send,
                                          std::span<const std::span<std::byte>> receive,
                                          std::string what) override;

  const std::unique_ptr<MpiJob> job_;
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace convene::comm
