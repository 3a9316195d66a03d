#include "base/enumerators_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene {

enum class NarrowEnum : unsigned char { kInt8, kInt4 };

namespace {

enum class Lone { kOnly };
enum class Season { kSpring, kSummer, kAutumn, kWinter };

TEST(Enumerators, AreAllThereInTheirOrder) {
  EXPECT_THAT(kEvery<Season>, testing::ElementsAre(Season::kSpring, Season::kSummer,
                                                   Season::kAutumn, Season::kWinter));
  EXPECT_THAT(kEvery<Lone>, testing::ElementsAre(Lone::kOnly));
  EXPECT_THAT(kEvery<NarrowEnum>, testing::ElementsAre(NarrowEnum::kInt8, NarrowEnum::kInt4));
}

}  // namespace
}  // namespace convene
