#include "gpu/collective/operations.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace troupe::gpu {
namespace {

std::array<std::byte, 4096> memory;

ConstBufferView in(std::size_t elements, std::size_t offset = 0) {
  return {memory.data() + offset * 4, elements * 4};
}
BufferView out(std::size_t elements, std::size_t offset = 512) {
  return {memory.data() + offset * 4, elements * 4};
}

/// One row of two elements to and from each of two members, of four rows that there are.
Operation rows_of(RowLists rows) {
  return {.kind = OperationKind::all_to_all,
          .input = in(8),
          .output = out(4),
          .input_counts = {2, 2},
          .output_counts = {2, 2},
          .rows = std::move(rows)};
}

struct Refusal {
  Operation operation;
  std::string words;
};

// Covers reduce-4.
TEST(PrepareOperation, NamesTheFieldThatIsWrong) {
  using Kind = OperationKind;
  const std::vector<Refusal> refusals{
      {{.kind = Kind::all_reduce, .input = in(3), .output = out(4)}, "output: expected 12 bytes"},
      {{.kind = Kind::all_reduce, .input = in(8), .output = out(8, 4)}, "output: expected the input itself"},
      {{.kind = Kind::all_reduce, .input = {memory.data(), 7}, .output = out(2)},
       "input: expected whole elements"},
      {{.kind = Kind::all_reduce, .input = {nullptr, 8}, .output = out(2)}, "input: expected memory"},
      {{.kind = Kind::all_reduce, .output_counts = {1, 1}}, "output_counts: expected none"},
      {{.kind = Kind::all_reduce, .dtype = core::DType::f8_e4m3}, "dtype: f8_e4m3"},
      {{.kind = Kind::all_reduce, .dtype = core::DType::i32, .reduce = ReduceOp::average}, "reduce: average"},
      {{.kind = Kind::all_reduce, .dtype = core::DType::boolean}, "reduce: expected min, max or a bit"},
      {{.kind = Kind::all_reduce, .reduce = ReduceOp::bit_xor}, "reduce: bit_xor is for integers"},
      {{.kind = Kind::reduce_scatter, .input = in(5), .output = out(2)},
       "input: 5 elements are not divisible by 2"},
      {{.kind = Kind::reduce_scatter, .input = in(6), .output = out(2)},
       "output: expected output_counts[1] = 3"},
      {{.kind = Kind::reduce_scatter, .input = in(6), .output = out(3), .output_counts = {3}},
       "output_counts: expected 2 numbers"},
      {{.kind = Kind::reduce_scatter, .input = in(6), .output = out(3), .output_counts = {4, 3}},
       "input: expected 7 elements"},
      {{.kind = Kind::reduce_scatter, .input = in(6), .output = out(3, 0)}, "or its part 1"},
      {{.kind = Kind::all_gather, .input = in(3), .output = out(6), .input_counts = {4, 2}},
       "input: expected input_counts[1] = 2"},
      {{.kind = Kind::broadcast, .input = in(4), .peer = 0}, "input: expected nothing"},
      {{.kind = Kind::broadcast, .input = in(4), .output = out(4), .peer = 1}, "output: at the root"},
      {{.kind = Kind::broadcast, .peer = 2}, "peer: expected an index"},
      {{.kind = Kind::all_to_all, .input = in(4), .output = out(4, 2)}, "output: expected memory apart"},
      {{.kind = Kind::all_to_all, .input = in(4), .output = out(4), .input_counts = {1, 3}},
       "output_counts: expected [1] = 3"},
      {{.kind = Kind::all_reduce, .rows = {.elements = 2, .input = {}, .output = {}}}, "rows: expected none"},
      {rows_of({.elements = 0, .input = {{1, 0}}, .output = {}}), "rows.elements: expected those of a row"},
      {rows_of({.elements = 3, .input = {{1, 0}}, .output = {}}), "input_counts: expected whole rows of 3"},
      {rows_of({.elements = 2, .input = {{1}}, .output = {}}),
       "rows.input: expected 2 rows, as in input_counts, found 1"},
      {rows_of({.elements = 2, .input = {{1, 4}}, .output = {}}),
       "rows.input: expected rows of the 4 in input, found 4"},
      {rows_of({.elements = 2, .input = {{1, 0}}, .output = {{0, -1}}}),
       "rows.output: expected rows of the 2 in output, found -1"},
      {{.kind = Kind::all_to_all,
        .input = in(4),
        .output = out(4),
        .rows = {.elements = 2, .input = {{1, 0}}, .output = {}}},
       "input_counts: expected 2 numbers, one per member, as rows are named; found 0"},
      {{.kind = Kind::send, .input = in(4), .peer = 1}, "peer: expected another member"},
      {{.kind = Kind::send, .input = in(4), .output = out(4), .peer = 0}, "output: expected nothing"},
      {{.kind = Kind::receive, .input = in(4), .peer = 0}, "input: expected nothing"},
      {{.kind = Kind::barrier, .input = in(4)}, "input: expected nothing"},
      {{.kind = Kind::barrier, .deadline = std::chrono::seconds(0)}, "deadline: expected more than zero"},
  };
  for (const auto& [operation, words] : refusals) {
    const auto prepared = prepare(operation, 1, 2);
    ASSERT_FALSE(prepared.has_value()) << words;
    EXPECT_EQ(prepared.error().code, core::Errc::invalid_argument);
    EXPECT_THAT(prepared.error().message, ::testing::HasSubstr(words));
    EXPECT_THAT(prepared.error().message, ::testing::StartsWith(std::string(name_of(operation.kind))));
  }
}

TEST(PrepareOperation, FillsEvenCountsIn) {
  const auto scattered =
      prepare({.kind = OperationKind::reduce_scatter, .input = in(6), .output = out(2)}, 1, 3);
  const auto exchanged = prepare({.kind = OperationKind::all_to_all, .input = in(6), .output = out(6)}, 1, 3);

  EXPECT_EQ(scattered.value().output_counts, PartCounts::even(2, 3));
  EXPECT_EQ(exchanged.value().input_counts, PartCounts::even(2, 3));
  EXPECT_EQ(exchanged.value().output_counts, PartCounts::even(2, 3));
}

TEST(PrepareOperation, TakesRowsThatAreNamedOften) {
  EXPECT_TRUE(prepare(rows_of({.elements = 2, .input = {{3, 3}}, .output = {{1, 0}}}), 1, 2).has_value());
  EXPECT_TRUE(prepare({.kind = OperationKind::all_to_all,
                       .input = in(8),
                       .input_counts = {0, 0},
                       .output_counts = {0, 0},
                       .rows = {.elements = 2, .input = {{}}, .output = {{}}}},
                      1, 2)
                  .has_value())
      << "none of them";
}

TEST(PrepareOperation, TakesAPartInPlaceOnlyAtItsPlace) {
  const Operation own{.kind = OperationKind::reduce_scatter, .input = in(6), .output = out(2, 2)};

  EXPECT_TRUE(prepare(own, 1, 3).has_value());
  EXPECT_FALSE(prepare(own, 0, 3).has_value());
}

TEST(GroupOptions, ThatCannotMakeAGroupAreRefused) {
  const GroupOptions good{.job = "job-1", .epoch = {1}, .name = "dp", .members = {{4}, {2}}, .self = {2}};
  EXPECT_EQ(index_of_self(good).value(), 1);

  const auto message = [](GroupOptions options) { return index_of_self(options).error().message; };
  auto stranger = good;
  stranger.self = {3};
  EXPECT_THAT(message(stranger), ::testing::HasSubstr("rank 3 is not among its 2 members"));
  auto twice = good;
  twice.members.push_back({4});
  EXPECT_THAT(message(twice), ::testing::HasSubstr("rank 4 is there twice"));
  auto path = good;
  path.name = "../dp";
  EXPECT_THAT(message(path), ::testing::HasSubstr("found '../dp'"));
}

}  // namespace
}  // namespace troupe::gpu
