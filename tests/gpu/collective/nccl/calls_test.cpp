// What becomes of an operation, as a table.
#include "gpu/collective/nccl/calls.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "gpu/collective/operations.hpp"

namespace troupe::gpu {
namespace {

using core::DType;
using Function = NcclCall::Function;

class NcclCalls : public ::testing::Test {
 protected:
  BufferView view(std::size_t offset, std::size_t bytes) { return {memory.data() + offset, bytes}; }
  std::byte* at(std::size_t offset) { return memory.data() + offset; }

  NcclPlan plan(Operation operation, int index = 1, int size = 3) {
    operation = prepare(std::move(operation), index, size).value();
    return plan_nccl_calls(operation, index, size, word).value();
  }

  std::array<std::byte, 4096> memory{};
  std::array<std::byte, 4> word_bytes{};
  BufferView word{word_bytes.data(), 4};
};

TEST_F(NcclCalls, AllReduceKeepsItsTypeAndReduction) {
  const auto made = plan({.kind = OperationKind::all_reduce,
                          .dtype = DType::bf16,
                          .reduce = ReduceOp::average,
                          .input = view(0, 64),
                          .output = view(0, 64)});

  EXPECT_THAT(made.calls, ::testing::ElementsAre(NcclCall{Function::all_reduce, at(0), at(0), 32,
                                                          NcclDataType::bf16, NcclReduction::average, 0}));
}

TEST_F(NcclCalls, EvenPartsAreOneCall) {
  const auto scatter =
      plan({.kind = OperationKind::reduce_scatter, .input = view(0, 48), .output = view(16, 16)});
  EXPECT_THAT(scatter.calls, ::testing::ElementsAre(NcclCall{Function::reduce_scatter, at(0), at(16), 4,
                                                             NcclDataType::f32, NcclReduction::sum, 0}));

  const auto gather = plan({.kind = OperationKind::all_gather, .input = view(16, 16), .output = view(0, 48)});
  EXPECT_THAT(gather.calls, ::testing::ElementsAre(NcclCall{Function::all_gather, at(16), at(0), 16,
                                                            NcclDataType::u8, NcclReduction::sum, 0}));
}

TEST_F(NcclCalls, UnevenReduceScatterReducesEachNonEmptyPart) {
  const auto made = plan({.kind = OperationKind::reduce_scatter,
                          .dtype = DType::i64,
                          .input = view(0, 40),
                          .output = view(1000, 24),
                          .output_counts = {2, 3, 0}});

  EXPECT_THAT(made.calls,
              ::testing::ElementsAre(
                  NcclCall{Function::reduce, at(0), nullptr, 2, NcclDataType::i64, NcclReduction::sum, 0},
                  NcclCall{Function::reduce, at(16), at(1000), 3, NcclDataType::i64, NcclReduction::sum, 1}));
}

TEST_F(NcclCalls, UnevenAllGatherIsABroadcastOfEachPart) {
  const auto made = plan({.kind = OperationKind::all_gather,
                          .dtype = DType::f8_e4m3,
                          .input = view(1000, 2),
                          .output = view(0, 3),
                          .input_counts = {1, 2, 0}});

  EXPECT_THAT(
      made.calls,
      ::testing::ElementsAre(
          NcclCall{Function::broadcast, at(0), at(0), 1, NcclDataType::u8, NcclReduction::sum, 0},
          NcclCall{Function::broadcast, at(1000), at(1), 2, NcclDataType::u8, NcclReduction::sum, 1}));
}

TEST_F(NcclCalls, AllToAllOmitsEmptyPartsOnBothSides) {
  const auto made = plan({.kind = OperationKind::all_to_all,
                          .dtype = DType::f32,
                          .input = view(0, 12),
                          .output = view(100, 20),
                          .input_counts = {3, 0, 0},
                          .output_counts = {0, 0, 5}});

  EXPECT_THAT(
      made.calls,
      ::testing::ElementsAre(
          NcclCall{Function::send, at(0), nullptr, 12, NcclDataType::u8, NcclReduction::sum, 0},
          NcclCall{Function::receive, nullptr, at(100), 20, NcclDataType::u8, NcclReduction::sum, 2}));
}

TEST_F(NcclCalls, ABarrierReducesTheGroupsWord) {
  EXPECT_THAT(plan({}).calls, ::testing::ElementsAre(NcclCall{Function::all_reduce, word.data, word.data, 1,
                                                              NcclDataType::i32, NcclReduction::max, 0}));
}

TEST_F(NcclCalls, BooleansAreReducedAsBytes) {
  const auto made = plan({.kind = OperationKind::all_reduce,
                          .dtype = DType::boolean,
                          .reduce = ReduceOp::min,
                          .input = view(0, 5),
                          .output = view(0, 5)});

  ASSERT_EQ(made.calls.size(), 1U);
  EXPECT_EQ(made.calls.front().type, NcclDataType::u8);
  EXPECT_EQ(made.calls.front().reduction, NcclReduction::min);
}

TEST_F(NcclCalls, SixteenBitIntegersAreMovedButNotReduced) {
  Operation operation{.kind = OperationKind::all_reduce, .dtype = DType::i16};
  for (const int size : {1, 3}) {
    const auto refused = plan_nccl_calls(operation, 0, size, word);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, core::Errc::unavailable);
    EXPECT_THAT(refused.error().message, ::testing::HasSubstr("all_reduce: dtype: NCCL does not reduce i16"));
  }
  const auto moved =
      plan({.kind = OperationKind::broadcast, .dtype = DType::i16, .output = view(0, 6), .peer = 0});
  ASSERT_EQ(moved.calls.size(), 1U);
  EXPECT_EQ(moved.calls.front().count, 6U);
}

TEST_F(NcclCalls, NothingIsNoCall) {
  EXPECT_THAT(plan({.kind = OperationKind::all_reduce}).calls, ::testing::IsEmpty());
  EXPECT_THAT(plan({.kind = OperationKind::send, .peer = 0}).calls, ::testing::IsEmpty());
}

// Covers buffer-7.
TEST_F(NcclCalls, AMemberAloneCopies) {
  const auto made =
      plan({.kind = OperationKind::all_gather, .input = view(0, 8), .output = view(100, 8)}, 0, 1);
  EXPECT_THAT(made.calls, ::testing::IsEmpty());
  ASSERT_EQ(made.copies.size(), 1U);
  EXPECT_EQ(made.copies[0].destination.data, at(100));

  const auto in_place =
      plan({.kind = OperationKind::all_reduce, .input = view(0, 8), .output = view(0, 8)}, 0, 1);
  EXPECT_THAT(in_place.copies, ::testing::IsEmpty());
}

}  // namespace
}  // namespace troupe::gpu
