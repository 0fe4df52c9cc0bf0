#include "core/program/step_time.hpp"

#include <gtest/gtest.h>

#include "core/program/overlap.hpp"
#include "tests/core/program/some_programs.hpp"

namespace troupe::core {
namespace {

constexpr Link kLink{1e9, 1e-6};  // a byte each nanosecond

ProgramEntry entry_of(CollectiveKind operation, std::int64_t elements, Counts counts) {
  ProgramEntry entry;
  entry.operation = operation;
  entry.wire = DType::bf16;
  entry.elements = elements;
  entry.counts = std::move(counts);
  return entry;
}

/// Four ranks, 1000 bf16: three messages, 750 elements leave each rank.
TEST(LinkTime, OfARingIsPeerLatenciesPlusTheBytes) {
  EXPECT_DOUBLE_EQ(seconds_of(entry_of(CollectiveKind::all_gather, 1000, Counts::even(250, 4)), 0, kLink),
                   3e-6 + 1.5e-6);
  EXPECT_DOUBLE_EQ(
      seconds_of(entry_of(CollectiveKind::reduce_scatter, 1000, Counts::even(1000, 4)), 0, kLink),
      3e-6 + 1.5e-6);
  EXPECT_DOUBLE_EQ(seconds_of(entry_of(CollectiveKind::all_reduce, 1000, Counts::even(1000, 4)), 0, kLink),
                   6e-6 + 3e-6);
}

TEST(LinkTime, OfASmallAllReduceIsATrees) {
  // Ten levels up and ten down, two bytes each; a ring would take 2046 messages.
  EXPECT_DOUBLE_EQ(seconds_of(entry_of(CollectiveKind::all_reduce, 1, Counts::even(1, 1024)), 0, kLink),
                   20 * (1e-6 + 2e-9));
  EXPECT_DOUBLE_EQ(seconds_of(entry_of(CollectiveKind::all_reduce, 1, Counts::even(1, 5)), 0, kLink),
                   6 * (1e-6 + 2e-9));
}

TEST(LinkTime, OfAnExchangeHasTheLatenciesOfEachChunk) {
  auto exchange = entry_of(CollectiveKind::all_to_all, 1000, Counts::even(1000, 4));
  EXPECT_DOUBLE_EQ(seconds_of(exchange, 0, kLink), 3e-6 + 1.5e-6);

  exchange.chunk = 100;  // of parts of 250
  EXPECT_DOUBLE_EQ(seconds_of(exchange, 0, kLink), 3 * 3e-6 + 1.5e-6);
}

TEST(LinkTime, OfOneRankIsNone) {
  EXPECT_EQ(seconds_of(entry_of(CollectiveKind::all_reduce, 1000, Counts::even(1000, 1)), 0, kLink), 0);
}

TEST(StepTime, TakesTheInnerLinkWithinANode) {
  const auto program = program_of({.strategy = Strategy::hsdp, .ranks = 8, .outer = 2});
  const auto links_of = [&](int node_ranks) {
    std::vector<std::pair<GroupKind, bool>> found;
    for (const auto& one : step_time(program, {kLink, kLink, node_ranks}, 0).communicators) {
      found.emplace_back(one.communicator.group, one.within_node);
    }
    return found;
  };
  using Found = std::vector<std::pair<GroupKind, bool>>;

  // On two streams, so the inner axis is there twice.
  EXPECT_EQ(links_of(4), (Found{{GroupKind::intra_dp_cp, true},
                                {GroupKind::intra_dp_cp, true},
                                {GroupKind::inter_instance, false},
                                {GroupKind::world, false}}));
  EXPECT_EQ(links_of(8).back(), (std::pair{GroupKind::world, true}));
  EXPECT_EQ(links_of(2).front(), (std::pair{GroupKind::intra_dp_cp, false}));
}

Program time_on_one_stream(const SomeJob& job) {
  auto inputs = inputs_of(job);
  inputs.separate_streams = false;
  return plan_program(inputs, std::vector<int>(inputs.domains[0].sizes.size(), 0)).value();
}

const Links kLinks{kLink, kLink, 8};

TEST(StepTime, WithoutComputeExposesAllCommunication) {
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
    const auto time =
        step_time(time_on_one_stream({.strategy = strategy, .ranks = 4, .rounds = 2}), kLinks, 0);

    EXPECT_EQ(time.compute_seconds, 0);
    EXPECT_NEAR(time.step_seconds, time.communication_seconds(), 1e-12) << name_of(strategy);
  }
}

/// With compute that outlasts every collective, what stays exposed are those that overlap_of() does not call
/// hidden, and the verdict.
TEST(StepTime, WithMuchComputeExposesWhatTheOverlapCountsDo) {
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
    const auto program = time_on_one_stream({.strategy = strategy, .ranks = 4, .rounds = 2});
    const auto counts = overlap_of(program);
    const auto open_gathers = static_cast<double>(counts.gathers - counts.hidden_gathers);
    const auto open_reductions = static_cast<double>(counts.reductions - counts.hidden_reductions +
                                                     counts.all_reduces - counts.hidden_all_reduces);
    // 1024 elements on four ranks: bf16 parameters, f32 gradients; the verdict is one word.
    const double gather = 3e-6 + 768 * 2e-9;
    const double reduction = (strategy == Strategy::ddp ? 2 : 1) * (3e-6 + 768 * 4e-9);
    const double verdict = 4 * (1e-6 + 8e-9);

    const auto time = step_time(program, kLinks, 1);

    EXPECT_EQ(time.compute_seconds, 2);
    EXPECT_NEAR(time.exposed_seconds(), open_gathers * gather + open_reductions * reduction + verdict, 1e-11)
        << name_of(strategy);
  }
}

TEST(StepTime, BytesAndTimesOfCommunicatorsAddUp) {
  const auto time = step_time(time_on_one_stream({.ranks = 4}), kLinks, 0);

  // Four units gathered twice and reduced once, each in three messages.
  ASSERT_EQ(time.communicators.size(), 2U);
  EXPECT_EQ(time.communicators[0].launches, 12);
  EXPECT_EQ(time.communicators[0].bytes, 4 * 768 * (2 * 2 + 4));
  EXPECT_NEAR(time.communicators[0].seconds, 12 * 3e-6 + 4 * 768 * 8e-9, 1e-12);
  EXPECT_NEAR(time.communicators[0].exposed_seconds + time.communicators[1].exposed_seconds,
              time.exposed_seconds(), 1e-12);
}

}  // namespace
}  // namespace troupe::core
