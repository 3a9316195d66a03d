// Operators of tables to the models of a preset's machine: which tables count for it, under which
// names, and how well the fitted models meet the rows that they have not seen.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cost/machine_profile.h"
#include "cost/perf_tables.h"

namespace convene::cost {

// An operator of a table with the name and the source that its model will have.
struct ChosenOperator {
  std::string name;
  std::string source;
  bool is_relative = false;  // measured on another device or over another link
  MeasuredOperator measured;
};

struct ChosenOperators {
  std::vector<ChosenOperator> operators;
  std::vector<std::string> passed_over;  // what was not taken, and why
};

// A table of a machine, and the name under which a person knows it.
struct NamedTable {
  std::string name;
  std::vector<MeasuredOperator> operators;
};

// Where the machine's link for operators that communicate is: the first level that joins all ranks
// of a host. -1: there is none.
int LevelOfHost(const std::vector<LinkLevel>& levels);
// Its bytes per second. 0: there is none.
double LinkOfHost(const MachineProfile& machine);

// Why ranks of this machine have none of the kernels of an operator: those of dispatch, combine and
// all-reduce, among the ranks of a host, need GPUs of Ampere or later and NVLink among all of them.
// Empty: they have.
std::string WhyNoKernels(std::string_view operator_name, const GpuPreset& gpu,
                         const std::vector<LinkLevel>& levels);

// Of each operator the tables of the device itself, or else those of its nearest relative. Where
// several kernels were measured, the first has the operator's plain name, and others have the
// kernel's after it. Those whose kernels the machine cannot run are passed over (WhyNoKernels).
// Precondition: `machine` has a device that is one of GpuPresets().
ChosenOperators ChooseOperators(const MachineProfile& machine, std::vector<NamedTable> tables);

// A model of some of a table's rows, and its errors at the others.
struct ImportedOperator {
  OperatorModel model;
  size_t num_rows = 0;  // of the table; rest: those that were left out of fitting altogether
  size_t num_rest = 0;
  double rest_median = 0;
  double rest_p95 = 0;
};

// Fits a model to at most `most_points` rows, which a digest of their features chooses.
Result<ImportedOperator> ImportOperator(const ChosenOperator& chosen, size_t most_points);

}  // namespace convene::cost
