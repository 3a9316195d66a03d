#include "drawing/roofline_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene::drawing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

RooflineChart Chart() {
  return {.title = "experts of <a model>",
          .roofs = {{"memory", 1e11, 1e13, "#111111"}, {"link", 1e10, 0, "#222222"}},
          .marks = {{"P1", 100, 1e12, "#333333"},
                    {"nowhere", 0, 1e12, "#444444"},
                    {"reached", 1000, 1e13, "#555555", true}}};
}

TEST(RooflineChart, DrawsRoofsAndMarksWithinItsFrame) {
  const RooflineChart chart = Chart();
  const std::string svg = RooflineSvg({&chart, 1});
  EXPECT_THAT(svg, AllOf(HasSubstr("<svg "), HasSubstr("experts of &lt;a model>"),
                         HasSubstr("P1: 100 FLOP/B, 1 TFLOP/s"), HasSubstr(">link<"),
                         HasSubstr("10 TFLOP/s"), Not(HasSubstr("nowhere")), Not(HasSubstr("nan")),
                         Not(HasSubstr("inf"))));
  // Axes from 100 to 10,000 FLOP/B and 1 to 10 TFLOP/s: P1 is in the lower left corner.
  EXPECT_THAT(svg, HasSubstr(R"(<circle cx="90.0" cy="504.0")"));
}

TEST(RooflineChart, SeveralAreBelowEachOther) {
  const RooflineChart charts[] = {Chart(), Chart()};
  EXPECT_THAT(RooflineSvg(charts), HasSubstr(R"(height="1120")"));
}

TEST(RooflineChart, AnEmptyOneHasAxes) {
  const RooflineChart chart = {.title = "nothing", .roofs = {}, .marks = {}};
  EXPECT_THAT(RooflineSvg({&chart, 1}), HasSubstr("FLOPs per byte"));
}

}  // namespace
}  // namespace convene::drawing
