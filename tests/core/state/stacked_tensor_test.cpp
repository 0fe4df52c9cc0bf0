#include "core/state/stacked_tensor.hpp"
#include "core/layout/buffer_layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/boxes/integrity.hpp"
#include "core/state/state_parts.hpp"

namespace troupe::core {
namespace {

using testing::HasSubstr;

/// Rank `rank` of `ranks` has `rows` rows of 5 columns, in layer 1 of 3.
ShardedTensor layer_part(std::int64_t rows, std::int64_t rank, std::int64_t ranks, Shape columns = {5}) {
  Shape shape{rows};
  shape.insert(shape.end(), columns.begin(), columns.end());
  const std::vector<RankOffset> offsets{{0, 1, 3}, {1, rank, ranks}};
  return ShardedTensor::from_rank_offsets("fc1", DType::bf16, shape, offsets, {.prepend_axis_num = 1})
      .value();
}

TEST(StackedTensor, SwigluHalvesStandFarApartInOneTensor) {
  const auto parts = stacked_parts(layer_part(8, 1, 4), swiglu_stacking(false)).value();

  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].key, "fc1");
  EXPECT_EQ(parts[0].box(), (Box{{1, 4, 0}, {1, 4, 5}}));
  EXPECT_EQ(parts[1].box(), (Box{{1, 20, 0}, {1, 4, 5}}));
  for (const auto& part : parts) {
    EXPECT_EQ(part.global_shape, (Shape{3, 32, 5}));
    EXPECT_EQ(part.axis_fragmentations, (Shape{3, 8, 1}));
  }
}

TEST(StackedTensor, SwigluHalvesCanHaveKeysOfTheirOwn) {
  const auto parts = stacked_parts(layer_part(8, 1, 4), swiglu_stacking(true)).value();

  EXPECT_EQ(parts[0].key, "fc1_w");
  EXPECT_EQ(parts[1].key, "fc1_v");
  for (const auto& part : parts) {
    EXPECT_EQ(part.global_shape, (Shape{3, 16, 5}));
    EXPECT_EQ(part.box(), (Box{{1, 4, 0}, {1, 4, 5}}));
  }
}

TEST(StackedTensor, QueriesKeysAndValuesAreApart) {
  // Two groups of 3 query heads, a key and a value, of 2 rows each, per rank.
  const auto parts = stacked_parts(layer_part(20, 1, 2), qkv_stacking(3, 2)).value();

  ASSERT_EQ(parts.size(), 6U);
  EXPECT_EQ(parts[0].key, "fc1_q");
  EXPECT_EQ(parts[0].box(), (Box{{1, 12, 0}, {1, 6, 5}}));
  EXPECT_EQ(parts[0].global_shape, (Shape{3, 24, 5}));
  EXPECT_EQ(parts[4].key, "fc1_k");
  EXPECT_EQ(parts[4].box(), (Box{{1, 6, 0}, {1, 2, 5}}));
  EXPECT_EQ(parts[5].key, "fc1_v");
  EXPECT_EQ(parts[5].global_shape, (Shape{3, 8, 5}));
}

TEST(StackedTensor, PartsOfAllRanksMakeUpWholeTensors) {
  for (const auto& rule : {swiglu_stacking(false), swiglu_stacking(true), qkv_stacking(3, 2)}) {
    std::vector<RankShards> ranks(4);
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      const std::vector<RankOffset> offsets{{0, rank, 4}};
      const auto tensor = ShardedTensor::from_rank_offsets("w", DType::f32, {20, 5}, offsets).value();
      ranks[static_cast<std::size_t>(rank)].tensors = stacked_parts(tensor, rule).value();
    }

    EXPECT_TRUE(check_integrity(ranks));
  }
}

TEST(StackedTensor, RowsThatDoNotFitAreRefused) {
  ShardedTensor irregular = layer_part(8, 1, 4);
  irregular.axis_fragmentations.reset();

  EXPECT_THAT(stacked_parts(layer_part(7, 0, 2), swiglu_stacking(false)).error().message,
              HasSubstr("7 rows here, expected an even number"));
  EXPECT_THAT(stacked_parts(layer_part(8, 0, 2), qkv_stacking(3, 2)).error().message,
              HasSubstr("multiple of (3 + 2) heads of 2 rows"));
  EXPECT_FALSE(stacked_parts(layer_part(8, 0, 2), qkv_stacking(0, 2)));
  EXPECT_FALSE(stacked_parts(layer_part(8, 0, 2), qkv_stacking(1, INT64_MAX)));
  EXPECT_THAT(stacked_parts(irregular, swiglu_stacking(false)).error().message, HasSubstr("must be regular"));
  EXPECT_FALSE(
      stacked_parts(ShardedTensor::from_rank_offsets("s", DType::f32, {}).value(), swiglu_stacking(false)));
  EXPECT_FALSE(stacked_parts(layer_part(8, 0, 2), [](const auto&) -> Result<std::vector<StackedPart>> {
    return std::vector<StackedPart>{{.suffix = "", .rows = 7}};
  }));
}

