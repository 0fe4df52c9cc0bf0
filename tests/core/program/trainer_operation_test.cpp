#include "core/program/trainer_operation.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/errors.hpp"
#include "core/program/program_text.hpp"
#include "tests/core/program/some_operations.hpp"
#include "tests/core/program/some_programs.hpp"

namespace troupe::core {
namespace {

using Kind = CollectiveKind;

/// What experts of three layers, units 1 to 3, post in a round: layer by layer, and backwards.
std::vector<TrainerOperation> as_a_lane_posts_them() {
  std::vector<TrainerOperation> operations;
  for (int unit = 1; unit <= 3; ++unit) {
    operations.push_back(counts_of_experts(unit));
    operations.push_back(rows_of_experts(Phase::forward, unit));
  }
  for (int unit = 3; unit >= 1; --unit) operations.push_back(rows_of_experts(Phase::backward, unit));
  return operations;
}

TEST(TrainerOperation, ThatComesInUnitAfterUnitIsKeptOnce) {
  const auto runs = fold(as_a_lane_posts_them());

  EXPECT_EQ(runs,
            (std::vector<OperationRun>{{{counts_of_experts(1), rows_of_experts(Phase::forward, 1)}, 3, 1},
                                       {{rows_of_experts(Phase::backward, 1)}, 3, 1}}));
  EXPECT_EQ(
      lines(runs),
      (std::vector<std::string>{
          "the trainer's own, in each round:", " x3 unit+1:",
          "  all_gather on ep in 'forward of unit 1' dtype=i64 counts=even 2x4",
          "  all_to_all on ep in 'forward of unit 1' dtype=u8 counts=bounded at most 2x96",
          " x3 unit+1:", "  all_to_all on ep in 'backward of unit 1' dtype=u8 counts=bounded at most 2x96"}));
}

TEST(TrainerOperation, IsTheSameHoweverOtherUnitsAreListed) {
  auto listed = as_a_lane_posts_them();
  // Units backwards, the two of a unit in their order.
  std::stable_sort(listed.begin(), listed.end(),
                   [](const auto& a, const auto& b) { return a.point.unit > b.point.unit; });

  EXPECT_NE(listed, as_a_lane_posts_them());
  EXPECT_EQ(fold(listed), fold(as_a_lane_posts_them()));
  EXPECT_EQ(unfold(fold(listed)).size(), listed.size());
  EXPECT_EQ(fold(unfold(fold(listed))), fold(listed));
}

TEST(TrainerOperation, OfOnePointKeepsItsListedOrder) {
  auto listed = as_a_lane_posts_them();
  std::swap(listed[0], listed[1]);

  EXPECT_NE(fold(listed), fold(as_a_lane_posts_them()));
  EXPECT_NE(lines(fold(listed)), lines(fold(as_a_lane_posts_them())));
}

TEST(TrainerOperation, IsNothingWhereNoneAreDeclared) {
  EXPECT_TRUE(fold(std::vector<TrainerOperation>{}).empty());
  EXPECT_TRUE(lines(std::vector<OperationRun>{}).empty());
}

std::string refusal_of_operation(const std::vector<TrainerOperation>& operations) {
  const auto checked = check_operations(operations, StepClock(4, 2), 4);
  if (checked) return "";
  EXPECT_EQ(checked.error().code, Errc::invalid_argument);
  return checked.error().message;
}

TEST(TrainerOperation, BelongsToForwardOrBackwardOfAUnit) {
  EXPECT_EQ(refusal_of_operation(as_a_lane_posts_them()), "");
  EXPECT_EQ(
      refusal_of_operation({counts_of_experts(4)}),
      "PR-5: all_gather on ep in 'forward of unit 4' is not in forward or backward of one of 4 units of "
      "its round");
  auto late = counts_of_experts(1);
  late.point = {Phase::finish, 0};
  EXPECT_EQ(
      refusal_of_operation({late}),
      "PR-5: all_gather on ep in 'finish' is not in forward or backward of one of 4 units of its round");
}

TEST(TrainerOperation, WithBoundedCountsComesAfterOneThatTellsThem) {
  const auto rows = rows_of_experts(Phase::forward, 2);
  const std::string untold =
      "PR-5: all_to_all on ep in 'forward of unit 2' has bounded counts, at most 2x96, and nothing in the "
      "round told the members of ep how much it is; exchange counts first, by an all_gather or all_to_all of "
      "integers with even counts";

  EXPECT_EQ(refusal_of_operation({counts_of_experts(1), rows}), "") << "in an earlier unit";
  EXPECT_EQ(refusal_of_operation({counts_of_experts(2), rows}), "");
  EXPECT_EQ(refusal_of_operation({rows, counts_of_experts(2)}), untold) << "behind it";
  EXPECT_EQ(refusal_of_operation({counts_of_experts(3), rows}), untold) << "in a later unit";
  EXPECT_EQ(refusal_of_operation(
                {operation(Kind::all_gather, GroupKind::tp, {Phase::forward, 1}, DType::i64), rows}),
            untold)
      << "on another group";
  EXPECT_EQ(refusal_of_operation(
                {operation(Kind::all_gather, GroupKind::ep, {Phase::forward, 1}, DType::f32), rows}),
            untold)
      << "of values";
  EXPECT_EQ(refusal_of_operation(
                {operation(Kind::all_reduce, GroupKind::ep, {Phase::forward, 1}, DType::i64), rows}),
            untold)
      << "of their sum";
}

TEST(TrainerOperation, IsDeclaredOnGroupsWithEqualRounds) {
  auto inputs = inputs_of(SomeJob{});
  inputs.operations = {operation(Kind::all_reduce, GroupKind::dp, {Phase::forward, 1})};
  const auto planned = plan_program(inputs, {0});

  ASSERT_FALSE(planned);
  EXPECT_EQ(planned.error().code, Errc::invalid_argument);
  EXPECT_EQ(planned.error().message,
            "all_reduce on dp in 'forward of unit 1' is declared, but members of dp may have lanes in other "
            "rounds; operations are declared on tp, cp and ep");
}

TEST(TrainerOperation, ChangesNothingElseInAProgram) {
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3}) {
    auto inputs = inputs_of(SomeJob{.strategy = strategy, .rounds = 3});
    const auto without = plan_program(inputs, {0}).value();
    inputs.operations = as_a_lane_posts_them();
    auto with = plan_program(inputs, {0}).value();

    EXPECT_EQ(with.operations, fold(as_a_lane_posts_them()));
    with.operations.clear();
    EXPECT_EQ(with, without);
  }
}

TEST(TrainerOperation, AbsentFromAProgramLeavesNoLine) {
  auto inputs = inputs_of(SomeJob{});
  const auto without = lines(plan_program(inputs, {0}).value());
  inputs.operations = as_a_lane_posts_them();
  auto with = lines(plan_program(inputs, {0}).value());

  const auto own = lines(fold(as_a_lane_posts_them()));
  ASSERT_EQ(with.size(), without.size() + own.size());
  EXPECT_TRUE(std::equal(own.begin(), own.end(), with.end() - static_cast<std::ptrdiff_t>(own.size())));
  with.resize(without.size());
  EXPECT_EQ(with, without);
}

}  // namespace
}  // namespace troupe::core
