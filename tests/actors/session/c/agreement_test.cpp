// What ranks of a C trainer have alike, and what they are told where they do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/actors/session/c/company.hpp"

namespace troupe::actors {
namespace {

using testing::HasSubstr;

/// Two ranks that join with what `configure` says; `play` is told the status of that.
void meet(const Part& configure, const std::function<void(CRank&, troupe_status)>& play) {
  const auto port = tests::unused_port();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      CRank self(rank, 2, port);
      self.add("w", 8);
      configure(self);
      play(self, troupe_session_join(self.options, &self.session, &self.error));
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(RanksInC, CompareTheirTrainersSettings) {
  meet(
      [](CRank& self) {
        self.ok(troupe_options_add_setting(self.options, "seed", self.rank == 0 ? "1" : "2", &self.error));
      },
      [](CRank& self, troupe_status joined) {
        EXPECT_EQ(joined, TROUPE_MISMATCH);
        EXPECT_THAT(std::string(self.error.message),
                    HasSubstr("rank 0 has \"seed 1\", rank 1 has \"seed 2\""));
      });
}

TEST(RanksInC, RefuseSettingsWithoutNameOrValue) {
  CRank self(0, 1, 1);

  self.refuses(troupe_options_add_setting(nullptr, "seed", "1", &self.error), "options is NULL");
  self.refuses(troupe_options_add_setting(self.options, nullptr, "1", &self.error), "name is NULL");
  self.refuses(troupe_options_add_setting(self.options, "seed", nullptr, &self.error), "value is NULL");
}

void fill(std::int64_t, float* values, std::size_t count, void* value) {
  std::fill_n(values, count, *static_cast<float*>(value));
}

TEST(RanksInC, CompareFirstValuesOrTakeThoseOfTheFirst) {
  for (const char* const mode : {"compare", "broadcast"}) {
    meet([&](CRank& self) { self.set("first-values", mode); },
         [&](CRank& self, troupe_status joined) {
           ASSERT_EQ(joined, TROUPE_OK) << self.error.message;
           float value = static_cast<float>(self.rank);
           self.ok(troupe_write_parameter(self.session, 0, fill, &value, &self.error));
           if (std::string(mode) == "compare") {
             EXPECT_EQ(troupe_begin_step(self.session, 1, &self.error), TROUPE_MISMATCH);
             EXPECT_THAT(std::string(self.error.message),
                         HasSubstr("rank 1 has other first values of 'w' than rank 0"));
             return;
           }
           self.ok(troupe_begin_step(self.session, 1, &self.error));
           void* data = nullptr;
           self.ok(troupe_parameter(self.session, 0, &data, nullptr, &self.error));
           EXPECT_EQ(static_cast<float*>(data)[7], 0);
           self.ok(troupe_begin_lane(self.session, troupe_lane(self.session, 0), &self.error));
           self.end_step();
           self.ok(troupe_leave(self.session, &self.error));
         });
  }
}

TEST(RanksInC, RefuseALearningRateThatIsNoNumber) {
  meet([](CRank&) {},
       [](CRank& self, troupe_status joined) {
         ASSERT_EQ(joined, TROUPE_OK) << self.error.message;
         self.refuses(troupe_begin_step(self.session, std::nan(""), &self.error), "learning rate of nan");
         self.refuses(troupe_begin_step(self.session, -1, &self.error), "learning rate of -1");
         self.ok(troupe_leave(self.session, &self.error));
       });
}

TEST(RanksInC, AllHearHowTheLearningRatesDiffer) {
  meet([](CRank&) {},
       [](CRank& self, troupe_status joined) {
         ASSERT_EQ(joined, TROUPE_OK) << self.error.message;
         troupe_step_outcome outcome{};
         self.ok(troupe_begin_step(self.session, self.rank == 0 ? 0.5 : 0.25, &self.error));
         self.ok(troupe_begin_lane(self.session, troupe_lane(self.session, 0), &self.error));
         self.ok(troupe_gradient_ready(self.session, 0, &self.error));
         self.ok(troupe_end_lane(self.session, 1, &self.error));
         self.ok(troupe_finish_step(self.session, nullptr, 0, &outcome, &self.error));
         EXPECT_EQ(outcome.committed, 0);
         EXPECT_THAT(std::string(outcome.reason), HasSubstr("0.5 on rank 0, 0.25 on rank 1"));
         self.ok(troupe_leave(self.session, &self.error));
       });
}

}  // namespace
}  // namespace troupe::actors
