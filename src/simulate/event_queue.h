// The next event of each of a few activities among many, the earliest first. An activity has one
// event at most; it can be moved.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace convene::simulate {

class EventQueue {
 public:
  explicit EventQueue(int num_activities) : place_(num_activities, -1) {}

  bool empty() const { return heap_.empty(); }

  // Precondition: not empty.
  double first_time() const { return heap_.front().time; }

  // Sets or moves the activity's event.
  void Set(int activity, double time) {
    int32_t& place = place_[activity];
    if (place < 0) {
      place = static_cast<int32_t>(heap_.size());
      heap_.push_back({time, activity});
    } else {
      heap_[place].time = time;
    }
    Sink(Rise(place));
  }

  // The earliest event, of several at one time that of the first activity. Precondition: not empty.
  std::pair<double, int> Pop() {
    const Event first = heap_.front();
    const Event last = heap_.back();
    heap_.pop_back();
    place_[first.activity] = -1;
    if (!heap_.empty()) {
      Put(0, last);
      Sink(0);
    }
    return {first.time, first.activity};
  }

 private:
  struct Event {
    double time;
    int32_t activity;

    bool operator<(const Event& other) const {
      return time != other.time ? time < other.time : activity < other.activity;
    }
  };

  void Put(int32_t place, const Event& event) {
    heap_[place] = event;
    place_[event.activity] = place;
  }

  int32_t Rise(int32_t place) {
    const Event event = heap_[place];
    for (; place > 0 && event < heap_[(place - 1) / 2]; place = (place - 1) / 2) {
      Put(place, heap_[(place - 1) / 2]);
    }
    Put(place, event);
    return place;
  }

  void Sink(int32_t place) {
    const Event event = heap_[place];
    const auto size = static_cast<int32_t>(heap_.size());
    for (;;) {
      int32_t child = 2 * place + 1;
      if (child >= size) break;
      if (child + 1 < size && heap_[child + 1] < heap_[child]) ++child;
      if (!(heap_[child] < event)) break;
      Put(place, heap_[child]);
      place = child;
    }
    Put(place, event);
  }

  std::vector<Event> heap_;
  std::vector<int32_t> place_;  // by activity; -1: has no event
};

}  // namespace convene::simulate
