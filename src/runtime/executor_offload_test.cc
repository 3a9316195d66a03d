// The offload pipeline executed with real copies: pages of a file go to pinned buffers, from there
// to the device's, and computation uses what arrived. Numbers stand for the mathematics.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "runtime/executor_test.h"
#include "strategy/offload_pipeline.h"

namespace convene::runtime {
namespace {

// A pipeline over so many layers of experts.
struct OffloadPipeline : strategy::OffloadPipeline {
  int num_layers = 2;
};

Schedule Build(const OffloadPipeline& pipeline) {
  model::ModelSpec spec;
  spec.hidden_size = 16;
  spec.layers.resize(static_cast<size_t>(pipeline.num_layers));
  for (model::LayerSpec& layer : spec.layers) layer.moe.emplace();
  return strategy::BuildOffloadPipeline(spec, pipeline);
}

constexpr int kPageNumbers = 8192;
using Page = std::vector<uint64_t>;
constexpr size_t kPageBytes = kPageNumbers * sizeof(uint64_t);

uint64_t Mix(uint64_t a, uint64_t b) {
  const uint64_t hash = (a ^ b * 0x9e3779b97f4a7c15) * 0xff51afd7ed558ccd;
  return hash ^ hash >> 31;
}

Page PageOf(int layer, int chunk) {
  Page page(kPageNumbers);
  for (size_t i = 0; i < page.size(); ++i) page[i] = Mix(100 * layer + chunk, i);
  return page;
}

uint64_t PreAttention(int layer, uint64_t hidden) { return Mix(hidden, layer); }
uint64_t Attention(uint64_t qkv) { return Mix(qkv, 7); }
uint64_t ExpertsOf(uint64_t hidden, const std::vector<Page>& weights) {
  for (const Page& page : weights) {
    for (const uint64_t number : page) hidden = hidden * 31 + number;
  }
  return hidden;
}

class PageFile {
 public:
  explicit PageFile(const OffloadPipeline& pipeline) : pipeline_(pipeline) {
    std::string path = testing::TempDir() + "/executor_offload_XXXXXX";
    file_ = mkstemp(path.data());
    EXPECT_GE(file_, 0) << path;
    std::filesystem::remove(path);  // it lives as long as it is open
    for (int layer = 0; layer < pipeline.num_layers; ++layer) WriteLayer(layer);
  }
  ~PageFile() { close(file_); }
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  void WriteLayer(int layer) {
    for (int chunk = 0; chunk < pipeline_.micro_batches; ++chunk) {
      const Page page = PageOf(layer, chunk);
      EXPECT_EQ(pwrite(file_, page.data(), kPageBytes, OffsetOf(layer, chunk)), kPageBytes);
    }
  }
  // The page's second half and what follows it are gone.
  void TruncateWithin(int layer, int chunk) {
    EXPECT_EQ(ftruncate(file_, OffsetOf(layer, chunk) + kPageBytes / 2), 0);
  }

  Status Read(int layer, int chunk, Page& page) const {
    auto* const bytes = reinterpret_cast<char*>(page.data());
    for (size_t done = 0; done < kPageBytes;) {
      const ssize_t count = pread(file_, bytes + done, kPageBytes - done,
                                  OffsetOf(layer, chunk) + static_cast<off_t>(done));
      if (count < 0) return Error{fmt::format("cannot read: {}", std::strerror(errno))};
      if (count == 0) return Error{fmt::format("the file ends {} bytes early", kPageBytes - done)};
      done += static_cast<size_t>(count);
    }
    return {};
  }

 private:
  off_t OffsetOf(int layer, int chunk) const {
    return static_cast<off_t>(kPageBytes) * (layer * pipeline_.micro_batches + chunk);
  }

  const OffloadPipeline& pipeline_;
  int file_ = -1;
};

// One step after the other. Nothing in it is atomic: the schedule's edges are all that orders it.
class OffloadWork : public LaneWork {
 public:
  OffloadWork(const OffloadPipeline& pipeline, const PageFile& file)
      : p_(pipeline), file_(file), pinned_(p_.pinned_pages, Page(kPageNumbers)) {
    for (std::vector<Page>& layer : device_) layer.resize(p_.micro_batches, Page(kPageNumbers));
    for (int chunk = 0; chunk < p_.micro_batches; ++chunk) device_[0][chunk] = PageOf(0, chunk);
    for (int m = 0; m < p_.micro_batches; ++m) hidden_.push_back(m + 1);
    qkv_ = host_qkv_ = host_attended_ = attended_ = hidden_;
  }

  void Compute(const Task& task) override {
    const int m = task.micro_batch;
    if (task.kind == kPreAttention) qkv_[m] = PreAttention(task.layer, hidden_[m]);
    if (task.kind == kPostAttention) hidden_[m] = attended_[m];
    if (task.kind == kExperts) hidden_[m] = ExpertsOf(hidden_[m], device_[task.layer % 2]);
  }
  std::unique_ptr<comm::Exchange> Start(const Task&) override { return nullptr; }