TEST(StackedTensor, AFactoryPutsItsPartsIntoTheMemoryOfTheTensor) {
  const TensorLeaf source{layer_part(8, 1, 4), {.buffer = 3, .begin_bytes = 1000}};
  const StateNode state = StateNode::Map{{"fc1", stacked_factory(source, swiglu_stacking(false))}};

  const auto parts = split_for_load(state).value();
  const auto joined = join_after_load(Value(), parts.sharded, parts).value();

  ASSERT_NE(parts.sharded.as_map()->find("fc1"), nullptr);
  ASSERT_NE(parts.sharded.as_map()->find("fc1")->as_list(), nullptr);
  const auto& halves = *parts.sharded.as_map()->find("fc1")->as_list();
  ASSERT_EQ(halves.size(), 2U);
  for (const auto& half : halves) ASSERT_NE(half.as_tensor(), nullptr);
  EXPECT_EQ(halves[0].as_tensor()->data, source.data);
  EXPECT_EQ(halves[1].as_tensor()->data, (LocalData{.buffer = 3, .begin_bytes = 1000 + 4 * 5 * 2}));
  ASSERT_NE(joined.as_map()->find("fc1"), nullptr);
  ASSERT_NE(joined.as_map()->find("fc1")->as_tensor(), nullptr);
  EXPECT_EQ(*joined.as_map()->find("fc1")->as_tensor(), source);
}

TEST(StackedTensor, ARekeyedFactoryCutsAnotherTensorInTheSameWay) {
  TensorFactory factory = stacked_factory({layer_part(8, 1, 4), {}}, swiglu_stacking(true));

  factory.source.tensor.key = "optimizer.state.exp_avg.fc1";
  factory.source.tensor.dtype = DType::f32;
  const auto built = factory.build(factory.source).value();

  const auto& second = *built.as_list()->at(1).as_tensor();
  EXPECT_EQ(second.tensor.key, "optimizer.state.exp_avg.fc1_v");
  EXPECT_EQ(second.tensor.dtype, DType::f32);
}

TEST(StackedTensor, PartsInOtherMemoryDoNotMerge) {
  const TensorFactory factory = stacked_factory({layer_part(8, 1, 4), {.buffer = 3}}, swiglu_stacking(false));
  const auto error_after = [&](auto alter) {
    StateNode built = factory.build(factory.source).value();
    alter(built);
    const auto result = factory.merge(factory.source, built);
    return result ? "no error" : result.error().message;
  };

  EXPECT_EQ(error_after([](auto&) {}), "no error");
  EXPECT_THAT(error_after([](auto& node) { node.as_list()->at(1).as_tensor()->data.buffer = 4; }),
              HasSubstr("part 1 of 'fc1' does not follow"));
  EXPECT_THAT(error_after([](auto& node) { node.as_list()->pop_back(); }),
              HasSubstr("in 2 parts, found a list of 1"));
  EXPECT_THAT(error_after([](auto& node) { node = Value(1); }), HasSubstr("found a int"));
  EXPECT_THAT(error_after([](auto& node) { node.as_list()->at(0) = Value(1); }),
              HasSubstr("part 0 of 'fc1' is a int"));
}

RC_GTEST_PROP(StackedTensor, FlatRangesOfAllRanksCoverThePartsOnce, ()) {
  const auto data_ranks = *rc::gen::inRange(1, 6);
  const auto rule = *rc::gen::arbitrary<bool>() ? swiglu_stacking(false) : swiglu_stacking(true);
  std::map<std::string, std::vector<Box>> boxes;
  std::map<std::string, Shape> shapes;
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    const std::vector<RankOffset> offsets{{0, rank, 2}};
    const auto tensor = ShardedTensor::from_rank_offsets("w", DType::bf16, {6, 5}, offsets).value();
    const auto parts = stacked_parts(tensor, rule).value();
    for (int shard = 0; shard < data_ranks; ++shard) {
      const ElementRange range = even_part({0, 30}, data_ranks, shard);
      const auto pieces = from_flat_range(parts, range, "m.", DType::f32, {0}).value();
      std::int64_t elements = 0;
      for (const auto& piece : pieces) {
        RC_ASSERT(piece.start == elements);
        elements += elements_of(piece.tensor.local_shape);
        boxes[piece.tensor.key].push_back(piece.tensor.box());
        shapes[piece.tensor.key] = piece.tensor.global_shape;
      }
      RC_ASSERT(elements == range.size());
    }
  }

  for (const auto& [key, shape] : shapes) RC_ASSERT(check_exact_cover(shape, boxes[key]).has_value());
}

TEST(StackedTensor, AFlatRangeBeyondThePartsIsRefused) {
  const auto parts = stacked_parts(layer_part(8, 1, 4), swiglu_stacking(false)).value();

  EXPECT_FALSE(from_flat_range(parts, {0, 41}, "", DType::f32, {0}));
  EXPECT_FALSE(from_flat_range(parts, {-1, 4}, "", DType::f32, {0}));
  EXPECT_FALSE(from_flat_range(parts, {5, 4}, "", DType::f32, {0}));
  EXPECT_TRUE(from_flat_range(parts, {0, 40}, "", DType::f32, {0}));
}

}  // namespace
}  // namespace troupe::core
