#include "weights/page_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

namespace convene::weights {
namespace {

// Uses of pages after which what was used before counts half.
constexpr int64_t kUsesPerPage = 16;

// As if so many steps of one token with even routing had been before the first one.
constexpr double kEvenSteps = 1;

}  // namespace

PageBuffers::PageBuffers(std::vector<Layer> layers, const Options& options,
                         std::unique_ptr<PageSource> source, std::byte* memory)
    : options_(options),
      memory_(memory),
      source_(std::move(source)),
      in_buffer_(static_cast<size_t>(options.num_buffers)) {
  for (Layer& layer : layers) {
    const int number = num_layers();
    const auto num_experts = static_cast<int>(layer.pages.size());
    num_pages_ += num_experts;
    std::vector<Page>& pages = pages_.emplace_back();
    for (int expert = 0; expert < num_experts; ++expert) {
      Page& page = pages.emplace_back();
      page.stored = std::move(layer.pages[static_cast<size_t>(expert)]);
      page.layer = number;
      page.even_share = layer.even_share;
      // Evenly among them, so that each part has as many.
      const int staying = std::min(layer.num_staying, num_experts);
      page.stays = (expert + 1) * staying / num_experts > expert * staying / num_experts;
    }
  }
}

void PageBuffers::BeginStep() {
  const std::lock_guard lock(mutex_);
  ++step_;
  ++num_steps_;
}

Status PageBuffers::Use(const std::vector<Page*>& pages, Place place) {
  {
    const std::lock_guard lock(mutex_);
    for (Page* page : pages) CountUse(*page);
  }
  if (Status fetched = Fetch(pages, place); !fetched) return fetched;
  const std::lock_guard lock(mutex_);
  for (Page* page : pages) page->is_fresh = false;
  return {};
}

Status PageBuffers::Fetch(const std::vector<Page*>& pages, Place place) {
  std::unique_lock lock(mutex_);
  for (Page* page : pages) ++page->holds;
  Status status;
  for (;;) {
    std::vector<Page*> mine;
    status = TakeBuffers(pages, place, &mine);
    if (status && !mine.empty()) {
      lock.unlock();
      status = ReadInto(mine);
      lock.lock();
    }
    for (Page* page : mine) {
      if (page->state == State::kReading) SetThere(*page, false);
    }
    if (!mine.empty()) changed_.notify_all();
    if (!status) break;
    // Of others that are read by another thread, some may have failed: then it is our turn.
    changed_.wait(lock, [&] {
      return std::ranges::none_of(pages, [](Page* p) { return p->state == State::kReading; });
    });
    if (std::ranges::all_of(pages, [](Page* p) { return p->state == State::kThere; })) return {};
  }
  for (Page* page : pages) --page->holds;
  return status;
}

void PageBuffers::Release(const std::vector<Page*>& pages) {
  const std::lock_guard lock(mutex_);
  for (Page* page : pages) --page->holds;
}

void PageBuffers::ReadSome(const std::vector<Page*>& pages, Place place,
                           const std::function<bool()>& goes_on) {
  std::vector<Page*> held;
  std::vector<Page*> mine;
  size_t next = 0;
  // With mutex_. Whether there is one more, which is the last of `mine` then.
  const auto take_next = [&] {
    while (next < pages.size() && goes_on()) {
      Page& page = *pages[next++];
      ++page.holds;
      held.push_back(&page);
      if (page.state != State::kAbsent) continue;
      if (TakeBuffers({&page}, place, &mine)) return true;
      next = pages.size();
    }
    return false;
  };
  std::unique_lock lock(mutex_);
  if (take_next()) {
    lock.unlock();
    const Status read = ReadInto(mine, [&] {
      const std::lock_guard with_mutex(mutex_);
      return take_next();
    });
    lock.lock();
    // What could not be read is read again by whoever needs it.
    for (Page* page : mine) {
      if (page->state == State::kReading) SetThere(*page, false);
    }
    changed_.notify_all();
  }
  for (Page* page : held) --page->holds;
}

Status PageBuffers::TakeBuffers(const std::vector<Page*>& pages, Place place,
                                std::vector<Page*>* mine) {
  for (Page* page : pages) {
    if (page->state != State::kAbsent) continue;
    const int buffer = FreeBuffer(place);
    if (buffer < 0) {
      return ResourceExhausted(fmt::format(
          "{} pages of experts are wanted at the same time, and there is memory for {}: raise {}",
          pages.size(), in_buffer_.size(), options_.raise));
    }
    page->buffer = buffer;
    page->state = State::kReading;
    in_buffer_[buffer] = page;
    mine->push_back(page);
  }
  return {};
}

int PageBuffers::FreeBuffer(Place place) {
  int best = -1;
  std::pair<double, double> worth_least;
  for (int buffer = 0; buffer < std::ssize(in_buffer_); ++buffer) {
    const Page* page = in_buffer_[buffer];
    if (page == nullptr) return buffer;
    if (page->holds > 0 || page->state != State::kThere) continue;
    const std::pair<double, double> worth = WorthOf(*page, place);
    if (best >= 0 && worth >= worth_least) continue;
    best = buffer;
    worth_least = worth;
  }
  if (best >= 0) SetThere(*in_buffer_[best], false);
  return best;
}

std::pair<double, double> PageBuffers::WorthOf(const Page& page, Place place) const {
  // Layers until its own comes again.
  int distance = (page.layer - place.layer + num_layers()) % num_layers();
  if (place.streams) return {page.stays ? 1 : 0, -distance};
  if (options_.eviction == PageEviction::kLongestUnused) {
    return {static_cast<double>(page.last_use), 0};
  }
  if (distance == 0 && page.last_step == step_) distance = num_layers();
  const double wanted =
      std::min(1.0, (page.uses + kEvenSteps * page.even_share) / (num_steps_ + kEvenSteps));
  return {-(distance + num_layers() * (1 / wanted - 1)), 0};
}

void PageBuffers::SetThere(Page& page, bool is_there) {
  page.state = is_there ? State::kThere : State::kAbsent;
  for (const PagePart& part : page.stored.parts) {
    part.matrix->data = is_there ? BufferOf(page) + part.begin : nullptr;
  }
  if (is_there) return;
  in_buffer_[page.buffer] = nullptr;
  page.buffer = -1;
}

void PageBuffers::CountUse(Page& page) {
  ++page.uses;
  page.last_use = ++num_counted_;
  page.last_step = step_;
  ++reads_.num_used;
  if (page.state == State::kThere && !page.is_fresh) ++reads_.num_found;
  if (num_counted_ % (kUsesPerPage * num_pages_) != 0) return;
  num_steps_ /= 2;
  for (std::vector<Page>& layer : pages_) {
    for (Page& one : layer) one.uses /= 2;
  }
}

Status PageBuffers::ReadInto(const std::vector<Page*>& pages,
                             const std::function<bool()>& takes_next) {
  const std::lock_guard one_at_a_time(source_mutex_);
  const auto start = std::chrono::steady_clock::now();
  const auto read_of = [&](const Page& page) -> PageRead {
    return {.page = &page.stored, .target = BufferOf(page)};
  };
  std::vector<PageRead> reads;
  for (const Page* page : pages) reads.push_back(read_of(*page));
  uint64_t read_bytes = 0;
  const auto done = [&](size_t i) {
    read_bytes += pages[i]->stored.size_bytes;
    const std::lock_guard lock(mutex_);
    SetThere(*pages[i], true);
    pages[i]->is_fresh = true;
    ++reads_.num_read;
    changed_.notify_all();  // somebody may wait for this page alone, while others still come
  };
  PageSource::Next next;
  if (takes_next) {
    next = [&]() -> std::optional<PageRead> {
      if (!takes_next()) return std::nullopt;
      return read_of(*pages.back());
    };
  }
  const Status status = source_->Read(reads, done, next);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const std::lock_guard lock(mutex_);
  reads_.read_bytes += read_bytes;
  reads_.read_seconds += elapsed.count();
  return status;
}

PageReads PageBuffers::reads() const {
  const std::lock_guard lock(mutex_);
  return reads_;
}

}  // namespace convene::weights
