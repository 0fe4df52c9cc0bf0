#include "core/boxes/sharded_tensor.hpp"
#include "core/layout/buffer_layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

namespace troupe::core {
namespace {

using testing::HasSubstr;

/// Megatron's example: a part (1, 3, 7, 9), tenth of ten along axis 0 and fourth of six along axis 2.
ShardedTensor example() {
  const std::vector<RankOffset> offsets{{0, 0, 10}, {2, 3, 6}};
  return ShardedTensor::from_rank_offsets("keyA", DType::f32, {1, 3, 7, 9}, offsets).value();
}

std::string refusal(const std::vector<RankOffset>& offsets, std::int64_t prepended = 0) {
  const auto result =
      ShardedTensor::from_rank_offsets("key", DType::f32, {2, 3}, offsets, {.prepend_axis_num = prepended});
  return result ? "no error" : result.error().message;
}

// Covers save-20.
TEST(ShardedTensor, RankOffsetsMakeTheGlobalTensor) {
  const ShardedTensor tensor = example();

  EXPECT_EQ(tensor.global_shape, (Shape{10, 3, 42, 9}));
  EXPECT_EQ(tensor.global_offset, (Shape{0, 0, 21, 0}));
  EXPECT_EQ(tensor.axis_fragmentations, (Shape{10, 1, 6, 1}));
  EXPECT_EQ(tensor.grid_cell(), (Shape{0, 0, 3, 0}));
  EXPECT_EQ(tensor.box(), (Box{{0, 0, 21, 0}, {1, 3, 7, 9}}));
  EXPECT_EQ(tensor.bytes(), 3 * 7 * 9 * 4);
  EXPECT_TRUE(tensor.check());
}

// Covers save-20.
TEST(ShardedTensor, PrependedAxesExistOnlyGlobally) {
  const std::vector<RankOffset> offsets{{0, 2, 4}, {2, 1, 2}};

  const auto tensor =
      ShardedTensor::from_rank_offsets("key", DType::bf16, {5, 80}, offsets, {.prepend_axis_num = 1}).value();

  EXPECT_EQ(tensor.local_shape, (Shape{5, 80}));
  EXPECT_EQ(tensor.global_shape, (Shape{4, 5, 160}));
  EXPECT_EQ(tensor.box(), (Box{{2, 0, 80}, {1, 5, 80}}));
  EXPECT_EQ(tensor.grid_cell(), (Shape{2, 0, 1}));
}

// Covers uneven-5.
TEST(ShardedTensor, ImpossibleRankOffsetsAreRefused) {
  EXPECT_THAT(refusal({{-1, 0, 2}}), HasSubstr("axis -1"));
  EXPECT_THAT(refusal({{2, 0, 2}}), HasSubstr("has 2 axes, found an offset for axis 2"));
  EXPECT_THAT(refusal({{0, -1, 2}}), HasSubstr("piece -1 of 2"));
  EXPECT_THAT(refusal({{0, 2, 2}}), HasSubstr("piece 2 of 2"));
  EXPECT_THAT(refusal({{0, 0, 0}}), HasSubstr("piece 0 of 0"));
  EXPECT_THAT(refusal({{0, 0, std::int64_t{1} << 62}}), HasSubstr("more than 2^62 elements"));
  EXPECT_THAT(refusal({{0, 0, std::int64_t{1} << 31}, {1, 0, std::int64_t{1} << 31}}), HasSubstr("2^62"));
  EXPECT_THAT(refusal({}, -1), HasSubstr("-1 prepended axes"));
  EXPECT_THAT(refusal({}, std::int64_t{1} << 40), HasSubstr("prepended axes"));
  EXPECT_THAT(refusal({{2, 0, 2}}, 1), "no error");
}

// Covers save-21.
TEST(ShardedTensor, FieldsThatContradictEachOtherAreRefused) {
  const auto altered = [](auto alter) {
    ShardedTensor tensor = example();
    alter(tensor);
    const auto result = tensor.check();
    return result ? "no error" : result.error().message;
  };

  EXPECT_THAT(altered([](auto& t) {
                t.local_shape = Shape{1, 2, 7, 9};
              }),
              HasSubstr("do not make up axis 1"));
  EXPECT_THAT(altered([](auto& t) { t.local_shape = Shape{3, 7, 9}; }), HasSubstr("same number of axes"));
  EXPECT_THAT(altered([](auto& t) { t.global_offset = Shape{0, 0, 21}; }), HasSubstr("same number of axes"));
  EXPECT_THAT(altered([](auto& t) { t.global_offset[2] = 20; }),
              HasSubstr("not a multiple of the local extent 7"));
  EXPECT_THAT(altered([](auto& t) { t.global_offset[2] = 42; }), HasSubstr("does not lie in"));
  EXPECT_THAT(altered([](auto& t) { t.global_offset[2] = -7; }), HasSubstr("does not lie in"));
  EXPECT_THAT(altered([](auto& t) {
                t.axis_fragmentations = Shape{10, 1, 6};
              }),
              HasSubstr("fragmentations for 3"));
  EXPECT_THAT(altered([](auto& t) { t.local_shape[0] = -1; }), HasSubstr("negative extent"));
  EXPECT_THAT(altered([](auto& t) { t.key.clear(); }), HasSubstr("empty key"));
  EXPECT_THAT(altered([](auto& t) { t.prepend_axis_num = -1; }), HasSubstr("same number of axes"));
  EXPECT_THAT(altered([](auto& t) {
                t.local_shape = t.global_shape = t.global_offset = Shape{0, 0};
                t.axis_fragmentations = Shape(2, std::int64_t{1} << 40);
              }),
              HasSubstr("2^62"));
  EXPECT_EQ(altered([](auto& t) {
              t.axis_fragmentations.reset();
              t.global_offset[2] = 20;
            }),
            "no error");
}

// Covers save-22.
TEST(ShardedTensor, NarrowingShrinksTheGlobalTensorInProportion) {
  const auto second = example().narrow(1, 1, 2).value();
  const auto third = example().narrow(2, 3, 2).value();

  EXPECT_EQ(second.local_shape, (Shape{1, 2, 7, 9}));
  EXPECT_EQ(second.global_shape, (Shape{10, 2, 42, 9}));
  EXPECT_EQ(second.global_offset, (Shape{0, 0, 21, 0}));
  EXPECT_EQ(third.local_shape, (Shape{1, 3, 2, 9}));
  EXPECT_EQ(third.global_shape, (Shape{10, 3, 12, 9}));
  EXPECT_EQ(third.global_offset, (Shape{0, 0, 6, 0}));
  EXPECT_TRUE(second.check() && third.check());
}

// Covers save-22.
TEST(ShardedTensor, NarrowingBeyondTheLocalExtentIsRefused) {
  ShardedTensor irregular = example();
  irregular.axis_fragmentations.reset();

  EXPECT_THAT(irregular.narrow(1, 1, 2).error().message, HasSubstr("irregular"));
  EXPECT_FALSE(example().narrow(1, 2, 2));
  EXPECT_FALSE(example().narrow(4, 0, 1));
  EXPECT_FALSE(example().narrow(1, 0, 0));
  EXPECT_FALSE(example().narrow(1, INT64_MAX, 2));
}

// Covers save-24.
TEST(ShardedTensor, OnlyAReplicaOfZerosIsMain) {
  const std::vector<ReplicaId> mains{{0}, {0, 0}, {0, 0, 0}};
  const std::vector<ReplicaId> copies{{1}, {2}, {1, 0}, {0, 1}, {1, 1, 1}};

  for (const auto& main : mains) EXPECT_TRUE(is_main_replica(main));
  for (const auto& copy : copies) EXPECT_FALSE(is_main_replica(copy));
}

// Covers uneven-2.
TEST(FlatRange, BecomesBoxesOfTheGlobalTensor) {
  const std::vector<RankOffset> offsets{{0, 5, 8}, {1, 1, 2}};
  const auto parameter =
      ShardedTensor::from_rank_offsets("w", DType::bf16, {4, 10}, offsets, {.prepend_axis_num = 1}).value();

  const auto parts = from_flat_range(parameter, {7, 32}, "optimizer.w", DType::f32, {0, 0, 3}).value();

  // Elements 7..9 of row 0, rows 1 and 2, elements 0 and 1 of row 3; the rows begin at 4.
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].tensor.box(), (Box{{5, 4, 7}, {1, 1, 3}}));
  EXPECT_EQ(parts[1].tensor.box(), (Box{{5, 5, 0}, {1, 2, 10}}));
  EXPECT_EQ(parts[2].tensor.box(), (Box{{5, 7, 0}, {1, 1, 2}}));
  EXPECT_EQ(parts[1].start, 3);
  EXPECT_EQ(parts[2].start, 23);
  for (const auto& part : parts) {
    EXPECT_TRUE(part.tensor.check());
    EXPECT_EQ(part.tensor.key, "optimizer.w");
    EXPECT_EQ(part.tensor.dtype, DType::f32);
    EXPECT_EQ(part.tensor.global_shape, (Shape{8, 8, 10}));
    EXPECT_EQ(part.tensor.replica_id, (ReplicaId{0, 0, 3}));
    EXPECT_FALSE(part.tensor.is_regular());
  }
}

