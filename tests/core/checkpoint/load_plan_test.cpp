#include "core/checkpoint/load_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/core/checkpoint/saved_job.hpp"

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A checkpoint of one tensor, one rank a box.
SavedJob saved_as(const Tensor& tensor, const std::vector<Box>& boxes,
                  const std::function<Bytes(const Tensor&)>& content = content_of) {
  std::vector<SaveStructure> structures;
  for (const auto& box : boxes) structures.push_back({{tensor}, {{0, box}}});
  return save(structures, plan_save(views_of(structures)).value(), content);
}

Bytes counting(const Tensor& tensor) {
  Bytes bytes(static_cast<std::size_t>(elements_of(tensor.shape)));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

std::vector<int> numbers(const Bytes& bytes) {
  std::vector<int> values;
  for (auto byte : bytes) values.push_back(std::to_integer<int>(byte));
  return values;
}

/// What the ranks of another job of the same tensors want.
std::vector<LoadTarget> targets_of(const std::vector<SaveStructure>& structures) {
  std::vector<LoadTarget> targets;
  for (const auto& structure : structures) {
    for (const auto& piece : structure.pieces) {
      const auto& tensor = structure.tensors[piece.tensor];
      targets.push_back({tensor.key, tensor.dtype, tensor.shape, piece.box, false});
    }
  }
  return targets;
}

std::string refusal(const SavedJob& saved, const LoadTarget& target, Errc code) {
  const auto plan = plan_load(saved.manifest, std::vector{target});
  if (plan) return "no error";
  EXPECT_EQ(plan.error().code, code);
  return plan.error().message;
}

// Covers uneven-1, uneven-3, uneven-4, save-9, stored-5.
RC_GTEST_PROP(LoadPlan, GathersTheRightElementsForAnyOtherSplit, ()) {
  const auto job = any_job();
  const auto saved = save(job.structures, plan_save(views_of(job.structures)).value());
  std::vector<SaveStructure> readers(static_cast<std::size_t>(between(1, 6)));
  for (const auto& tensor : job.tensors) share(tensor, readers);
  const auto targets = targets_of(readers);

  const auto plan = plan_load(saved.manifest, targets).value();

  const auto loaded = load(saved, plan, targets);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const Tensor tensor{targets[i].key, targets[i].dtype, targets[i].shape};
    RC_ASSERT(loaded[i] == part_of(content_of(tensor), tensor.shape, targets[i].box, size_of(tensor.dtype)));
  }
  RC_ASSERT(plan.zero.empty());
}

RC_GTEST_PROP(LoadPlan, ReadsEveryShardOnceInByteOrder, ()) {
  const auto job = any_job();
  const auto saved = save(job.structures, plan_save(views_of(job.structures)).value());
  std::vector<LoadTarget> targets;
  for (const auto& tensor : job.tensors)
    targets.insert(targets.end(), 2,
                   {tensor.key, tensor.dtype, tensor.shape, Box::whole(tensor.shape), false});

  const auto plan = plan_load(saved.manifest, targets).value();

  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < plan.reads.size(); ++i) {
    const auto& read = plan.reads[i];
    bytes += read.shard->bytes();
    RC_ASSERT(read.copies.size() == 2U);
    if (i == 0) continue;
    const auto& before = *plan.reads[i - 1].shard;
    RC_ASSERT(std::pair(before.file, before.begin) < std::pair(read.shard->file, read.shard->begin));
  }
  RC_ASSERT(plan.bytes == bytes);
  RC_ASSERT(bytes == saved.manifest.tensor_bytes());
}

// Covers stored-2.
TEST(LoadPlan, TouchesOnlyTheShardsThatAreWanted) {
  const auto saved = saved_as({"w", DType::u8, {4, 4}}, {{{0, 0}, {2, 4}}, {{2, 0}, {2, 4}}});
  const std::vector<LoadTarget> targets{{"w", DType::u8, {4, 4}, {{3, 1}, {1, 2}}, false}};

  const auto plan = plan_load(saved.manifest, targets).value();

  ASSERT_EQ(plan.reads.size(), 1U);
  EXPECT_EQ(plan.reads[0].shard->box, (Box{{2, 0}, {2, 4}}));
  ASSERT_EQ(plan.reads[0].copies.size(), 1U);
  EXPECT_EQ(plan.reads[0].copies[0].region, (Box{{3, 1}, {1, 2}}));
  EXPECT_EQ(plan.bytes, 8U);
}

// Covers stored-10.
TEST(LoadPlan, DropsColumnsOfALargerStoredTensor) {
  const auto saved = saved_as({"w", DType::u8, {2, 32}}, {Box::whole({2, 32})}, counting);
  std::vector<LoadTarget> targets;
  for (std::int64_t piece = 0; piece < 4; ++piece)
    targets.push_back({"w", DType::u8, {2, 28}, {{0, 7 * piece}, {2, 7}}, true});

  const auto loaded = load(saved, plan_load(saved.manifest, targets).value(), targets);

  for (int piece = 0; piece < 4; ++piece) {
    std::vector<int> expected;
    for (int row : {0, 32}) {
      for (int column = 0; column < 7; ++column) expected.push_back(row + 7 * piece + column);
    }
    EXPECT_EQ(numbers(loaded[static_cast<std::size_t>(piece)]), expected);
  }
}

