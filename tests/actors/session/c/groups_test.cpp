#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "actors/session/c/options.hpp"
#include "actors/session/c/troupe.h"
#include "tests/actors/session/c/company.hpp"

namespace troupe::actors {
namespace {

using ::testing::HasSubstr;

/// Three ranks of four, and one alone.
void three_of_four(CRank& self) {
  self.add("weight", 4);
  self.cut("three", {0, 1, 0, 0});
}

/// What the member at `index` has at `i`.
std::int64_t value(int index, std::size_t i) {
  return 100 * (index + 1) + (index % 2 == 0 ? 1 : -1) * static_cast<std::int64_t>(i * i);
}

template <class T>
std::vector<T> values(int index, std::size_t count) {
  std::vector<T> made;
  for (std::size_t i = 0; i < count; ++i) made.push_back(static_cast<T>(value(index, i)));
  return made;
}

/// A plain loop over members.
std::int64_t reduced(troupe_reduction reduction, int members, std::size_t i) {
  std::int64_t result = value(0, i);
  for (int index = 1; index < members; ++index) {
    const auto next = value(index, i);
    result = reduction == TROUPE_MIN   ? std::min(result, next)
             : reduction == TROUPE_MAX ? std::max(result, next)
                                       : result + next;
  }
  return reduction == TROUPE_AVERAGE ? result / members : result;
}

template <class T>
void check_all_reduce(CRank& self, troupe_group* group, troupe_dtype dtype, troupe_reduction reduction) {
  constexpr std::size_t kCount = 7;
  const int members = troupe_group_size(group);
  auto own = values<T>(troupe_group_index(group), kCount);
  // Whole averages.
  if (reduction == TROUPE_AVERAGE)
    for (auto& one : own) one *= static_cast<T>(members);
  self.ok(
      troupe_group_all_reduce(group, own.data(), own.size(), dtype, reduction, &self.posted, &self.error));
  self.wait(group);
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto expected =
        reduction == TROUPE_AVERAGE ? reduced(TROUPE_SUM, members, i) : reduced(reduction, members, i);
    EXPECT_EQ(static_cast<std::int64_t>(own[i]), expected) << i << " at rank " << self.rank;
  }
}

TEST(GroupsOfTheCInterface, SayWhoIsInThem) {
  run(
      4,
      [](CRank& self) {
        three_of_four(self);
        self.set("tensor-parallel", "2");
      },
      [](CRank& self) {
        auto* const three = self.group("three");
        EXPECT_EQ(troupe_group_size(three), self.rank == 1 ? 1 : 3);
        const std::array<int, 4> places{0, 0, 1, 2};
        EXPECT_EQ(troupe_group_index(three), places[static_cast<std::size_t>(self.rank)]);
        EXPECT_EQ(troupe_group_member(three, troupe_group_index(three)), self.rank);
        EXPECT_EQ(troupe_group_member(three, -1), -1);
        EXPECT_EQ(troupe_group_member(three, troupe_group_size(three)), -1);
        EXPECT_EQ(self.group("three"), three) << "the same at every call";
        auto* const tp = self.group("tp");
        EXPECT_EQ(troupe_group_size(tp), 2);
        EXPECT_EQ(troupe_group_member(tp, 1), self.rank / 2 * 2 + 1);
        self.refuses(troupe_group_of(self.session, "four", &self.group_out, &self.error),
                     "there is no group 'four'");
        EXPECT_THAT(std::string(self.error.message), HasSubstr("three"));
      });
}

TEST(GroupsOfTheCInterface, AllReduceAsAPlainLoopDoes) {
  run(4, three_of_four, [](CRank& self) {
    auto* const group = self.group("three");
    for (const auto reduction : {TROUPE_SUM, TROUPE_MIN, TROUPE_MAX}) {
      check_all_reduce<float>(self, group, TROUPE_F32, reduction);
      check_all_reduce<double>(self, group, TROUPE_F64, reduction);
      check_all_reduce<std::int64_t>(self, group, TROUPE_I64, reduction);
      check_all_reduce<std::int32_t>(self, group, TROUPE_I32, reduction);
    }
    check_all_reduce<float>(self, group, TROUPE_F32, TROUPE_AVERAGE);
  });
}

TEST(GroupsOfTheCInterface, WaitAsBeforeAfterAskingForAMissingStream) {
  std::promise<void> read;
  auto is_read = read.get_future();
  run(4, three_of_four, [&](CRank& self) {
    const auto launch = [](void*, void*) { return 0; };
    EXPECT_EQ(troupe_on_compute_stream(self.session, launch, nullptr, &self.error), TROUPE_UNAVAILABLE);
    // Rank 3 comes when rank 0, which must not read its sum before, has had time to.
    if (self.rank == 3) is_read.wait_for(std::chrono::milliseconds(100));
    check_all_reduce<float>(self, self.group("three"), TROUPE_F32, TROUPE_SUM);
    if (self.rank == 0) read.set_value();
  });
}

TEST(GroupsOfTheCInterface, ReduceAndScatterPartsOfAnySize) {
  run(4, three_of_four, [](CRank& self) {
    auto* const group = self.group("three");
    const int members = troupe_group_size(group), index = troupe_group_index(group);
    const std::vector<std::size_t> all_counts{1, 0, 3},
        counts(all_counts.begin(), all_counts.begin() + members);
    for (const auto reduction : {TROUPE_SUM, TROUPE_MAX}) {
      const auto input = values<float>(index, 4);
      const std::size_t own = counts[static_cast<std::size_t>(index)], first = index == 0 ? 0 : 1;
      std::vector<float> output(own + 1, -7.0F);
      self.ok(troupe_group_reduce_scatter(group, input.data(), own == 0 ? nullptr : output.data(),
                                          counts.data(), counts.size(), TROUPE_F32, reduction, &self.posted,
                                          &self.error));
      self.wait(group);
      for (std::size_t i = 0; i < own; ++i)
        EXPECT_EQ(output[i], static_cast<float>(reduced(reduction, members, first + i))) << i;
      EXPECT_EQ(output[own], -7.0F) << "nothing is written beyond the part";
    }
  });
}

TEST(GroupsOfTheCInterface, GatherPartsOfAnySizeInTheirOrder) {
  run(4, three_of_four, [](CRank& self) {
    auto* const group = self.group("three");
    const int members = troupe_group_size(group), index = troupe_group_index(group);
    const std::vector<std::size_t> all_counts{2, 0, 3},
        counts(all_counts.begin(), all_counts.begin() + members);
    const auto own = counts[static_cast<std::size_t>(index)];
    const auto input = values<std::int32_t>(index, own);
    std::vector<std::int32_t> expected, output(5, -7);
    for (int member = 0; member < members; ++member)
      for (const auto one : values<std::int32_t>(member, counts[static_cast<std::size_t>(member)]))
        expected.push_back(one);
    self.ok(troupe_group_all_gather(group, own == 0 ? nullptr : input.data(), output.data(), counts.data(),
                                    counts.size(), TROUPE_I32, &self.posted, &self.error));
    self.wait(group);
    expected.resize(5, -7);
    EXPECT_EQ(output, expected);
  });
}

/// Elements from one member to another.
std::size_t exchanged(int from, int to) {
  return static_cast<std::size_t>((from + 2 * to) % 3);
}

TEST(GroupsOfTheCInterface, ExchangeWhatIsForEachMember) {
  run(4, three_of_four, [](CRank& self) {
    auto* const group = self.group("three");
    const int members = troupe_group_size(group), index = troupe_group_index(group);
    std::vector<std::size_t> sent, taken;
    std::vector<std::uint8_t> input, expected;
    const auto element = [](int from, int to, std::size_t i) {
      return static_cast<std::uint8_t>(50 * from + 10 * to + static_cast<int>(i));
    };
    for (int other = 0; other < members; ++other) {
      sent.push_back(exchanged(index, other));
      taken.push_back(exchanged(other, index));
      for (std::size_t i = 0; i < sent.back(); ++i) input.push_back(element(index, other, i));
      for (std::size_t i = 0; i < taken.back(); ++i) expected.push_back(element(other, index, i));
    }
    std::vector<std::uint8_t> output(expected.size());
    self.ok(troupe_group_all_to_all(group, input.data(), sent.data(), output.data(), taken.data(),
                                    sent.size(), TROUPE_U8, &self.posted, &self.error));
    self.wait(group);
    EXPECT_EQ(output, expected);
  });
}

TEST(GroupsOfTheCInterface, BroadcastSendAndReceive) {
  run(4, three_of_four, [](CRank& self) {
    auto* const group = self.group("three");
    const int members = troupe_group_size(group), index = troupe_group_index(group);
    auto shared = values<float>(index, 5);
    self.ok(troupe_group_broadcast(group, shared.data(), shared.size(), TROUPE_F32, members - 1, &self.posted,
                                   &self.error));
    self.wait(group);
    EXPECT_EQ(shared, values<float>(members - 1, 5));
    if (members == 1) return;
    // Numbers count within a group: a later one stands for those before it.
    const auto own = values<double>(index, 6);
    std::vector<double> taken(6);
    if (index == 0) {
      self.ok(troupe_group_send(group, own.data(), 6, TROUPE_F64, 2, nullptr, &self.error));
      self.ok(troupe_group_receive(group, taken.data(), 6, TROUPE_F64, 1, &self.posted, &self.error));
      EXPECT_EQ(self.posted, 3U);
      self.wait(group);
      EXPECT_EQ(taken, values<double>(1, 6));
    } else if (index == 1) {
      self.ok(troupe_group_send(group, own.data(), 6, TROUPE_F64, 0, &self.posted, &self.error));
      self.wait(group);
    } else {
      self.ok(troupe_group_receive(group, taken.data(), 6, TROUPE_F64, 0, &self.posted, &self.error));
      self.wait(group);
      EXPECT_EQ(taken, values<double>(0, 6));
    }
  });
}

TEST(GroupsOfTheCInterface, RefuseWhatCannotBe) {
  const auto nobody = [](CRank& self) {
    self.add("weight", 4);
    self.cut("all", {0, 0});
  };
  run(2, nobody, [](CRank& self) {
    auto* const group = self.group("all");
    auto* const e = &self.error;
    std::array<float, 4> memory{};
    void* const data = memory.data();
    const std::array<std::size_t, 2> two{2, 2}, huge{SIZE_MAX / 2, SIZE_MAX / 2};
    const auto no_reduction = static_cast<troupe_reduction>(9);
    const auto no_dtype = static_cast<troupe_dtype>(14);
    std::uint64_t number = 77;
    self.refuses(troupe_group_all_reduce(nullptr, data, 4, TROUPE_F32, TROUPE_SUM, &number, e),
                 "troupe_group_of() finds one");
    self.refuses(troupe_group_all_reduce(group, nullptr, 4, TROUPE_F32, TROUPE_SUM, &number, e),
                 "values is NULL, expected 4 elements of f32");
    self.refuses(troupe_group_all_reduce(group, data, 4, no_dtype, TROUPE_SUM, &number, e),
                 "14 is not a dtype");
    self.refuses(troupe_group_all_reduce(group, data, 4, TROUPE_F32, no_reduction, &number, e),
                 "9 is not a reduction of a session; use TROUPE_SUM");
    self.refuses(troupe_group_all_reduce(group, data, 4, TROUPE_F32, TROUPE_PRODUCT, &number, e),
                 "5 is not a reduction of a session");
    self.refuses(troupe_group_all_reduce(group, data, SIZE_MAX, TROUPE_F32, TROUPE_SUM, &number, e),
                 "which no memory holds");
    self.refuses(troupe_group_all_reduce(group, data, 4, TROUPE_I32, TROUPE_AVERAGE, &number, e),
                 "average is for floating types");
    self.refuses(troupe_group_all_gather(group, data, data, two.data(), 1, TROUPE_F32, &number, e),
                 "counts has entries for 1 members, expected one for each of the group's 2");
    self.refuses(troupe_group_all_gather(group, data, data, nullptr, 2, TROUPE_F32, &number, e),
                 "counts is NULL");
    self.refuses(troupe_group_all_gather(group, data, nullptr, two.data(), 2, TROUPE_F32, &number, e),
                 "output is NULL, expected 4 elements");
    self.refuses(troupe_group_all_gather(group, nullptr, data, two.data(), 2, TROUPE_F32, &number, e),
                 "input is NULL, expected 2 elements");
    self.refuses(
        troupe_group_reduce_scatter(group, data, data, huge.data(), 2, TROUPE_F32, TROUPE_SUM, &number, e),
        "which no memory holds");
    self.refuses(troupe_group_all_to_all(group, data, two.data(), data, nullptr, 2, TROUPE_F32, &number, e),
                 "taken is NULL");
    self.refuses(
        troupe_group_all_to_all(group, data, two.data(), data, two.data(), 3, TROUPE_F32, &number, e),
        "sent has entries for 3 members");
    self.refuses(troupe_group_broadcast(group, data, 4, TROUPE_F32, -1, &number, e),
                 "root is -1, expected a place among the group's members, 0 to 1");
    self.refuses(troupe_group_send(group, data, 4, TROUPE_F32, 2, &number, e), "to is 2");
    self.refuses(troupe_group_send(group, data, 4, TROUPE_F32, self.rank, &number, e), "this one");
    self.refuses(troupe_group_receive(group, data, 4, TROUPE_F32, 2, &number, e), "from is 2");
    self.refuses(troupe_group_wait(group, 1, e), "operation 1 of group all was not posted; 0 were");
    self.refuses(troupe_group_wait(nullptr, 1, e), "the group is NULL");
    EXPECT_EQ(number, 77U) << "nothing was posted";
    self.refuses(troupe_group_of(nullptr, "all", &self.group_out, e), "the session is NULL");
    self.refuses(troupe_group_of(self.session, nullptr, &self.group_out, e), "name is NULL");
    self.refuses(troupe_group_of(self.session, "all", nullptr, e), "group is NULL");
    check_all_reduce<float>(self, group, TROUPE_F32, TROUPE_SUM);
  });
  EXPECT_EQ(troupe_group_size(nullptr), 0);
  EXPECT_EQ(troupe_group_index(nullptr), -1);
  EXPECT_EQ(troupe_group_member(nullptr, 0), -1);
}

TEST(GroupsOfTheCInterface, EndWithTheirSession) {
  CRank self(0, 1, 0);
  self.add("weight", 4);
  self.cut("alone", {0});
  self.ok(troupe_session_join(self.options, &self.session, &self.error));
  auto* const group = self.group("alone");
  check_all_reduce<float>(self, group, TROUPE_F32, TROUPE_SUM);
  self.ok(troupe_leave(self.session, &self.error));

  float one = 1;
  self.refuses(troupe_group_all_reduce(group, &one, 1, TROUPE_F32, TROUPE_SUM, nullptr, &self.error),
               "the session was left");
  EXPECT_EQ(troupe_group_size(group), 1);
}

TEST(GroupsOfTheCInterface, KeepTrainersToWhatTheyDeclared) {
  const auto declare = [](CRank& self) {
    self.add("weight", 4);
    self.set("tensor-parallel", "2");
    const std::array<std::int64_t, 2> counts{3, 3};
    for (const auto pass : {TROUPE_FORWARD, TROUPE_BACKWARD}) {
      const troupe_operation sum{"tp",       pass == TROUPE_FORWARD ? TROUPE_ALL_REDUCE : TROUPE_BROADCAST,
                                 TROUPE_F32, counts.data(),
                                 2,          0,
                                 pass,       TROUPE_NO_UNIT};
      self.ok(troupe_options_add_operation(self.options, &sum, &self.error));
    }
  };
  run(2, declare, [](CRank& self) {
    auto* const tp = self.group("tp");
    auto* const e = &self.error;
    std::array<double, 4> wide{};
    std::array<float, 4> memory{1, 2, 3, 4};
    self.begin_lane();
    self.gradient(0)[0] += 1;
    self.refuses(troupe_group_all_reduce(tp, memory.data(), 4, TROUPE_F32, TROUPE_SUM, nullptr, e),
                 "all_reduce of f32, 4 elements on tp was posted in lane 0");
    self.refuses(troupe_group_all_reduce(tp, wide.data(), 3, TROUPE_F64, TROUPE_SUM, nullptr, e),
                 "all_reduce of f64");
    self.refuses(troupe_group_broadcast(tp, memory.data(), 3, TROUPE_F32, 0, nullptr, e),
                 "declares operation 0 of 2, all_reduce of f32");
    self.ok(troupe_group_all_reduce(tp, memory.data(), 3, TROUPE_F32, TROUPE_SUM, &self.posted, e));
    self.wait(tp);
    EXPECT_EQ(memory, (std::array<float, 4>{2, 4, 6, 4}));
    self.refuses(troupe_end_lane(self.session, 1, e), "after 1 of the 2 operations");
    self.ok(troupe_group_broadcast(tp, memory.data(), 3, TROUPE_F32, 1, &self.posted, e));
    self.wait(tp);
    self.refuses(troupe_group_broadcast(tp, memory.data(), 3, TROUPE_F32, 1, nullptr, e), "after all 2");
    self.end_step();
  });
}

TEST(GroupsOfTheCInterface, TakeGroupsAndOperationsAsTheyAreAdded) {
  CRank self(0, 1, 0);
  self.cut("cross", {1, 0, 1, 0, 2});
  ASSERT_EQ(self.options->session.groups.size(), 1U);
  EXPECT_EQ(self.options->session.groups[0].name, "cross");
  EXPECT_EQ(self.options->session.groups[0].members,
            (std::vector<std::vector<core::Rank>>{{{1}, {3}}, {{0}, {2}}, {{4}}}));

  const std::array<std::int64_t, 3> counts{5, 0, 7};
  troupe_operation added{"ep", TROUPE_ALL_TO_ALL, TROUPE_BF16, counts.data(), 3, 1, TROUPE_BACKWARD, 6};
  self.ok(troupe_options_add_operation(self.options, &added, &self.error));
  using Kind = core::CollectiveKind;
  const std::array kinds{Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::all_to_all,
                         Kind::broadcast};
  for (int kind = TROUPE_ALL_REDUCE; kind <= TROUPE_BROADCAST; ++kind) {
    added = {"tp",
             static_cast<troupe_operation_kind>(kind),
             TROUPE_I64,
             counts.data(),
             2,
             0,
             TROUPE_FORWARD,
             TROUPE_NO_UNIT};
    self.ok(troupe_options_add_operation(self.options, &added, &self.error));
    EXPECT_EQ(self.options->session.operations.back().kind, kinds[static_cast<std::size_t>(kind - 1)]);
  }
  const auto& first = self.options->session.operations.front();
  EXPECT_EQ(first.group, "ep");
  EXPECT_EQ(first.kind, Kind::all_to_all);
  EXPECT_EQ(first.dtype, core::DType::bf16);
  EXPECT_EQ(first.counts, (std::vector<std::int64_t>{5, 0, 7}));
  EXPECT_TRUE(first.bounded);
  EXPECT_EQ(first.pass, core::Pass::backward);
  EXPECT_EQ(first.unit, core::UnitIndex{6});
  const auto& last = self.options->session.operations.back();
  EXPECT_EQ(last.dtype, core::DType::i64);
  EXPECT_EQ(last.counts.size(), 2U);
  EXPECT_FALSE(last.bounded);
  EXPECT_EQ(last.pass, core::Pass::forward);
  EXPECT_EQ(last.unit, std::nullopt);
}

TEST(GroupsOfTheCInterface, RefuseGroupsAndOperationsThatCannotBe) {
  CRank self(0, 1, 0);
  auto* const e = &self.error;
  const std::array<std::int32_t, 2> gap{0, 2}, negative{0, -1}, skipped{1, 1};
  self.refuses(troupe_options_add_group(nullptr, "g", gap.data(), 2, e), "options is NULL");
  self.refuses(troupe_options_add_group(self.options, nullptr, gap.data(), 2, e), "name is NULL");
  self.refuses(troupe_options_add_group(self.options, "g", nullptr, 2, e), "part_of is NULL");
  self.refuses(troupe_options_add_group(self.options, "g", gap.data(), 2, e),
               "group g has rank 1 in part 2; 2 ranks have at most parts 0 to 1");
  self.refuses(troupe_options_add_group(self.options, "g", negative.data(), 2, e), "rank 1 in part -1");
  self.refuses(troupe_options_add_group(self.options, "g", skipped.data(), 2, e),
               "number parts without gaps");

  const std::array<std::int64_t, 2> counts{1, 1};
  const troupe_operation good{"tp", TROUPE_ALL_REDUCE, TROUPE_F32,    counts.data(), 2,
                              0,    TROUPE_FORWARD,    TROUPE_NO_UNIT};
  const auto refuses = [&](auto change, const char* says) {
    auto bad = good;
    change(bad);
    self.refuses(troupe_options_add_operation(self.options, &bad, e), says);
  };
  self.refuses(troupe_options_add_operation(nullptr, &good, e), "options is NULL");
  self.refuses(troupe_options_add_operation(self.options, nullptr, e), "operation is NULL");
  refuses([](auto& bad) { bad.group = nullptr; }, "operation.group is NULL");
  refuses([](auto& bad) { bad.counts = nullptr; }, "operation.counts is NULL");
  refuses([](auto& bad) { bad.bounded = 2; }, "operation.bounded is 2, expected 0 or 1");
  refuses([](auto& bad) { bad.kind = static_cast<troupe_operation_kind>(6); },
          "6 is not a kind of declared operation");
  refuses([](auto& bad) { bad.dtype = static_cast<troupe_dtype>(0); }, "0 is not a dtype");
  refuses([](auto& bad) { bad.pass = static_cast<troupe_pass>(3); },
          "3 is not a pass of operations; use TROUPE_FORWARD");
  EXPECT_TRUE(self.options->session.groups.empty());
  EXPECT_TRUE(self.options->session.operations.empty());

  self.add("weight", 4);
  self.ok(troupe_options_add_operation(self.options, &good, e));
  EXPECT_EQ(troupe_session_join(self.options, &self.session, e), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(self.error.message), HasSubstr("group 'tp' is none of the axes"));
}

TEST(PartsInTheCInterface, CountOnceAndAreSummedOnRequest) {
  const auto share = [](CRank& self) {
    self.set("tensor-parallel", "2");
    self.add("weight", 2);
    self.add("norm", 1);
    std::int32_t rank = -1, ranks = -1;
    self.ok(troupe_place(self.options, &rank, &ranks, &self.error));
    EXPECT_EQ(rank, self.rank);
    EXPECT_EQ(ranks, 2);
    self.refuses(troupe_place(nullptr, &rank, &ranks, &self.error), "options is NULL");
    const std::int64_t whole = 4, offset = 2 * rank;
    self.ok(troupe_options_set_part(self.options, 0, &whole, &offset, 1, &self.error));
    self.ok(troupe_options_set_also_sum(self.options, 1, "tp", &self.error));
    self.refuses(troupe_options_set_part(self.options, 0, &whole, &offset, 2, &self.error),
                 "parameter weight has 1 axes, found a whole of 2");
    self.refuses(troupe_options_set_part(self.options, 0, &whole, nullptr, 1, &self.error), "offset is NULL");
    self.refuses(troupe_options_set_also_sum(self.options, 2, "tp", &self.error), "there is no parameter 2");
    self.refuses(troupe_options_set_also_sum(self.options, 1, nullptr, &self.error), "group is NULL");
  };
  run(2, share, [](CRank& self) {
    self.begin_lane();
    auto* weight = self.gradient(0);
    weight[0] += 1;
    weight[1] += 1;
    self.gradient(1)[0] += static_cast<float>(self.rank + 1);
    EXPECT_FLOAT_EQ(static_cast<float>(self.end_step().gradient_norm), std::sqrt(13.0F))
        << "four times 1, and 1 + 2 squared";
  });
}

TEST(ExpertsInTheCInterface, HaveAGradientForEachSourceOfTokens) {
  const auto spread = [](CRank& self) {
    self.set("expert-parallel", "2");
    self.add(self.rank == 0 ? "expert.0" : "expert.1", 1, TROUPE_EXPERT);
    self.add("router", 1);
  };
  run(2, spread, [](CRank& self) {
    void* data = nullptr;
    std::int32_t sources = 0;
    self.ok(troupe_sources(self.session, 0, &sources, &self.error));
    EXPECT_EQ(sources, 2);
    self.ok(troupe_sources(self.session, 1, &sources, &self.error));
    EXPECT_EQ(sources, 1);
    self.refuses(troupe_sources(self.session, 0, nullptr, &self.error), "count is NULL");
    self.begin_lane();
    self.ok(troupe_before_use(self.session, 0, &self.error));
    for (int source = 0; source < 2; ++source) {
      self.ok(troupe_gradient_of_source(self.session, 0, source, &data, nullptr, &self.error));
      EXPECT_EQ(*static_cast<float*>(data), 0.0F) << "each has memory of its own";
      *static_cast<float*>(data) += static_cast<float>(1 + 2 * source + 4 * self.rank);
    }
    EXPECT_EQ(troupe_gradient_of_source(self.session, 0, 2, &data, nullptr, &self.error),
              TROUPE_INVALID_ARGUMENT);
    self.gradient(1)[0] += 1;
    self.end_step();
    self.ok(troupe_publish_all(self.session, &self.error));
    self.ok(troupe_parameter(self.session, 0, &data, nullptr, &self.error));
    EXPECT_EQ(*static_cast<float*>(data), self.rank == 0 ? -2.0F : -6.0F) << "the mean of 1 and 3, 5 and 7";
  });
}

}  // namespace
}  // namespace troupe::actors
