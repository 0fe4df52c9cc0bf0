#include "core/checkpoint/shared_load.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "tests/core/checkpoint/saved_job.hpp"

namespace troupe::core {
namespace {

using testing::ElementsAre;
using Part = SharedRead::Part;

std::vector<LoadTarget> targets_of(const SaveStructure& structure) {
  std::vector<LoadTarget> targets;
  for (const auto& piece : structure.pieces) {
    const auto& tensor = structure.tensors[piece.tensor];
    targets.push_back({tensor.key, tensor.dtype, tensor.shape, piece.box, false});
  }
  return targets;
}

/// Tensors "a" and "b" of eight bytes, each saved in two halves by two ranks.
SavedJob two_tensors() {
  std::vector<SaveStructure> structures;
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    const Box half{{4 * rank}, {4}};
    structures.push_back({{{"a", DType::u8, {8}}, {"b", DType::u8, {8}}}, {{0, half}, {1, half}}});
  }
  return save(structures, plan_save(views_of(structures)).value());
}

LoadTarget target(const char* key, std::int64_t begin, std::int64_t end) {
  return {key, DType::u8, {8}, {{begin}, {end - begin}}, false};
}

/// What is needed and touched in the way that every rank reads for itself.
struct Need {
  std::map<const ManifestShard*, std::vector<std::uint32_t>> ranks;
  std::vector<std::uint64_t> bytes;
};

Need need_of(const Manifest& manifest, const SharedTargets& targets) {
  Need need;
  for (std::uint32_t rank = 0; rank < targets.own.size(); ++rank) {
    auto all = targets.common;
    all.insert(all.end(), targets.own[rank].begin(), targets.own[rank].end());
    const auto plan = plan_load(manifest, all).value();
    for (const auto& read : plan.reads) need.ranks[read.shard].push_back(rank);
    need.bytes.push_back(plan.bytes);
  }
  return need;
}

// Covers save-13, save-15.
RC_GTEST_PROP(SharedLoad, ReadsEveryShardOnceForAllThatNeedIt, ()) {
  const auto job = any_job();
  const auto saved = save(job.structures, plan_save(views_of(job.structures)).value());
  const auto ranks = static_cast<std::size_t>(between(1, 6));
  std::vector<SaveStructure> readers(ranks);
  SharedTargets targets;
  targets.own.resize(ranks);
  for (const auto& tensor : job.tensors) {
    if (*rc::gen::arbitrary<bool>()) share(tensor, readers);
    if (*rc::gen::arbitrary<bool>())
      targets.common.push_back({tensor.key, tensor.dtype, tensor.shape, Box::whole(tensor.shape), false});
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) targets.own[rank] = targets_of(readers[rank]);

  const auto plan = plan_shared_load(saved.manifest, targets).value();

  const auto need = need_of(saved.manifest, targets);
  RC_ASSERT(plan.reads.size() == need.ranks.size());
  LoadBytes bytes;
  std::vector<std::uint64_t> assigned(ranks), sent(ranks), received(ranks);
  for (const auto& read : plan.reads) {
    const auto& holders = need.ranks.at(read.shard);
    RC_ASSERT(std::count(holders.begin(), holders.end(), read.reader) == 1);
    RC_ASSERT(holders.size() == (read.for_all ? ranks : read.parts.size()));
    bytes.distinct += read.shard->bytes();
    assigned[read.reader] += read.shard->bytes();
    for (std::size_t i = 0; i < holders.size(); ++i) {
      const auto& part = read.parts[read.for_all ? 0 : i];
      if (!read.for_all) RC_ASSERT(part.rank == holders[i]);
      RC_ASSERT(part.begin < part.end);
      RC_ASSERT(part.end <= read.shard->bytes());
      if (holders[i] == read.reader) continue;
      received[holders[i]] += part.end - part.begin;
      sent[read.reader] += part.end - part.begin;
    }
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    bytes.needed += need.bytes[rank];
    bytes.most_needed = std::max(bytes.most_needed, need.bytes[rank]);
    bytes.most_assigned = std::max(bytes.most_assigned, assigned[rank]);
    bytes.most_moved = std::max({bytes.most_moved, sent[rank], received[rank]});
  }
  RC_ASSERT(plan.bytes == bytes);
}

// Covers save-13.
TEST(SharedLoad, DividesAShardThatTwoNeedBetweenThem) {
  const auto saved = two_tensors();
  const SharedTargets targets{{target("b", 0, 8)}, {{target("a", 0, 2)}, {target("a", 2, 8)}}};

  const auto plan = plan_shared_load(saved.manifest, targets).value();

  ASSERT_EQ(plan.reads.size(), 4u);
  std::map<std::pair<std::string, std::int64_t>, const SharedRead*> reads;
  for (const auto& read : plan.reads) reads[{read.tensor->key, read.shard->box.offset[0]}] = &read;
  EXPECT_THAT((reads[{"a", 0}]->parts), ElementsAre(Part{0, 0, 2}, Part{1, 2, 4}));
  EXPECT_THAT((reads[{"a", 4}]->parts), ElementsAre(Part{1, 0, 4}));
  EXPECT_TRUE((reads[{"b", 0}]->for_all && reads[{"b", 4}]->for_all));
  // The one that only rank 1 needs comes first; the others go where there is less.
  EXPECT_EQ((reads[{"a", 4}]->reader), 1u);
  EXPECT_EQ((reads[{"a", 0}]->reader), 0u);
  EXPECT_EQ((reads[{"b", 0}]->reader), 0u);
  EXPECT_EQ((reads[{"b", 4}]->reader), 1u);
  EXPECT_EQ(plan.bytes, (LoadBytes{28, 16, 16, 8, 6}));
}

TEST(SharedLoad, PlansOfOtherLoadsHaveOtherHashes) {
  const auto saved = two_tensors();
  const auto hash = [&](const SharedTargets& targets) {
    return hash_of(plan_shared_load(saved.manifest, targets).value());
  };
  const SharedTargets targets{{target("b", 0, 8)}, {{target("a", 0, 2)}, {target("a", 2, 8)}}};

  EXPECT_EQ(hash(targets), hash(targets));
  EXPECT_NE(hash(targets), hash({{target("b", 0, 8)}, {{target("a", 0, 3)}, {target("a", 2, 8)}}}));
  EXPECT_NE(hash(targets), hash({{target("b", 0, 8)}, {{target("a", 0, 2)}, {}}}));
  EXPECT_NE(hash(targets), hash({{}, {{target("a", 0, 2)}, {target("a", 2, 8)}}}));
}

TEST(SharedLoad, AnUnknownTensorIsRefused) {
  const auto saved = two_tensors();

  const auto plan = plan_shared_load(saved.manifest, {{}, {{}, {target("c", 0, 8)}}});

  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Errc::not_found);
}

