#include <algorithm>
#include <bit>

#include "tests/simulation/scripted_job.hpp"
#include "tests/simulation/trainer_job.hpp"

namespace troupe::actors {
namespace {

// Covers reduce-14, uneven-8, uneven-10, uneven-11, save-23, stored-7, model-9.
TEST(StackedParameters, AreStoredInPartsAndComeBackTheSame) {
  Task task;
  task.stacking = core::swiglu_stacking(true);
  for (int from : {1, 3, 8}) {
    SimulatedStorage disk({});
    save_steps(disk, from, task, 3);
    const auto manifest = check_quickly(disk, "step_00000003");
    ASSERT_TRUE(manifest) << manifest.error().message;
    for (const char* key : {"gate_w", "gate_v", "optimizer.state.exp_avg.gate_w"}) {
      ASSERT_NE(manifest->find(key), nullptr) << key;
      EXPECT_EQ(manifest->find(key)->shape, (core::Shape{4, 6}));
    }
    EXPECT_EQ(manifest->find("gate"), nullptr);
    auto straight = task;
    straight.steps = 5;
    SimulatedStorage other({});
    const auto expected = run(machines(other, 2), straight).ranks[0].gate;
    for (int to : {1, 2, 4}) {
      auto going_on = straight;
      going_on.restore = true;
      SimulatedStorage same({});
      save_steps(same, from, task, 3);
      const auto outcome = run(machines(same, to), going_on);
      ASSERT_EQ(problems_of(outcome.report), "") << from << " to " << to;
      EXPECT_EQ(outcome.ranks[0].restored->step, core::Step{3});
      EXPECT_EQ(outcome.ranks[0].gate, expected) << from << " to " << to;
    }
  }
}

TEST(StackedParameters, ARuleThatDoesNotFitIsRefused) {
  Task task;
  task.gate_rows = 7;
  task.stacking = core::swiglu_stacking(true);
  SimulatedStorage disk({});
  const auto error = common_error(run(machines(disk, 2), task).report);
  EXPECT_NE(error.find("has 7 rows here, expected an even number"), std::string::npos) << error;
}

TEST(NarrowParameters, GoOnInFp32WithMoreBitsThanBf16) {
  SimulatedStorage disk({});
  Task narrow;
  narrow.dtype = core::DType::bf16;
  save_steps(disk, 2, narrow, 3);
  Task wide;
  wide.restore = true;

  const auto outcome = run(machines(disk, 3), wide);

  ASSERT_EQ(problems_of(outcome.report), "");
  const auto& values = outcome.ranks[2].restored_gate;
  const bool any_exact = std::any_of(values.begin(), values.end(), [](float value) {
    return (std::bit_cast<std::uint32_t>(value) & 0xffffU) != 0;
  });
  EXPECT_TRUE(any_exact) << "fp32 values come from the fp32 copies, which bf16 cannot hold";
}

TEST(NarrowParameters, AreReadFromWideOnes) {
  SimulatedStorage disk({});
  save_steps(disk, 1, {}, 2);
  Task narrow;
  narrow.dtype = core::DType::bf16;
  narrow.restore = true;

  const auto outcome = run(machines(disk, 2), narrow);

  ASSERT_EQ(problems_of(outcome.report), "");
  Task wide;
  wide.restore = true;
  auto expected = run(machines(disk, 2), wide).ranks[0].restored_gate;
  for (auto& value : expected) value = rounded(core::DType::bf16, value);
  for (const auto& rank : outcome.ranks) EXPECT_EQ(rank.restored_gate, expected);
}

TEST(NarrowParameters, MissingInACheckpointGoOnFromFirstValues) {
  for (auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
    SimulatedStorage disk({});
    Task saving;
    saving.dtype = core::DType::bf16;
    saving.plain = false;
    save_steps(disk, 2, saving, 2);
    Task going_on;
    going_on.dtype = core::DType::bf16;
    going_on.strategy = strategy;
    going_on.restore = true;
    going_on.strictness = core::Strictness::ignore_all;
    going_on.steps = 3;

    const auto outcome = run(machines(disk, 3), going_on);

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) {
      ASSERT_EQ(rank.restored->step, core::Step{2});
      for (std::size_t i = 0; i < rank.plain.size(); ++i) {
        // A step of AdamW moves a value by the learning rate, 0.01, at most, and by its decay; bf16 rounds.
        // Without its fp32 copy the value would begin at 0.
        EXPECT_NEAR(rank.plain[i], rank.first_plain[i], 0.0125) << i;
        EXPECT_EQ(rank.plain[i], outcome.ranks[0].plain[i]);
      }
    }
  }
}

// Covers stored-10, model-5.
TEST(ShapesOfParameters, MayDifferWhereThatIsAllowed) {
  SimulatedStorage disk({});
  save_steps(disk, 2, {}, 2);
  Task wider;
  wider.gate_rows = 10;
  wider.restore = true;
  const auto refused = common_error(run(machines(disk, 3), wider).report);
  EXPECT_NE(refused.find("Global shape mismatch"), std::string::npos) << refused;

  wider.allow_shape_mismatch = true;
  const auto outcome = run(machines(disk, 3), wider);

  ASSERT_EQ(problems_of(outcome.report), "");
  Task same;
  same.restore = true;
  const auto stored = run(machines(disk, 3), same).ranks[1].restored_gate;
  auto expected = stored;
  expected.resize(60, 0.0F);
  EXPECT_EQ(outcome.ranks[1].restored_gate, expected);
}

}  // namespace
}  // namespace troupe::actors
