// Frequencies against those of transformers, also beyond the trained length; tests/golden/rope.json
// is made by tools/make_rope_fixtures.py.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "model/rope_config.h"

namespace convene::model {
namespace {

TEST(RopeGolden, FrequenciesAreThoseOfTransformers) {
  std::ifstream file(CONVENE_SOURCE_DIR "/tests/golden/rope.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 50u);
  struct Count {
    int all = 0;
    int different = 0;
  };
  std::map<std::string, Count> counts;
  for (const nlohmann::json& item : cases) {
    const nlohmann::json config = {{"rope_parameters", item["rope"]}};
    std::optional<Error> error;
    ConfigFields fields(config, error);
    const RopeSpec rope = ReadRope(
        fields,
        {.theta = 1e4, .head_dim = item["head_dim"], .max_positions = item["max_positions"]});
    ASSERT_FALSE(error) << error->message;
    EXPECT_FLOAT_EQ(static_cast<float>(rope.attention_factor), item["attention_factor"]);
    const std::vector<float> frequencies = InverseFrequencies(rope, item["length"]);
    ASSERT_EQ(frequencies.size(), item["frequencies"].size());
    Count& count = counts[item["rope"]["rope_type"]];
    for (size_t j = 0; j < frequencies.size(); ++j) {
      const float expected = item["frequencies"][j];
      const float unit = std::nextafter(expected, 2.0f) - expected;
      EXPECT_NEAR(frequencies[j], expected, 4 * unit) << item["rope"] << " frequency " << j;
      ++count.all;
      if (frequencies[j] != expected) ++count.different;
    }
  }
  // Theirs and our powers may round differently now and then, not as a rule.
  for (const auto& [kind, count] : counts) EXPECT_LT(count.different, 0.1 * count.all) << kind;
}

}  // namespace
}  // namespace convene::model
