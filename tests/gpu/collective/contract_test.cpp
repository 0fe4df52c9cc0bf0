// What every back-end does, bit for bit: results are compared with reference.hpp and with plain copies. Where
// the arithmetic is another's (BackendTraits), sums are compared up to rounding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <optional>
#include <thread>
#include <tuple>

#include "tests/gpu/collective/contract.hpp"

namespace troupe::gpu {
namespace {

const std::vector<std::pair<DType, std::vector<ReduceOp>>>& reductions() {
  static const std::vector<ReduceOp> floating{ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max,
                                              ReduceOp::product};
  static const std::vector<ReduceOp> booleans{ReduceOp::min, ReduceOp::max, ReduceOp::bit_and,
                                              ReduceOp::bit_or, ReduceOp::bit_xor};
  static const std::vector<ReduceOp> integers{ReduceOp::sum,     ReduceOp::min,     ReduceOp::max,
                                              ReduceOp::product, ReduceOp::bit_and, ReduceOp::bit_or,
                                              ReduceOp::bit_xor};
  static const std::vector<std::pair<DType, std::vector<ReduceOp>>> all{
      {DType::f64, floating},    {DType::f32, floating}, {DType::f16, floating}, {DType::bf16, floating},
      {DType::i64, integers},    {DType::i32, integers}, {DType::i16, integers}, {DType::i8, integers},
      {DType::u64, integers},    {DType::u32, integers}, {DType::u16, integers}, {DType::u8, integers},
      {DType::boolean, booleans}};
  return all;
}

// Covers unit-7.
TEST_P(CollectiveContract, AllReduceOfEveryTypeGivesTheReferencesBits) {
  for (const auto& [dtype, reduces_by] : reductions()) {
    const bool is_16_bit_integer = dtype == DType::i16 || dtype == DType::u16;
    if (is_16_bit_integer && !stage.traits().reduces_16_bit_integers) continue;
    for (const ReduceOp reduce : reduces_by) {
      const bool is_common = reduce != ReduceOp::product && !is_of_bits(reduce);
      if (!is_common && !stage.traits().has_products_and_bits) continue;
      const auto inputs = random_inputs(dtype, 1237);
      auto outputs = blank(inputs.size(), inputs[0].size());
      perform([&, type = dtype](int i) {
        const auto at = static_cast<std::size_t>(i);
        return Operation{.kind = OperationKind::all_reduce,
                         .dtype = type,
                         .reduce = reduce,
                         .input = in(inputs[at]),
                         .output = out(outputs[at])};
      });
      for (const Bytes& output : outputs) {
        ASSERT_TRUE(is_reduction(dtype, reduce, inputs, output))
            << core::name_of(dtype) << " " << name_of(reduce);
        ASSERT_EQ(output, outputs[0]) << "members have the same bits";
      }
    }
  }
}

TEST_P(CollectiveContract, AllReduceInPlaceTakesEverySize) {
  for (const std::size_t count : {0, 1, 2, 3, 7, 8, 63, 1024, 4097, 65537, 1000003}) {
    const auto inputs = random_inputs(DType::f32, count);
    auto buffers = inputs;
    perform([&](int i) {
      Bytes& buffer = buffers[static_cast<std::size_t>(i)];
      return Operation{.kind = OperationKind::all_reduce, .input = in(buffer), .output = out(buffer)};
    });
    for (const Bytes& buffer : buffers) {
      ASSERT_TRUE(is_reduction(DType::f32, ReduceOp::sum, inputs, buffer)) << count << " elements";
    }
  }
}

// Covers unit-6, unit-7.
TEST_P(CollectiveContract, ReduceScatterGivesEachMemberItsPart) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i64}) {
    for (const std::size_t scale : {5, 1000, 300000}) {
      const auto counts = uneven_counts(scale);
      const auto offsets = offsets_of(counts);
      const std::size_t width = core::size_of(dtype);
      const auto originals = random_inputs(dtype, sum_of(counts));
      auto inputs = originals;
      for (const bool in_place : {false, true}) {
        std::vector<Bytes> outputs;
        for (const std::size_t count : counts) outputs.emplace_back(count * width);
        perform([&](int i) {
          const auto at = static_cast<std::size_t>(i);
          const BufferView part = out(inputs[at]).subview(offsets[at] * width, counts[at] * width);
          return Operation{.kind = OperationKind::reduce_scatter,
                           .dtype = dtype,
                           .input = in(inputs[at]),
                           .output = in_place ? part : out(outputs[at]),
                           .output_counts = counts};
        });
        for (std::size_t i = 0; i < counts.size(); ++i) {
          const Bytes& whole = in_place ? inputs[i] : outputs[i];
          const std::size_t begin = in_place ? offsets[i] * width : 0;
          std::vector<Bytes> parts;
          for (const Bytes& input : originals) {
            parts.push_back(slice(input, offsets[i] * width, counts[i] * width));
          }
          ASSERT_TRUE(is_reduction(dtype, ReduceOp::sum, parts, slice(whole, begin, counts[i] * width)))
              << "member " << i << (in_place ? " in place" : "");
        }
      }
    }
  }
}

