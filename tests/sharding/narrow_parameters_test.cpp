#include <gtest/gtest.h>

#include "actors/world/simulation/storage.hpp"
#include "tests/sharding/scripted_units.hpp"

namespace troupe::actors {
namespace {

using tests::ShardingMesh;

class NarrowParameters : public testing::TestWithParam<ShardingMesh> {
 protected:
  /// All but one narrow, so that units have tensors of two classes.
  static Script script(core::DType dtype) {
    auto script = tests::unit_script(GetParam());
    for (auto& parameter : script.parameters) parameter.dtype = dtype;
    script.parameters[3].dtype = core::DType::f32;
    return script;
  }
};

// Covers shard-9, unit-30.
TEST_P(NarrowParameters, AreTheirMainValuesRoundedOnceWhateverIsSharded) {
  for (const auto dtype : {core::DType::bf16, core::DType::f16}) {
    const auto job = script(dtype);

    const auto outcome = tests::run(GetParam(), job);

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) EXPECT_EQ(rank.after.back(), expected_values(job));
  }
}

// Covers unit-15, state-13.
TEST_P(NarrowParameters, GoOnFromAnotherStrategysMainValues) {
  const ShardingMesh other{core::Strategy::hfsdp, 2, 2};
  for (const auto& [from, to] : {std::pair(GetParam(), other), {other, GetParam()}}) {
    SimulatedStorage disk({});
    auto saving = script(core::DType::bf16);
    saving.session.training = tests::unit_script(from).session.training;
    saving.steps = saving.save_after = 2;
    ASSERT_EQ(problems_of(tests::run(from, saving, &disk).report), "");
    auto going_on = script(core::DType::bf16);
    going_on.session.training = tests::unit_script(to).session.training;
    going_on.restore = true;

    const auto outcome = tests::run(to, going_on, &disk);

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) EXPECT_EQ(rank.after.back(), expected_values(going_on));
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, NarrowParameters, testing::ValuesIn(tests::sharding_meshes()),
                         [](const auto& each) { return each.param.name(); });

}  // namespace
}  // namespace troupe::actors
