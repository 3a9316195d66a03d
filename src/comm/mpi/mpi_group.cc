#include "comm/mpi/mpi_group.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/sleeping_poll.h"
#include "comm/under_way.h"

namespace convene::comm {
namespace {

// Long messages go in pieces, two at a time: no count overflows an int, signs of life do not wait
// behind hundreds of megabytes on a slow link, and each piece that arrives is a sign of life. (With
// 4 MiB three ranks on 40 Mbit/s took each other for dead.)
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr int kPiecesAtOnce = 2;

// Over a network, rows of activations go in pieces that are sent without asking the receiver first
// (ConnectMpi). MPI keeps a copy of them until they are sent, for which weights are too large.
constexpr size_t kMostEagerBytes = size_t{16} << 20;

size_t MostOfPiece(const Peer& peer, size_t message_bytes) {
  return peer.is_far && message_bytes <= kMostEagerBytes ? kEagerPieceBytes : kPieceBytes;
}

class MpiExchange : public Exchange {
 public:
  MpiExchange(MpiJob* job, Watchdog* watchdog, int queue,
              std::span<const std::span<const std::byte>> send,
              std::span<const std::span<std::byte>> receive, std::string what)
      : job_(job),
        watchdog_(watchdog),
        communicator_(job->queues[queue]),
        what_(std::move(what)),
        under_way_(what_) {
    // Receives first, so that what arrives finds its place; peers in an order that starts behind
    // this rank, so that not all send to rank 0 first.
    for (const bool is_send : {false, true}) {
      for (int distance = 1; distance < job->size; ++distance) {
        const int peer = (job->rank + distance) % job->size;
        const auto in = receive[peer];
        const auto out = send[peer];
        // MPI takes no pointers to const bytes in one type with those it writes to.
        std::byte* data = is_send ? const_cast<std::byte*>(out.data()) : in.data();
        const size_t size = is_send ? out.size() : in.size();
        if (size > 0)
          messages_.push_back({.data = data,
                               .size = size,
                               .peer = peer,
                               .is_send = is_send,
                               .most_of_piece = MostOfPiece(job->peers[peer], size)});
      }
    }
    requests_.resize(messages_.size() * kPiecesAtOnce, MPI_REQUEST_NULL);
    piece_bytes_.resize(requests_.size());
    done_.resize(requests_.size());
    statuses_.resize(requests_.size());
    const std::scoped_lock lock(job_->mutex);
    for (size_t i = 0; i < requests_.size(); ++i) StartPiece(i);
    for (const Message& message : messages_) under_way_.SetWaiting(message.peer, true);
  }

  ~MpiExchange() override {
    SleepingPoll poll;
    while (!Test()) poll.Pause();
  }

  bool Test() override {
    if (num_active_ == 0) return true;
    const std::scoped_lock lock(job_->mutex);
    // Again while pieces arrive: over shared memory the next one is there at once.
    int num_done = 0;
    do {
      const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &num_done,
                                    done_.data(), statuses_.data());
      if (code != MPI_SUCCESS) FailTest(code, num_done);
      for (int i = 0; i < num_done; ++i) FinishPiece(done_[i], statuses_[i]);
    } while (num_done > 0 && num_active_ > 0);
    return num_active_ == 0;
  }

 private:
  struct Message {
    std::byte* data;
    size_t size;
    int peer;
    bool is_send;
    size_t most_of_piece;
    size_t started = 0;
    size_t finished = 0;
  };

  // The next piece of a request's message, if there is one. Pieces of a message are matched in the
  // order in which they start.
  void StartPiece(size_t request) {
    Message& message = messages_[request / kPiecesAtOnce];
    const size_t bytes = std::min(message.size - message.started, message.most_of_piece);
    if (bytes == 0) return;
    std::byte* data = message.data + message.started;
    const int count = static_cast<int>(bytes);
    const int code =
        message.is_send
            ? MPI_Isend(data, count, MPI_BYTE, message.peer, 0, communicator_, &requests_[request])
            : MPI_Irecv(data, count, MPI_BYTE, message.peer, 0, communicator_, &requests_[request]);
    if (code != MPI_SUCCESS) Fail(code, message);
    piece_bytes_[request] = bytes;
    message.started += bytes;
    ++num_active_;
  }

  void FinishPiece(int request, const MPI_Status& status) {
    --num_active_;
    Message& message = messages_[request / kPiecesAtOnce];
    if (!message.is_send) {
      int count = 0;
      MPI_Get_count(&status, MPI_BYTE, &count);
      if (static_cast<size_t>(count) != piece_bytes_[request])
        EndJob(*job_, fmt::format("in `{}` {} sent {} bytes where {} were expected: ranks disagree "
                                  "about what they exchange",
                                  what_, job_->NameOf(message.peer), count, piece_bytes_[request]));
    }
    watchdog_->Heard(message.peer);
    message.finished += piece_bytes_[request];
    if (message.finished < message.size) return StartPiece(request);
    const bool is_waiting = std::ranges::any_of(messages_, [&](const Message& other) {
      return other.peer == message.peer && other.finished < other.size;
    });
    under_way_.SetWaiting(message.peer, is_waiting);
  }

  [[noreturn]] void FailTest(int code, int num_done) {
    for (int i = 0; i < num_done && code == MPI_ERR_IN_STATUS; ++i)
      if (statuses_[i].MPI_ERROR != MPI_SUCCESS && statuses_[i].MPI_ERROR != MPI_ERR_PENDING)
        Fail(statuses_[i].MPI_ERROR, messages_[done_[i] / kPiecesAtOnce]);
    EndJob(*job_, fmt::format("MPI reports error {} in `{}`", code, what_));
  }

  [[noreturn]] void Fail(int code, const Message& message) {
    CheckMpi(*job_, code,
             fmt::format("{} {} in `{}`", message.is_send ? "sending to" : "receiving from",
                         job_->NameOf(message.peer), what_));
    __builtin_unreachable();
  }

  MpiJob* const job_;
  Watchdog* const watchdog_;
  const MPI_Comm communicator_;
  const std::string what_;
  UnderWay under_way_;
  std::vector<Message> messages_;
  std::vector<MPI_Request> requests_;  // (messages, kPiecesAtOnce), as the next two
  std::vector<size_t> piece_bytes_;
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
  int num_active_ = 0;
};

}  // namespace

MpiGroup::MpiGroup(std::unique_ptr<MpiJob> job)
    : job_(std::move(job)), watchdog_(std::make_unique<Watchdog>(job_.get())) {}

MpiGroup::~MpiGroup() {
  // A launcher may end ranks that return an error while they leave: that tells nothing new.
  EndSilentlyOnSigterm();
  watchdog_.reset();  // all ranks are leaving
  for (MPI_Comm& queue : job_->queues) MPI_Comm_free(&queue);
  MPI_Comm_free(&job_->signs_of_life);
  MPI_Finalize();
}

void MpiGroup::NameRoles(std::span<const std::string> names) {
  {
    const std::scoped_lock lock(job_->mutex);
    for (int rank = 0; rank < job_->size; ++rank) job_->peers[rank].role = names[rank];
  }
  comm::NameRoles(job_->OwnName(), names);
}

std::unique_ptr<Exchange> MpiGroup::StartMessages(int queue,
                                                  std::span<const std::span<const std::byte>> send,
                                                  std::span<const std::span<std::byte>> receive,
                                                  std::string what) {
  return std::make_unique<MpiExchange>(job_.get(), watchdog_.get(), queue, send, receive,
                                       std::move(what));
}

}  // namespace convene::comm
