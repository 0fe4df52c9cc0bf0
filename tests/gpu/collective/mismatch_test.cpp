// What every back-end that can find it says when members post operations that differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/gpu/collective/contract.hpp"
#include "tests/gpu/collective/watchdog.hpp"

namespace troupe::gpu {
namespace {

/// Posts make(member) for all and settles; every member must end in Errc::mismatch with a message that holds
/// all of `words`, regular expressions.
class CollectiveMismatch : private Watchdog, public CollectiveContract {
 protected:
  template <class Make>
  void expect_mismatch(Make make, const std::vector<std::string>& words) {
    std::vector<std::shared_ptr<OperationStatus>> statuses;
    for (int i = 0; i < n; ++i) statuses.push_back(stage.post(i, make(i)));
    std::vector<std::shared_ptr<OperationStatus>> next;
    for (int i = 0; i < n; ++i) next.push_back(stage.post(i, {}));
    stage.settle();
    for (std::size_t i = 0; i < statuses.size(); ++i) {
      // Over TCP a member whose own part was as expected hears of it in its next operation.
      const auto& status = is_tcp() && outcome_of(*statuses[i]) == "ok" ? next[i] : statuses[i];
      EXPECT_EQ(outcome_of(*status), "mismatch");
      for (const std::string& word : words) EXPECT_THAT(message_of(*status), ::testing::ContainsRegex(word));
    }
  }
  /// Over TCP members are compared as soon as any two have heard of each other.
  bool is_tcp() const { return std::get<0>(GetParam()) == BackendKind::tcp; }
  std::string first_rank() const { return is_tcp() ? "rank 1[0-9]" : "rank 10"; }

  Bytes buffer = Bytes(1 << 20);
};

TEST_P(CollectiveMismatch, OfTheKindNamesTheRankAndTheField) {
  expect_mismatch(
      [&](int i) {
        Operation operation{.kind = i == n - 1 ? OperationKind::barrier : OperationKind::all_reduce};
        return operation;
      },
      {"rank " + std::to_string(n + 9) + " posted kind barrier, but " + first_rank() + " posted all_reduce",
       "all members must post the same operations in the same order"});
}

TEST_P(CollectiveMismatch, OfTheSizeNamesBothNumbers) {
  const std::string one = "rank 11 posted elements 262144, but " + first_rank() + " posted 1024";
  const std::string other = first_rank() + " posted elements 1024, but rank 11 posted 262144";
  expect_mismatch(
      [&](int i) {
        const std::size_t bytes = i == 1 ? 1 << 20 : 1 << 12;
        return Operation{.kind = OperationKind::all_reduce,
                         .input = {buffer.data(), bytes},
                         .output = {buffer.data(), bytes}};
      },
      {is_tcp() ? "(" + one + "|" + other + ")" : one});
}

TEST_P(CollectiveMismatch, OfTheTypeOrTheReductionIsFound) {
  expect_mismatch(
      [&](int i) {
        return Operation{.kind = OperationKind::all_reduce,
                         .reduce = i == 0 ? ReduceOp::max : ReduceOp::sum,
                         .input = {buffer.data(), 64},
                         .output = {buffer.data(), 64}};
      },
      {"reduce sum", "rank 10 posted max"});
}

TEST_P(CollectiveMismatch, OfTheCountsOfAnExchangeNamesBothSides) {
  expect_mismatch(
      [&](int i) {
        std::vector<std::size_t> counts(static_cast<std::size_t>(n), 4);
        Operation operation{.kind = OperationKind::all_to_all, .output_counts = counts};
        if (i == 0) counts[1] = 5;
        operation.input_counts = counts;
        operation.input = {buffer.data(), operation.input_counts.total() * 4};
        operation.output = {buffer.data() + 4096, operation.output_counts.total() * 4};
        return operation;
      },
      {"rank 10 posted input_counts.1. 5", "rank 11 posted output_counts.0. 4"});
}

TEST_P(CollectiveMismatch, OfAMessageIsSeenByBothSides) {
  for (const auto& [sends, receives] : {std::pair{4096, 4097}, {4097, 0}, {0, 4097}, {1 << 20, 4097}}) {
    Stage pair(std::get<0>(GetParam()), n);
    const auto size_of = [](int bytes) { return static_cast<std::size_t>(bytes); };
    const auto sent = pair.post(0, {.kind = OperationKind::send,
                                    .dtype = DType::u8,
                                    .input = {buffer.data(), size_of(sends)},
                                    .peer = 1});
    const auto received = pair.post(1, {.kind = OperationKind::receive,
                                        .dtype = DType::u8,
                                        .output = {buffer.data(), size_of(receives)},
                                        .peer = 0});
    // Over TCP a message that was sent without being asked for has ended for its sender, and so is one of no
    // bytes for its receiver.
    for (int i = 0; i < 2; ++i) pair.post(i, {});
    const auto next_of_sender = pair.post(0, {});
    const auto next_of_receiver = pair.post(1, {});
    pair.settle();

    const auto& last_sent = is_tcp() && outcome_of(*sent) == "ok" ? next_of_sender : sent;
    const auto& last_received = is_tcp() && outcome_of(*received) == "ok" ? next_of_receiver : received;
    EXPECT_EQ(outcome_of(*last_sent), "mismatch");
    EXPECT_EQ(outcome_of(*last_received), "mismatch");
    for (const auto& status : {last_sent, last_received}) {
      EXPECT_THAT(message_of(*status),
                  ::testing::HasSubstr("rank 11 posted elements " + std::to_string(receives) +
                                       ", but rank 10 posted " + std::to_string(sends) + "; "));
    }
  }
}

/// An operation of each member; those of any two entries differ.
class CollectivesOfAllKinds {
 public:
  using Make = std::function<Operation(std::size_t member)>;

