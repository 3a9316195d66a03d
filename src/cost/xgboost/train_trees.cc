#include "cost/xgboost/train_trees.h"

#include <fmt/format.h>
#include <xgboost/c_api.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace convene::cost {
namespace {

Status Checked(int status) {
  if (status == 0) return {};
  return Internal(fmt::format("XGBoost failed: {}", XGBGetLastError()));
}

// The samples as the library holds them.
class DataMatrix {
 public:
  DataMatrix() = default;
  DataMatrix(const DataMatrix&) = delete;
  DataMatrix& operator=(const DataMatrix&) = delete;
  ~DataMatrix() {
    if (handle_ != nullptr) XGDMatrixFree(handle_);
  }

  Status Create(std::span<const int32_t> terms, int num_terms, std::span<const double> targets) {
    const std::vector<float> values(terms.begin(), terms.end());
    const std::vector<float> labels(targets.begin(), targets.end());
    if (const Status made = Checked(
            XGDMatrixCreateFromMat(values.data(), targets.size(), static_cast<bst_ulong>(num_terms),
                                   std::numeric_limits<float>::quiet_NaN(), &handle_));
        !made) {
      return made;
    }
    return Checked(XGDMatrixSetFloatInfo(handle_, "label", labels.data(), labels.size()));
  }

  DMatrixHandle handle() const { return handle_; }

 private:
  DMatrixHandle handle_ = nullptr;
};

class Booster {
 public:
  Booster() = default;
  Booster(const Booster&) = delete;
  Booster& operator=(const Booster&) = delete;
  ~Booster() {
    if (handle_ != nullptr) XGBoosterFree(handle_);
  }

  Status Create(const DataMatrix& matrix, const TreeOptions& options) {
    const DMatrixHandle matrices[] = {matrix.handle()};
    if (const Status made = Checked(XGBoosterCreate(matrices, 1, &handle_)); !made) return made;
    const std::pair<const char*, std::string> parameters[] = {
        {"objective", "reg:squarederror"},
        {"tree_method", "hist"},
        {"base_score", "0"},
        {"seed", "1"},
        {"nthread", "1"},
        {"verbosity", "0"},
        {"num_parallel_tree", std::to_string(options.boosting ? 1 : options.num_trees)},
        {"max_depth", std::to_string(options.max_depth)},
        {"eta", fmt::format("{}", options.boosting ? options.learning_rate : 1.0)},
        {"lambda", options.boosting ? "1" : "0.1"},
        {"subsample", fmt::format("{}", options.sample_share)},
        {"colsample_bynode", fmt::format("{}", options.term_share)},
    };
    for (const auto& [name, value] : parameters) {
      if (const Status set = Checked(XGBoosterSetParam(handle_, name, value.c_str())); !set) {
        return set;
      }
    }
    return {};
  }

  Status Train(const DataMatrix& matrix, int num_rounds) {
    for (int round = 0; round < num_rounds; ++round) {
      if (const Status done = Checked(XGBoosterUpdateOneIter(handle_, round, matrix.handle()));
          !done) {
        return done;
      }
    }
    return {};
  }

  Result<nlohmann::json> Saved() const {
    bst_ulong size = 0;
    const char* text = nullptr;
    if (const Status saved =
            Checked(XGBoosterSaveModelToBuffer(handle_, R"({"format": "json"})", &size, &text));
        !saved) {
      return saved.error();
    }
    return ParseJson(std::string_view(text, size));
  }

 private:
  BoosterHandle handle_ = nullptr;
};

// One tree of the library's JSON, whose nodes name their parts by index, in preorder.
class PreorderTree {
 public:
  PreorderTree(const nlohmann::json& tree, double leaf_unit)
      : left_(tree.at("left_children").get<std::vector<int>>()),
        right_(tree.at("right_children").get<std::vector<int>>()),
        terms_(tree.at("split_indices").get<std::vector<int>>()),
        values_(tree.at("split_conditions").get<std::vector<double>>()),
        leaf_unit_(leaf_unit) {}

  void AppendTo(std::vector<RegressionTrees::Node>& nodes) const {
    std::vector<int> open = {0};
    while (!open.empty()) {
      const int at = open.back();
      open.pop_back();
      if (left_[at] < 0) {
        const double leaf = std::round(values_[at] / leaf_unit_);
        nodes.push_back({RegressionTrees::kLeaf, static_cast<int32_t>(leaf)});
        continue;
      }
      // Of whole numbers, those below a split are those below the next whole number.
      const double split = std::clamp(std::ceil(values_[at]), -1e9, 1e9);
      nodes.push_back({terms_[at], static_cast<int32_t>(split)});
      open.push_back(right_[at]);
      open.push_back(left_[at]);
    }
  }

 private:
  std::vector<int> left_;
  std::vector<int> right_;
  std::vector<int> terms_;
  std::vector<double> values_;
  double leaf_unit_;
};

Result<std::vector<RegressionTrees::Node>> NodesOf(const nlohmann::json& model, double leaf_unit) {
  std::vector<RegressionTrees::Node> nodes;
  try {
    const nlohmann::json& trees =
        model.at("learner").at("gradient_booster").at("model").at("trees");
    for (const nlohmann::json& tree : trees) PreorderTree(tree, leaf_unit).AppendTo(nodes);
  } catch (const nlohmann::json::exception& exception) {
    return Internal(
        fmt::format("XGBoost saved trees in a form that is not known: {}", exception.what()));
  }
  return nodes;
}

}  // namespace

Result<RegressionTrees> TrainTrees(std::span<const int32_t> terms, int num_terms,
                                   std::span<const double> targets, double leaf_unit,
                                   const TreeOptions& options) {
  CHECK(!targets.empty() && terms.size() == targets.size() * static_cast<size_t>(num_terms));
  DataMatrix matrix;
  Booster booster;
  if (const Status made = matrix.Create(terms, num_terms, targets); !made) return made.error();
  if (const Status made = booster.Create(matrix, options); !made) return made.error();
  if (const Status done = booster.Train(matrix, options.boosting ? options.num_trees : 1); !done) {
    return done.error();
  }
  const Result<nlohmann::json> saved = booster.Saved();
  if (!saved) return saved.error();
  Result<std::vector<RegressionTrees::Node>> nodes = NodesOf(*saved, leaf_unit);
  if (!nodes) return nodes.error();
  return RegressionTrees::FromNodes(*std::move(nodes), num_terms);
}

}  // namespace convene::cost