  Status RunOnLane(const Task& task, hardware::ThreadPool*) override {
    const int m = task.micro_batch;
    switch (task.kind) {
      case kSendQkv:
        host_qkv_[m] = qkv_[m];
        return {};
      case kAttend:
        host_attended_[m] = Attention(host_qkv_[m]);
        return {};
      case kSendHidden:
        attended_[m] = host_attended_[m];
        return {};
      case kStagePage:
        // Behind the last layer comes the first one, of the next step.
        return file_.Read(task.layer % p_.num_layers, task.chunk, PinnedOf(task));
      default:
        EXPECT_EQ(task.kind, kLoadPage);
        std::memcpy(device_[task.layer % 2][task.chunk].data(), PinnedOf(task).data(), kPageBytes);
        return {};
    }
  }

  const std::vector<uint64_t>& hidden() const { return hidden_; }

 private:
  Page& PinnedOf(const Task& task) {
    return pinned_[(task.layer * p_.micro_batches + task.chunk) % p_.pinned_pages];
  }

  const OffloadPipeline& p_;
  const PageFile& file_;
  std::vector<Page> pinned_;
  std::array<std::vector<Page>, 2> device_;  // of layers by turns
  // By micro-batch, on the device and on the host.
  std::vector<uint64_t> hidden_, qkv_, host_qkv_, host_attended_, attended_;
};

// The same without schedule, file and copies.
std::vector<uint64_t> Expected(const OffloadPipeline& pipeline, int num_steps) {
  std::vector<uint64_t> hidden;
  for (int m = 0; m < pipeline.micro_batches; ++m) hidden.push_back(m + 1);
  for (int step = 0; step < num_steps; ++step) {
    for (int layer = 0; layer < pipeline.num_layers; ++layer) {
      std::vector<Page> weights;
      for (int c = 0; c < pipeline.micro_batches; ++c) weights.push_back(PageOf(layer, c));
      for (uint64_t& one : hidden) {
        one = ExpertsOf(Attention(PreAttention(layer, one)), weights);
      }
    }
  }
  return hidden;
}

// Two layers and three micro-batches, both hops.
const OffloadPipeline kPipeline = {{.micro_batches = 3}, 2};

TEST(ExecutorOffload, UsesThePagesThatArrived) {
  const PageFile file(kPipeline);
  const Schedule schedule = Build(kPipeline);
  const RankProgram program(schedule, 0);
  EXPECT_EQ(program.thread_lanes().size(), 4);
  Executor executor(/*background=*/true, {{0}});
  for (int run = 0; run < 10; ++run) {
    OffloadWork work(kPipeline, file);
    const Status status = executor.Run(program, work);
    ASSERT_TRUE(status.ok()) << status.error().message;
    EXPECT_EQ(work.hidden(), Expected(kPipeline, 1));
    ExpectInOrder(schedule, executor.timeline(), 0);
  }
}

TEST(ExecutorOffload, BuffersAreReusedWithinAndOverSteps) {
  // Each step finds its first layer's pages where the one before it put them.
  for (const int pinned_pages : {1, 2, 3}) {
    for (const int num_layers : {2, 4}) {
      OffloadPipeline pipeline = kPipeline;
      pipeline.num_layers = num_layers;
      pipeline.pinned_pages = pinned_pages;
      pipeline.lead = std::min(2, pinned_pages);
      pipeline.next_step = true;
      const PageFile file(pipeline);
      const Schedule schedule = Build(pipeline);
      const RankProgram program(schedule, 0);
      Executor executor(/*background=*/true, {{0}});
      OffloadWork work(pipeline, file);
      for (int step = 1; step <= 6; ++step) {
        if (step > 3) executor.Prefetch(program, work);
        const Status status = executor.Run(program, work);
        ASSERT_TRUE(status.ok()) << status.error().message;
        EXPECT_EQ(work.hidden(), Expected(pipeline, step));
        ExpectInOrder(schedule, executor.timeline(), 0);
      }
    }
  }
}

TEST(ExecutorOffload, AFileThatEndsEarlyEndsTheRunAndTheNextOneWorks) {
  PageFile file(kPipeline);
  const Schedule schedule = Build(kPipeline);
  const RankProgram program(schedule, 0);
  Executor executor(/*background=*/true, {{0}});
  for (int run = 0; run < 5; ++run) {
    for (int chunk = 0; chunk < kPipeline.micro_batches; ++chunk) {
      file.TruncateWithin(1, chunk);
      OffloadWork work(kPipeline, file);
      const Status status = executor.Run(program, work);
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(
          status.error().message,
          fmt::format("stage_page L1 c{}: the file ends {} bytes early", chunk, kPageBytes / 2));
      file.WriteLayer(1);
      OffloadWork again(kPipeline, file);
      ASSERT_TRUE(executor.Run(program, again).ok());
      EXPECT_EQ(again.hidden(), Expected(kPipeline, 1));
      ExpectInOrder(schedule, executor.timeline(), 0);
    }
  }
}

}  // namespace
}  // namespace convene::runtime