  CollectivesOfAllKinds(Bytes& buffer, std::size_t members) : buffer_(buffer), members_(members) {
    const Counts even(members, 8);
    Counts uneven = even;
    uneven[1] = 3;
    all = {
        [](std::size_t) { return Operation{}; },
        all_reduce(0, DType::f32, ReduceOp::sum),
        all_reduce(64, DType::f32, ReduceOp::sum),
        all_reduce(64, DType::i32, ReduceOp::sum),
        all_reduce(64, DType::f32, ReduceOp::max),
        all_reduce(1 << 19, DType::f32, ReduceOp::sum),
        broadcast(0),
        broadcast(1),
        parts(OperationKind::reduce_scatter, even),
        parts(OperationKind::reduce_scatter, uneven),
        parts(OperationKind::all_gather, even),
        parts(OperationKind::all_gather, uneven),
        [this](std::size_t) { return of(OperationKind::all_to_all, members_ * 32, members_ * 32); },
    };
  }
  CollectivesOfAllKinds(const CollectivesOfAllKinds&) = delete;
  CollectivesOfAllKinds& operator=(const CollectivesOfAllKinds&) = delete;

  std::vector<Make> all;

 private:
  using Counts = std::vector<std::size_t>;

  Operation of(OperationKind kind, std::size_t in, std::size_t out) const {
    return {.kind = kind, .input = {buffer_.data(), in}, .output = {buffer_.data() + 4096 * 100, out}};
  }
  Make all_reduce(std::size_t bytes, DType dtype, ReduceOp reduce) const {
    return [=, this](std::size_t) {
      return Operation{.kind = OperationKind::all_reduce,
                       .dtype = dtype,
                       .reduce = reduce,
                       .input = {buffer_.data(), bytes},
                       .output = {buffer_.data(), bytes}};
    };
  }
  Make broadcast(std::size_t root) const {
    return [=, this](std::size_t member) {
      auto made = of(OperationKind::broadcast, member == root ? 64 : 0, member == root ? 0 : 64);
      made.peer = static_cast<int>(root);
      return made;
    };
  }
  Make parts(OperationKind kind, const Counts& counts) const {
    return [=, this](std::size_t member) {
      const std::size_t whole = sum_of(counts) * 4;
      const bool gathers = kind == OperationKind::all_gather;
      auto made = of(kind, gathers ? counts[member] * 4 : whole, gathers ? whole : counts[member] * 4);
      (gathers ? made.input_counts : made.output_counts) = counts;
      return made;
    };
  }

  Bytes& buffer_;
  const std::size_t members_;
};

/// A member that posts any other operation than the rest is found, at the latest by their next one.
TEST_P(CollectiveMismatch, OfAnyTwoOperationsIsFound) {
  const auto members = static_cast<std::size_t>(n);
  const CollectivesOfAllKinds operations(buffer, members);
  for (std::size_t common = 0; common < operations.all.size(); ++common) {
    for (std::size_t other = 0; other < operations.all.size(); ++other) {
      if (common == other || (common + other + members) % 3 != 0) continue;
      SCOPED_TRACE("operation " + std::to_string(other) + " among " + std::to_string(common));
      Stage fresh(std::get<0>(GetParam()), n);
      const std::size_t odd = random() % members;
      std::vector<std::shared_ptr<OperationStatus>> last;
      for (std::size_t i = 0; i < members; ++i)
        fresh.post(static_cast<int>(i), operations.all[i == odd ? other : common](i));
      for (int i = 0; i < n; ++i) last.push_back(fresh.post(i, {}));
      fresh.settle();
      for (const auto& status : last) {
        ASSERT_EQ(outcome_of(*status), "mismatch") << message_of(*status);
        ASSERT_THAT(message_of(*status), ::testing::ContainsRegex("rank 1[0-9] posted [a-z_]+(.[0-9].)? "
                                                                  "[a-z0-9_]+, but rank 1[0-9] posted "));
        ASSERT_THAT(message_of(*status), ::testing::HasSubstr("rank " + std::to_string(10 + odd)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, CollectiveMismatch,
                         ::testing::Combine(::testing::Values(BackendKind::simulated,
                                                              BackendKind::shared_memory, BackendKind::tcp),
                                            ::testing::Values(2, 4)),
                         name_of_case);

}  // namespace
}  // namespace troupe::gpu
