#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/gpu/collective/contract.hpp"

// What every back-end does with the rows that an all_to_all names: what packing them, exchanging what lies
// together and unpacking it would.

namespace troupe::gpu {
namespace {

using Rows = std::vector<std::int64_t>;

class NamedRows : public CollectiveContract {
 protected:
  struct Member {
    Bytes input, output, expected;
    std::vector<std::size_t> sent, taken;  // rows
    std::optional<Rows> from, to;
  };

  /// Rows of `width` u8 each way; input rows come often, and output rows in any order with some left out.
  std::vector<Member> draw(std::size_t scale, std::size_t width, bool names_input, bool names_output) {
    std::vector<Member> members(static_cast<std::size_t>(n));
    for (auto& member : members) member.sent = uneven_counts(scale);
    for (std::size_t i = 0; i < members.size(); ++i) {
      for (const auto& other : members) members[i].taken.push_back(other.sent[i]);
      draw_lists(members[i], width, names_input, names_output);
    }
    for (std::size_t to = 0; to < members.size(); ++to) {
      std::size_t at = 0;
      for (const auto& from : members) {
        for (std::size_t i = 0; i < from.sent[to]; ++i, ++at) {
          const auto source = place(from.from, offsets_of(from.sent)[to] + i);
          std::memcpy(members[to].expected.data() + place(members[to].to, at) * width,
                      from.input.data() + source * width, width);
        }
      }
    }
    return members;
  }

  std::shared_ptr<OperationStatus> post(int member, Member& state, std::size_t width) {
    const auto elements = [&](std::vector<std::size_t> counts) {
      for (auto& count : counts) count *= width;
      return counts;
    };
    return stage.post(member, {.kind = OperationKind::all_to_all,
                               .dtype = DType::u8,
                               .input = in(state.input),
                               .output = out(state.output),
                               .input_counts = elements(state.sent),
                               .output_counts = elements(state.taken),
                               .rows = {width, state.from, state.to}});
  }

 private:
  static std::size_t place(const std::optional<Rows>& list, std::size_t i) {
    return list ? static_cast<std::size_t>((*list)[i]) : i;
  }

  void draw_lists(Member& member, std::size_t width, bool names_input, bool names_output) {
    const std::size_t sent = sum_of(member.sent), taken = sum_of(member.taken);
    const std::size_t inputs = names_input ? sent / 2 + 3 : sent;
    const std::size_t outputs = names_output ? taken + 5 : taken;
    if (names_input) {
      auto& rows = member.from.emplace(sent);
      for (auto& row : rows) row = static_cast<std::int64_t>(random() % inputs);
    }
    if (names_output) {
      auto& rows = member.to.emplace(outputs);
      std::iota(rows.begin(), rows.end(), std::int64_t{0});
      std::shuffle(rows.begin(), rows.end(), random);
      rows.resize(taken);
    }
    member.input.resize(inputs * width);
    const std::size_t first = random();
    for (std::size_t i = 0; i < member.input.size(); ++i)
      member.input[i] = static_cast<std::byte>((first + i) * 2654435761 >> 16);
    member.output = member.expected = Bytes(outputs * width, std::byte{0x5c});
  }
};

TEST_P(NamedRows, GoWhereTheyAreWantedAndTheRestStays) {
  if (!stage.traits().moves_rows) GTEST_SKIP() << "see AreRefusedByName";
  // A part of 50000 rows of 17 bytes does not fit the staging memory, whose end is within a row.
  for (const auto& [scale, width] : {std::pair{3, 1}, {100, 1000}, {50000, 17}, {3, 300001}}) {
    for (const bool names_input : {true, false}) {
      for (const bool names_output : {true, false}) {
        const auto bytes = static_cast<std::size_t>(width);
        auto members = draw(static_cast<std::size_t>(scale), bytes, names_input, names_output);
        std::vector<std::shared_ptr<OperationStatus>> statuses;
        for (int i = 0; i < n; ++i) statuses.push_back(post(i, members[static_cast<std::size_t>(i)], bytes));
        stage.settle();
        for (const auto& status : statuses) ASSERT_EQ(outcome_of(*status), "ok") << message_of(*status);
        for (const auto& member : members)
          ASSERT_TRUE(member.output == member.expected) << scale << " " << names_input << names_output;
      }
    }
  }
}

TEST_P(NamedRows, AreRefusedByNameWhereOnlyWholeMemoryMoves) {
  if (stage.traits().moves_rows) GTEST_SKIP() << "see GoWhereTheyAreWanted";
  auto members = draw(3, 4, true, false);
  for (int i = 0; i < n; ++i) {
    auto& member = members[static_cast<std::size_t>(i)];
    std::vector<std::size_t> sent = member.sent, taken = member.taken;
    for (auto& count : sent) count *= 4;
    for (auto& count : taken) count *= 4;
    const auto posted =
        stage.groups[static_cast<std::size_t>(i)]->post({.kind = OperationKind::all_to_all,
                                                         .dtype = DType::u8,
                                                         .input = in(member.input),
                                                         .output = out(member.output),
                                                         .input_counts = sent,
                                                         .output_counts = taken,
                                                         .rows = {4, member.from, member.to}},
                                                        stage.streams[static_cast<std::size_t>(i)].get());
    ASSERT_FALSE(posted.has_value());
    EXPECT_EQ(posted.error().code, core::Errc::unavailable);
    EXPECT_THAT(posted.error().message, testing::HasSubstr("rows: NCCL moves memory in one piece"));
  }
  perform([](int) { return Operation{.kind = OperationKind::barrier}; });
}

INSTANTIATE_TEST_SUITE_P(Backends, NamedRows,
                         ::testing::Combine(::testing::Values(BackendKind::simulated,
                                                              BackendKind::shared_memory, BackendKind::tcp,
                                                              BackendKind::nccl),
                                            ::testing::Values(1, 2, 3, 4, 8)),
                         name_of_case);

}  // namespace
}  // namespace troupe::gpu