// Covers uneven-5.
TEST(FlatRange, OutsideOfTheParameterIsRefused) {
  const auto parameter = ShardedTensor::from_rank_offsets("w", DType::f32, {4, 10}).value();

  EXPECT_FALSE(from_flat_range(parameter, {0, 41}, "s", DType::f32, {0}));
  EXPECT_FALSE(from_flat_range(parameter, {-1, 3}, "s", DType::f32, {0}));
  EXPECT_FALSE(from_flat_range(parameter, {5, 4}, "s", DType::f32, {0}));
  EXPECT_TRUE(from_flat_range(parameter, {40, 40}, "s", DType::f32, {0}).value().empty());
}

// Covers uneven-7.
RC_GTEST_PROP(FlatRange, TheShardsOfAllRanksCoverTheTensorOnce, ()) {
  const auto tensor_ranks = *rc::gen::inRange<std::int64_t>(1, 4);
  const auto data_ranks = *rc::gen::inRange(1, 6);
  const Shape shape{*rc::gen::inRange<std::int64_t>(1, 5), *rc::gen::inRange<std::int64_t>(1, 5),
                    *rc::gen::inRange<std::int64_t>(1, 5)};
  const auto axis = *rc::gen::inRange<std::int64_t>(0, 4);

  std::vector<Box> boxes;
  Shape global;
  for (std::int64_t rank = 0; rank < tensor_ranks; ++rank) {
    const std::vector<RankOffset> offsets{{axis, rank, tensor_ranks}};
    const auto parameter =
        ShardedTensor::from_rank_offsets("w", DType::f32, shape, offsets, {.prepend_axis_num = 1}).value();
    global = parameter.global_shape;
    for (int shard = 0; shard < data_ranks; ++shard) {
      const auto range = even_part({0, elements_of(shape)}, data_ranks, shard);
      std::int64_t elements = 0;
      const auto parts = from_flat_range(parameter, range, "s", DType::f32, {0}).value();
      for (const auto& part : parts) {
        RC_ASSERT(part.start == elements);
        elements += elements_of(part.tensor.local_shape);
        boxes.push_back(part.tensor.box());
      }
      RC_ASSERT(elements == range.size());
    }
  }

  RC_ASSERT(check_exact_cover(global, boxes).has_value());
}