TEST_P(CollectiveContract, EvenPartsNeedNoCounts) {
  const auto inputs = random_inputs(DType::f32, 240);
  const std::size_t part = inputs[0].size() / inputs.size();
  auto parts = blank(inputs.size(), part);
  perform([&](int i) {
    const auto at = static_cast<std::size_t>(i);
    return Operation{.kind = OperationKind::reduce_scatter,
                     .reduce = ReduceOp::average,
                     .input = in(inputs[at]),
                     .output = out(parts[at])};
  });
  const Bytes reduced = concatenate(parts);
  EXPECT_TRUE(is_reduction(DType::f32, ReduceOp::average, inputs, reduced));

  auto gathered = blank(inputs.size(), reduced.size());
  perform([&](int i) {
    const auto at = static_cast<std::size_t>(i);
    return Operation{.kind = OperationKind::all_gather, .input = in(parts[at]), .output = out(gathered[at])};
  });
  for (const Bytes& whole : gathered) EXPECT_EQ(whole, reduced);
}

// Covers unit-6, save-8.
TEST_P(CollectiveContract, AllGatherPutsThePartsInRankOrder) {
  for (const DType dtype : {DType::f8_e4m3, DType::f8_e5m2, DType::bf16, DType::f64}) {
    for (const std::size_t scale : {5, 1000, 400000}) {
      const auto counts = uneven_counts(scale);
      const auto offsets = offsets_of(counts);
      const std::size_t width = core::size_of(dtype);
      std::vector<Bytes> inputs;
      for (const std::size_t count : counts) inputs.push_back(random_elements(dtype, count, random));
      const Bytes expected = concatenate(inputs);
      for (const bool in_place : {false, true}) {
        auto outputs = blank(inputs.size(), expected.size());
        perform([&](int i) {
          const auto at = static_cast<std::size_t>(i);
          const BufferView part = out(outputs[at]).subview(offsets[at] * width, inputs[at].size());
          if (in_place) std::ranges::copy(inputs[at], part.data);
          return Operation{.kind = OperationKind::all_gather,
                           .dtype = dtype,
                           .input = in_place ? ConstBufferView(part) : in(inputs[at]),
                           .output = out(outputs[at]),
                           .input_counts = counts};
        });
        for (const Bytes& output : outputs) ASSERT_TRUE(output == expected);
      }
    }
  }
}

TEST_P(CollectiveContract, BroadcastComesFromAnyRoot) {
  for (int root = 0; root < n; ++root) {
    for (const std::size_t count : {0, 1, 1000, 700001}) {
      const Bytes source = random_elements(DType::u8, count, random);
      auto outputs = blank(static_cast<std::size_t>(n), count);
      perform([&](int i) {
        Operation operation{.kind = OperationKind::broadcast, .dtype = DType::u8, .peer = root};
        if (i == root) {
          operation.input = in(source);
        } else {
          operation.output = out(outputs[static_cast<std::size_t>(i)]);
        }
        return operation;
      });
      for (int i = 0; i < n; ++i) {
        if (i != root) {
          ASSERT_TRUE(outputs[static_cast<std::size_t>(i)] == source);
        }
      }
    }
  }
}

// Covers reduce-4.
TEST_P(CollectiveContract, AllToAllExchangesUnevenParts) {
  for (const std::size_t scale : {3, 1000, 200000}) {
    std::vector<std::vector<std::size_t>> input_counts;
    for (int i = 0; i < n; ++i) {
      input_counts.push_back(uneven_counts(scale));
      if (i % 2 == 1) std::ranges::reverse(input_counts.back());
    }
    EXPECT_TRUE(exchanges(input_counts)) << "scale " << scale;
  }
}

