#include "core/schedule/schedule_slots.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/schedule/check_schedule.hpp"

namespace troupe::core {
namespace {

TEST(ScheduleSlots, AreAsManyAsKeptActivationsAndNeverShared) {
  for (const ScheduleOptions& options :
       {ScheduleOptions{ScheduleKind::gpipe, 4, 1, 6}, ScheduleOptions{ScheduleKind::one_f_one_b, 4, 1, 9},
        ScheduleOptions{ScheduleKind::interleaved, 4, 3, 8},
        ScheduleOptions{ScheduleKind::interleaved, 3, 2, 9},
        ScheduleOptions{ScheduleKind::zero_bubble, 4, 1, 9}}) {
    const auto schedule = plan_schedule(options).value();
    const auto peaks = check_schedule(schedule).value().peak_activations;
    for (std::size_t stage = 0; stage < schedule.passes.size(); ++stage) {
      const auto& passes = schedule.passes[stage];

      const auto slots = plan_slots(passes);

      ASSERT_EQ(slots.size(), passes.size());
      EXPECT_EQ(*std::max_element(slots.begin(), slots.end()) + 1, peaks[stage]);
      std::map<int, std::pair<int, int>> users;
      for (std::size_t i = 0; i < passes.size(); ++i) {
        const std::pair user{passes[i].chunk, passes[i].microbatch};
        if (passes[i].kind == PassKind::forward) {
          EXPECT_TRUE(users.emplace(slots[i], user).second) << "the slot is free";
        } else {
          EXPECT_EQ(users.at(slots[i]), user) << "as its forward";
        }
        if (passes[i].kind == PassKind::backward || passes[i].kind == PassKind::backward_weight)
          users.erase(slots[i]);
      }
    }
  }
}

TEST(ScheduleSlots, TheLowestThatIsFreeIsTaken) {
  const auto schedule = plan_schedule({ScheduleKind::one_f_one_b, 2, 1, 3}).value();

  EXPECT_EQ(plan_slots(schedule.passes[0]), (std::vector<int>{0, 1, 0, 0, 1, 0}));  // F0 F1 B0 F2 B1 B2
  EXPECT_EQ(plan_slots(schedule.passes[1]), (std::vector<int>{0, 0, 0, 0, 0, 0}));
  // F0 B0 F1 B1 F2 B2: the rows of the next forward come while this one runs.
  EXPECT_EQ(plan_input_slots(schedule.passes[1]), (std::vector<int>{0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(plan_input_slots(schedule.passes[0]), (std::vector<int>{0, 1, 0, 2, 1, 2}));
}

}  // namespace
}  // namespace troupe::core