/// Gigabytes at gigabytes a second.
LoadBytes gigabytes(std::uint64_t needed, std::uint64_t most_needed, std::uint64_t distinct,
                    std::uint64_t most_assigned, std::uint64_t most_moved) {
  constexpr std::uint64_t kGiga = 1'000'000'000;
  return {needed * kGiga, most_needed * kGiga, distinct * kGiga, most_assigned * kGiga, most_moved * kGiga};
}

TEST(LoadMode, FollowsTheStatedRule) {
  struct Row {
    LoadBytes bytes;
    LoadCosts costs;
    double read;
    double exchange;
    LoadMode chosen;
  };
  const std::vector<Row> rows{
      // Eight ranks want the same 8 GB: of a store that gives 4 GB/s to all of them, and of one that is as
      // fast as they are.
      {gigabytes(64, 8, 8, 1, 7), {2e9, 4e9, 2e9}, 16, 2 + 3.5, LoadMode::exchange},
      {gigabytes(64, 8, 8, 1, 7), {2e9, 64e9, 2e9}, 4, 0.5 + 3.5, LoadMode::read},
      {gigabytes(64, 8, 8, 1, 7), {2e9, 64e9, 4e9}, 4, 0.5 + 1.75, LoadMode::exchange},
      {gigabytes(64, 8, 8, 1, 7), {2e9, 4e9, 0.5e9}, 16, 2 + 14, LoadMode::read},
      // A slow rank is what counts when the storage is fast.
      {gigabytes(4, 2, 2, 1, 1), {1e9, 100e9, 2e9}, 2, 1 + 0.5, LoadMode::exchange},
      // Nothing in common: nothing to exchange.
      {gigabytes(8, 4, 8, 4, 0), {1e9, 1e9, 1e9}, 8, 8, LoadMode::read},
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    const auto& [bytes, costs, read, exchange, chosen] = rows[i];

    EXPECT_DOUBLE_EQ(seconds_of(LoadMode::read, bytes, costs), read);
    EXPECT_DOUBLE_EQ(seconds_of(LoadMode::exchange, bytes, costs), exchange);
    EXPECT_EQ(choose_load(LoadMode::automatic, bytes, costs), chosen);
    EXPECT_EQ(choose_load(LoadMode::read, bytes, costs), LoadMode::read);
    EXPECT_EQ(choose_load(LoadMode::exchange, bytes, costs),
              bytes.most_moved == 0 ? LoadMode::read : LoadMode::exchange);
  }
}

}  // namespace
}  // namespace troupe::core