// Covers stored-17.
TEST(ShardedObject, HasAUniqueKeyAndTheWayBack) {
  const ShardedObject common{.key = "common_state"};
  const ShardedObject cell{.key = "ObjB", .global_shape = {1, 8}, .global_offset = {0, 3}};

  EXPECT_EQ(common.unique_key(), "common_state/shard_0_1");
  EXPECT_EQ(cell.unique_key(), "ObjB/shard_0.3_1.8");
  EXPECT_EQ(ShardedObject::from_unique_key("common_state/shard_0_1").value(), common);
  EXPECT_EQ(ShardedObject::from_unique_key("ObjB/shard_0.3_1.8").value(), cell);
}

TEST(ShardedObject, AnOldNameWithoutGridHasUnknownExtents) {
  const auto object = ShardedObject::from_unique_key("rng_state/shard_2.1").value();

  EXPECT_EQ(object.global_offset, (Shape{2, 1}));
  EXPECT_EQ(object.global_shape, (Shape{-1, -1}));
}

TEST(ShardedObject, OtherNamesAreRefused) {
  for (const auto* name :
       {"", "key", "/shard_0_1", "a/b/shard_0_1", "a/part_0_1", "a/shard_", "a/shard_x_1", "a/shard_0._1",
        "a/shard_.0_1", "a/shard_0_1_2", "a/shard_1_1", "a/shard_-1_1", "a/shard_00_1", "a/shard_-0_1",
        "a/shard_0_1.", "a/shard_-1", "a/shard_0_1.1", "a/shard_0_99999999999999999999", "a/shard_0_-1"}) {
    const auto object = ShardedObject::from_unique_key(name);

    ASSERT_FALSE(object) << name;
    EXPECT_EQ(object.error().code, Errc::corrupt);
  }
}

RC_GTEST_PROP(ShardedObject, TakesTheNameThatItMakes, ()) {
  const auto place =
      *rc::gen::container<std::string>(rc::gen::element('0', '1', '2', '.', '_', '-', '/', 'a'));

  const auto object = ShardedObject::from_unique_key("key/shard_" + place);

  if (!object) return;
  const std::string name = object->unique_key();
  const bool is_old = place.find('_') == std::string::npos;
  RC_ASSERT((is_old ? name.substr(0, name.rfind('_')) : name) == "key/shard_" + place);
}

TEST(ShardedObject, RefusesKeysWithSlashesAndCellsOutsideTheGrid) {
  EXPECT_TRUE((ShardedObject{.key = "a", .global_shape = {2, 3}, .global_offset = {1, 2}}.check()));
  EXPECT_FALSE((ShardedObject{.key = "a/b"}.check()));
  EXPECT_FALSE((ShardedObject{.key = "a", .global_shape = {2, 3}, .global_offset = {2, 2}}.check()));
  EXPECT_FALSE((ShardedObject{.key = "a", .global_shape = {2, 3}, .global_offset = {1}}.check()));
}

}  // namespace
}  // namespace troupe::core
