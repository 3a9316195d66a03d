// What a traced step amounts to: time by kind of task, idle and overlap by rank, how evenly experts
// were loaded, bytes sent.
#pragma once

#include <string>
#include <vector>

#include "drawing/trace.h"

namespace convene::drawing {

// What all tasks of one kind amount to. Seconds are the mean over the ranks that have such tasks.
// The time in which a collective waits for its last rank is in waiting_seconds, not in seconds.
struct SectionFigures {
  schedule::TaskKind kind = schedule::TaskKind::kEmbed;
  double seconds = 0;
  double seconds_sd = 0;  // over ranks
  double longest_seconds = 0;
  double waiting_seconds = 0;
  double predicted_seconds = 0;
  double sent_bytes = 0;       // by all ranks, as counted where they were sent
  double scheduled_bytes = 0;  // as the schedule's work says for the sizes of the step
};

struct RankFigures {
  std::string role = {};     // "attention" or "experts", where it has one of them alone
  double idle_share = 0;     // computes nothing
  double waiting_share = 0;  // of that, waits for another rank to come
  double overlap_share = 0;
  double predicted_idle_share = 0;
  double predicted_overlap_share = 0;
  double sent_bytes = 0;  // as SectionFigures, as is the next one
  double scheduled_bytes = 0;
};

// The most that one has, over the mean. 1: all alike; 0: not known.
struct Balance {
  double mean = 0;   // over layers, by their load
  double worst = 0;  // layer
};

struct StepFigures {
  double seconds = 0;  // 0: not measured
  double predicted_seconds = 0;
  std::vector<SectionFigures> sections;  // in the order of TaskKind
  std::vector<RankFigures> ranks = {};
  // Work of experts by rank, in each layer among the ranks that have experts of it; 0 where none
  // is on several ranks.
  Balance rank_balance = {};
  Balance expert_balance = {};  // tokens by expert
  bool has_sent_bytes = false;  // somebody counted
  double sent_bytes = 0;        // as SectionFigures, as is the next one
  double scheduled_bytes = 0;
};

StepFigures FiguresOf(const TracedStep& step);

}  // namespace convene::drawing