TEST_P(CollectiveContract, AllToAllBringsMuchToAFew) {
  using Pairs = std::vector<std::pair<int, int>>;
  const std::vector<Pairs> cases = {{{0, 1}},         {{2, 0}},         {{0, 1}, {2, 1}, {3, 1}},
                                    {{0, 1}, {2, 3}}, {{0, 1}, {1, 2}}, {{0, 1}, {1, 0}},
                                    {{0, 1}, {0, 2}}, {{3, 0}, {2, 1}}, {{1, 0}, {2, 0}, {3, 0}}};
  for (const std::size_t much : {700001, 262144, 131073}) {
    for (const auto& pairs : cases) {
      std::vector<std::vector<std::size_t>> counts(static_cast<std::size_t>(n),
                                                   std::vector<std::size_t>(static_cast<std::size_t>(n), 3));
      for (const auto& [from, to] : pairs)
        if (from < n && to < n) counts[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)] = much;
      EXPECT_TRUE(exchanges(counts)) << much << " " << testing::PrintToString(pairs);
    }
  }
}

TEST_P(CollectiveContract, MessagesGoAroundARingOnTwoStreams) {
  if (n == 1) GTEST_SKIP() << "a message has two sides";
  const auto second = stage.company->create_streams();
  for (const std::size_t count : {0, 1, 5000, 600000}) {
    const auto inputs = random_inputs(DType::f16, count);
    auto outputs = blank(inputs.size(), count * 2);
    std::vector<std::shared_ptr<OperationStatus>> statuses;
    for (int i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const auto both = stage.groups[at]->post_together(
          {{{.kind = OperationKind::send, .dtype = DType::f16, .input = in(inputs[at]), .peer = (i + 1) % n},
            stage.streams[at].get()},
           {{.kind = OperationKind::receive,
             .dtype = DType::f16,
             .output = out(outputs[at]),
             .peer = (i + n - 1) % n},
            second[at].get()}});
      statuses.insert(statuses.end(), both.value().begin(), both.value().end());
    }
    stage.settle();
    stage.company->settle(second);
    for (const auto& status : statuses) ASSERT_EQ(outcome_of(*status), "ok") << message_of(*status);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      ASSERT_TRUE(outputs[(i + 1) % inputs.size()] == inputs[i]);
    }
  }
}

TEST_P(CollectiveContract, NobodyPassesABarrierBeforeAllHaveReachedIt) {
  std::atomic<int> reached = 0;
  std::atomic<int> passed_early = 0;
  for (int i = 0; i < n; ++i) {
    const StreamView stream = stage.streams[static_cast<std::size_t>(i)].get();
    stage.company->run_on(stream, [&] { ++reached; });
    stage.post(i, {});
    stage.company->run_on(stream, [&] { passed_early += reached < n ? 1 : 0; });
  }
  stage.settle();
  EXPECT_EQ(passed_early, 0);
}

TEST_P(CollectiveContract, ManyOperationsInARowKeepTheirOrder) {
  constexpr int kRounds = 200;
  auto buffers = random_inputs(DType::i64, 33);
  std::vector<Bytes> expected = buffers;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < n; ++i) {
      Bytes& buffer = buffers[static_cast<std::size_t>(i)];
      stage.post(i, {.kind = OperationKind::all_reduce,
                     .dtype = DType::i64,
                     .input = in(buffer),
                     .output = out(buffer)});
    }
    expected.assign(buffers.size(), reference_reduce(DType::i64, ReduceOp::sum, expected));
  }
  stage.settle();
  EXPECT_EQ(buffers, expected);
}

