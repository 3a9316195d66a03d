// Where another plan is better than the chosen one: one parameter of the workload or one figure of
// the machine is moved, and both plans are priced again. It chooses nothing.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/plan_search.h"

namespace convene::planner {

// A workload with another value of one parameter, or a machine under other conditions.
struct Point {
  Workload workload;
  Conditions conditions = {};
};

// What becomes of the other plan at a point.
enum class Outcome {
  kLoses,  // the chosen one is as good or better, or the other one cannot run
  kWins,
  kFitsAlone,  // the chosen one has not the memory
  kRunsAlone,  // the chosen one fits, and has no price there
  kNeither,    // none of them can run: nothing is said of it, nor of what lies beyond
};

// Neighbouring values with one outcome. It is none of kLoses and kNeither.
struct Span {
  Outcome outcome = Outcome::kWins;
  double nearest = 0;  // to the present value
  double farthest = 0;
  bool is_open = false;   // up to the last value that there is
  bool has_gaps = false;  // with another outcome somewhere between, of whole numbers

  bool operator==(const Span&) const = default;
};

// Something that can be moved: values in order, of which one is that of the question.
struct Parameter {
  std::vector<double> values = {};
  size_t present = 0;
  bool is_whole = false;  // values between two are whole numbers
  std::function<Point(double)> at = {};
  std::function<std::string(const Span&, bool above)> words = {};  // "with batches of 4 to 7"
  std::string range = {};                                          // "batches of 1 to 1,024"
};

// Powers of two between, with the present value among them.
void AddPowers(const PlanQuestion& question, double least, double most, double present,
               Parameter& parameter);

// All spans on one side of the present value (direction 1 or -1), the nearest first, up to where
// none of the two can run; `most`: no further ones than so many. What changes between two values is
// found by halving, to the whole number or to a fiftieth; gaps, by asking beside each value.
std::vector<Span> SpansOf(const Parameter& parameter, int direction,
                          const std::function<Outcome(double)>& outcome_at, size_t most = SIZE_MAX);

// A plan at a point.
struct PlanThere {
  bool fits = true;
  std::optional<PlanFigures> figures = {};  // none: it cannot run
};

// What the search would say of the plan there: of a plan whose steps have parts, steps of decode
// may stay in one piece (pass whole_decode), whichever is faster there, and the sequences that then
// run together must have the memory. Precondition: the candidate is ranked.
PlanThere PriceAt(PlanSearch& search, const Candidate& candidate, const Point& point);

struct PointScore {
  bool fits = true;
  std::optional<double> seconds = {};  // none: it cannot run
};

// A plan at values of parameters, each of which is priced once: the chosen plan is compared with
// all others at the same ones.
class PlanAtPoints {
 public:
  // Keeps the references.
  PlanAtPoints(PlanSearch& search, const Candidate& plan) : search_(search), plan_(plan) {}

  const PointScore& At(const Parameter& parameter, double value);

 private:
  PlanSearch& search_;
  const Candidate& plan_;
  std::map<std::pair<std::string, double>, PointScore> known_;  // by range of the parameter
};

// The second must be no better than the first at the question's own values.
Outcome OutcomeAt(PlanAtPoints& chosen, PlanAtPoints& other, const Parameter& parameter,
                  double value);

Parameter Batches(const PlanQuestion& question);
// Batches, or of a stream its rate, prompts, answers, links between several ranks, and how many
// tokens go to how few experts. Keeps the reference.
std::vector<Parameter> ParametersOf(const PlanQuestion& question);

// "wins with batches of 4 to 7; has memory where the chosen plan has not: with batches of 64 and
// more", or that it wins at no value tried, and in what range.
// Of a plan that is `faster` at the question's own values: that it is, and where the chosen plan
// wins.
std::string WhereItWins(PlanAtPoints& chosen, PlanAtPoints& other, bool is_faster,
                        const std::vector<Parameter>& parameters);

}  // namespace convene::planner
