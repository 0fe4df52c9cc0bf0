#include "core/program/unit.hpp"

#include <gtest/gtest.h>

namespace troupe::core {
namespace {

const std::vector<TensorClass> kClasses{{.layout = LayoutPolicy::row_aligned},
                                        {.storage = DType::bf16, .layout = LayoutPolicy::padded}};
const std::vector<int> kShards{2, 2};

UnitCollection collect(const std::vector<UnitParameter>& parameters, std::size_t units) {
  return collect_units(parameters, units, kClasses, kShards).value();
}

TEST(Units, ParametersOfOneClassMakeOneFlatTensor) {
  const auto found = collect({{.name = "w", .shape = {5, 4}, .unit = 0},
                              {.name = "v", .shape = {2, 6}, .unit = 0},
                              {.name = "b", .shape = {3}, .unit = 0},
                              {.name = "n", .shape = {10}, .tensor_class = 1, .unit = 0}},
                             1);

  ASSERT_EQ(found.units.size(), 1U);
  EXPECT_EQ(found.units[0].residency, Residency::on_demand);
  // The offsets and the size of (5,4),(2,6),(3) for 2 shards are those of the reference's table.
  EXPECT_EQ(found.units[0].tensors, (std::vector<FlatTensor>{{0, 48, true}, {1, 128, true}}));
  EXPECT_EQ(found.homes[0], (ParameterHome{0, 0, {0, 20}}));
  EXPECT_EQ(found.homes[1], (ParameterHome{0, 0, {24, 36}}));
  EXPECT_EQ(found.homes[2], (ParameterHome{0, 0, {20, 23}}));
  EXPECT_EQ(found.homes[3], (ParameterHome{0, 1, {0, 10}}));
}

TEST(Units, FrozenParametersLieApart) {
  const auto found = collect({{.name = "w", .shape = {4, 8}, .unit = 0},
                              {.name = "f", .shape = {4, 8}, .unit = 0, .trainable = false}},
                             1);

  EXPECT_EQ(found.units[0].tensors, (std::vector<FlatTensor>{{0, 32, true}, {0, 32, false}}));
}

TEST(Units, ParametersTiedWithinAUnitAreOneEntry) {
  const auto found = collect(
      {{.name = "a", .shape = {4, 8}, .unit = 0}, {.name = "b", .shape = {4, 8}, .unit = 0, .tied_to = 0}},
      1);

  EXPECT_EQ(found.units[0].tensors, (std::vector<FlatTensor>{{0, 32, true}}));
  EXPECT_EQ(found.homes[0], found.homes[1]);
}

TEST(Units, ParametersTiedAcrossUnitsBecomeResident) {
  const auto found = collect({{.name = "embedding", .shape = {4, 8}, .unit = 0},
                              {.name = "layer", .shape = {2, 8}, .unit = 1},
                              {.name = "head", .shape = {4, 8}, .unit = 1, .tied_to = 0}},
                             2);

  ASSERT_EQ(found.units.size(), 3U);
  EXPECT_EQ(found.units[0].residency, Residency::resident);
  EXPECT_EQ(found.units[0].tensors, (std::vector<FlatTensor>{{0, 32, true}}));
  EXPECT_TRUE(found.units[1].tensors.empty()) << "a unit without parameters of its own";
  EXPECT_EQ(found.units[2].tensors, (std::vector<FlatTensor>{{0, 16, true}}));
  EXPECT_EQ(found.homes[0], (ParameterHome{0, 0, {0, 32}}));
  EXPECT_EQ(found.homes[2], found.homes[0]);
}

TEST(Units, ParametersOutsideOfUnitsAreResident) {
  const auto found = collect({{.name = "scale", .shape = {4}}, {.name = "w", .shape = {4, 8}, .unit = 0}}, 1);

  ASSERT_EQ(found.units.size(), 2U);
  EXPECT_EQ(found.units[0].residency, Residency::resident);
  EXPECT_EQ(found.homes[0].unit, 0U);
  EXPECT_EQ(found.homes[1].unit, 1U);
}

TEST(Units, TiesThatCannotBeAreNamed) {
  const auto error = [](std::vector<UnitParameter> parameters) {
    return collect_units(parameters, 1, kClasses, kShards).error().message;
  };

  EXPECT_EQ(error({{.name = "a", .shape = {4}, .tied_to = 1}, {.name = "b", .shape = {4}}}),
            "parameter a is tied to parameter 1, which is not registered before it; tie the later one to the "
            "earlier one");
  EXPECT_EQ(error({{.name = "a", .shape = {4}}, {.name = "b", .shape = {5}, .tied_to = 0}}),
            "parameters b and a are tied, but differ in shape, class or whether they are trained; make them "
            "agree or do not tie them");
  EXPECT_EQ(error({{.name = "a", .shape = {4}, .unit = 3}}),
            "parameter a is in unit 3, but there are 1 units");
}

}  // namespace
}  // namespace troupe::core