// Covers stored-10.
TEST(LoadPlan, ZeroesColumnsThatASmallerStoredTensorHasNot) {
  const auto saved = saved_as({"w", DType::u8, {2, 32}}, {{{0, 0}, {1, 32}}, {{1, 0}, {1, 32}}}, counting);
  std::vector<LoadTarget> targets;
  for (std::int64_t piece = 0; piece < 4; ++piece)
    targets.push_back({"w", DType::u8, {2, 36}, {{0, 9 * piece}, {2, 9}}, true});

  const auto plan = plan_load(saved.manifest, targets).value();
  const auto loaded = load(saved, plan, targets);

  EXPECT_THAT(plan.zero, ElementsAre(3));
  EXPECT_EQ(numbers(loaded[3]),
            (std::vector<int>{27, 28, 29, 30, 31, 0, 0, 0, 0, 59, 60, 61, 62, 63, 0, 0, 0, 0}));
}

TEST(LoadPlan, ZeroesATargetBeyondTheStoredTensor) {
  const auto saved = saved_as({"w", DType::u8, {2}}, {Box::whole({2})}, counting);
  const std::vector<LoadTarget> targets{{"w", DType::u8, {4}, {{2}, {2}}, true}};

  const auto plan = plan_load(saved.manifest, targets).value();

  EXPECT_THAT(plan.reads, IsEmpty());
  EXPECT_EQ(numbers(load(saved, plan, targets)[0]), (std::vector<int>{0, 0}));
}

// Covers stored-12.
TEST(LoadPlan, TakesEmptyTargetsAndTensorsWithoutElements) {
  const auto full = saved_as({"w", DType::u8, {2}}, {Box::whole({2})});
  const auto none = saved_as({"w", DType::u8, {0, 3}}, {Box::whole({0, 3})});

  const auto empty_part =
      plan_load(full.manifest, std::vector<LoadTarget>{{"w", DType::u8, {2}, {{2}, {0}}, false}});
  const auto empty_tensor =
      plan_load(none.manifest, std::vector<LoadTarget>{{"w", DType::u8, {0, 3}, Box::whole({0, 3}), false}});

  ASSERT_TRUE(empty_part.has_value());
  EXPECT_THAT(empty_part->reads, IsEmpty());
  EXPECT_THAT(empty_part->zero, IsEmpty());
  ASSERT_TRUE(empty_tensor.has_value());
  EXPECT_THAT(empty_tensor->reads, IsEmpty());
}

// Covers stored-8.
TEST(LoadPlan, NamesTheKeyThatTheCheckpointDoesNotHave) {
  const auto saved = saved_as({"w", DType::u8, {2}}, {Box::whole({2})});

  EXPECT_EQ(refusal(saved, {"v", DType::u8, {2}, Box::whole({2}), false}, Errc::not_found),
            "the checkpoint has no tensor 'v'");
  EXPECT_EQ(refusal(saved, {"ww", DType::u8, {2}, Box::whole({2}), true}, Errc::not_found),
            "the checkpoint has no tensor 'ww'");
}

// Covers stored-10.
TEST(LoadPlan, NamesBothShapesOfATensorThatDiffers) {
  const auto saved = saved_as({"w", DType::u8, {2, 3}}, {Box::whole({2, 3})});

  EXPECT_EQ(refusal(saved, {"w", DType::u8, {2, 4}, Box::whole({2, 4}), false}, Errc::mismatch),
            "Global shape mismatch of 'w': the checkpoint has (2, 3), (2, 4) is wanted");
  EXPECT_EQ(refusal(saved, {"w", DType::u8, {6}, Box::whole({6}), true}, Errc::mismatch),
            "Global shape mismatch of 'w': the checkpoint has (2, 3), (6) is wanted");
}

TEST(LoadPlan, RefusesAPartThatLeavesItsTensor) {
  const auto saved = saved_as({"w", DType::u8, {2}}, {Box::whole({2})});

  EXPECT_EQ(refusal(saved, {"w", DType::u8, {2}, {{1}, {2}}, false}, Errc::invalid_argument),
            "the part [1:3] of 'w' does not lie in its shape (2)");
  EXPECT_EQ(refusal(saved, {"w", DType::u8, {2}, {{0, 0}, {2, 1}}, true}, Errc::invalid_argument),
            "the part [0:2, 0:1] of 'w' does not lie in its shape (2)");
  const Shape endless{std::int64_t{1} << 40, std::int64_t{1} << 40};
  EXPECT_THAT(refusal(saved, {"w", DType::u8, endless, Box::whole(endless), true}, Errc::invalid_argument),
              HasSubstr("more than 2^62 elements"));
}

}  // namespace
}  // namespace troupe::core