TEST_P(CollectiveContract, GroupsOnDifferentStreamsRunAtOnce) {
  const auto second_streams = stage.company->create_streams();
  const auto second_groups = stage.company->create_groups("tp", core::Epoch{1});
  const auto first_inputs = random_inputs(DType::f32, 100003);
  auto first = first_inputs;
  auto second = random_inputs(DType::f64, 50001);
  const Bytes second_expected = reference_reduce(DType::f64, ReduceOp::max, second);
  for (int i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const Operation one{.kind = OperationKind::all_reduce, .input = in(first[at]), .output = out(first[at])};
    const Operation two{.kind = OperationKind::all_reduce,
                        .dtype = DType::f64,
                        .reduce = ReduceOp::max,
                        .input = in(second[at]),
                        .output = out(second[at])};
    // Members reach the groups in different orders, where they may.
    const bool begins_with_first = i % 2 == 0 || stage.traits().needs_one_order_of_groups;
    if (begins_with_first) stage.post(i, one);
    ASSERT_TRUE(second_groups[at]->post(two, second_streams[at].get()).has_value());
    if (!begins_with_first) stage.post(i, one);
  }
  stage.settle();
  stage.company->settle(second_streams);
  for (const Bytes& buffer : first) {
    EXPECT_TRUE(is_reduction(DType::f32, ReduceOp::sum, first_inputs, buffer));
  }
  for (const Bytes& buffer : second) EXPECT_TRUE(buffer == second_expected);
}

TEST_P(CollectiveContract, OneGroupOnTwoStreamsKeepsPostingOrder) {
  const auto second = stage.company->create_streams();
  const auto small_inputs = random_inputs(DType::f32, 10);
  const auto large_inputs = random_inputs(DType::f32, 200000);
  auto small = small_inputs;
  auto large = large_inputs;
  for (int i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    stage.post(i, {.kind = OperationKind::all_reduce, .input = in(large[at]), .output = out(large[at])});
    ASSERT_TRUE(
        stage.groups[at]
            ->post({.kind = OperationKind::all_reduce, .input = in(small[at]), .output = out(small[at])},
                   second[at].get())
            .has_value());
  }
  stage.settle();
  stage.company->settle(second);
  for (const Bytes& buffer : small) {
    EXPECT_TRUE(is_reduction(DType::f32, ReduceOp::sum, small_inputs, buffer));
  }
  for (const Bytes& buffer : large) {
    EXPECT_TRUE(is_reduction(DType::f32, ReduceOp::sum, large_inputs, buffer));
  }
}

// Covers reduce-4.
TEST_P(CollectiveContract, RefusesWrongUseByNameAndGoesOn) {
  Bytes buffer(64);
  const auto refusal = [&](Operation operation) {
    const auto result = stage.groups[0]->post(std::move(operation), stage.streams[0].get());
    return result ? "accepted" : result.error().message;
  };
  EXPECT_THAT(refusal({.kind = OperationKind::broadcast, .input = in(buffer), .peer = n}),
              ::testing::HasSubstr("peer"));
  EXPECT_THAT(refusal({.kind = OperationKind::all_reduce, .dtype = DType::f8_e5m2}),
              ::testing::HasSubstr("dtype: f8_e5m2"));
  EXPECT_THAT(refusal({.kind = OperationKind::all_gather,
                       .input = in(buffer),
                       .output = out(buffer),
                       .input_counts = std::vector<std::size_t>(static_cast<std::size_t>(n) + 1)}),
              ::testing::HasSubstr("input_counts"));

  EXPECT_FALSE(stage.groups[0]->post_together({{{}, stage.streams[0].get()}}).has_value())
      << "only messages go together";

  perform([](int) { return Operation{}; });
}

TEST_P(CollectiveContract, SayingWhichMemoryIsUsedChangesNoResult) {
  auto buffers = random_inputs(DType::f32, 1000);
  const auto inputs = buffers;
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    threads.emplace_back([&, i] {
      const BufferView memory = out(buffers[i]);
      // This memory is not the back-end's.
      EXPECT_FALSE(stage.groups[i]->use_memory({&memory, 1}).value());
    });
  }
  threads.clear();
  perform([&](int member) {
    auto& buffer = buffers[static_cast<std::size_t>(member)];
    return Operation{.kind = OperationKind::all_reduce, .input = in(buffer), .output = out(buffer)};
  });

  for (const Bytes& buffer : buffers) EXPECT_TRUE(is_reduction(DType::f32, ReduceOp::sum, inputs, buffer));
}

INSTANTIATE_TEST_SUITE_P(Backends, CollectiveContract,
                         ::testing::Combine(::testing::Values(BackendKind::simulated,
                                                              BackendKind::shared_memory, BackendKind::tcp,
                                                              BackendKind::nccl),
                                            ::testing::Values(1, 2, 3, 4, 8)),
                         name_of_case);

}  // namespace
}  // namespace troupe::gpu
