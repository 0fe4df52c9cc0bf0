#include "core/checkpoint/save_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <set>

#include "core/checkpoint/safetensors.hpp"
#include "tests/core/checkpoint/saved_job.hpp"

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void give(SaveStructure& structure, const Tensor& tensor, const std::vector<Box>& boxes) {
  const auto number = static_cast<std::uint32_t>(structure.tensors.size());
  structure.tensors.push_back(tensor);
  for (const auto& box : boxes) structure.pieces.push_back({number, box});
}

SaveStructure holding(const Tensor& tensor, const std::vector<Box>& boxes) {
  SaveStructure structure;
  give(structure, tensor, boxes);
  return structure;
}

std::string refusal_of_plan(const std::vector<SaveStructure>& structures) {
  const auto plan = plan_save(views_of(structures));
  return plan ? "no error" : plan.error().message;
}

/// "key[offset]" of everything that each rank writes.
std::vector<std::vector<std::string>> written_by_rank(const std::vector<SaveStructure>& structures) {
  const auto plan = plan_save(views_of(structures)).value();
  std::vector<std::vector<std::string>> names(structures.size());
  for (std::size_t rank = 0; rank < structures.size(); ++rank) {
    for (auto index : plan.assigned[rank]) {
      const auto& piece = structures[rank].pieces[index];
      const auto& key = structures[rank].tensors[piece.tensor].key;
      names[rank].push_back(piece.box.offset == Shape{0} ? key : key + to_string(piece.box.offset));
    }
  }
  return names;
}

Box row(std::int64_t offset, std::int64_t extent) {
  return {{offset}, {extent}};
}

// Covers save-10.
TEST(SavePlan, DistributesOverTheWorldAsMegatronDoes) {
  std::vector<SaveStructure> structures(8);
  for (std::int64_t rank = 0; rank < 8; ++rank) {
    auto& structure = structures[static_cast<std::size_t>(rank)];
    const std::int64_t tp = rank % 2;
    give(structure, {"repl1", DType::f32, {20}}, {row(10 * tp, 10)});
    give(structure, {"repl2", DType::f32, {20}}, {row(10 * tp, 10)});
    give(structure, {"B", DType::f32, {160}}, {row(20 * rank, 20)});
    for (const auto& [key, elements] : {std::pair{"C", 100}, {"D", 1000}, {"E", 100}})
      give(structure, {key, DType::f32, {elements}}, {row(0, elements)});
  }

  const auto written = written_by_rank(structures);

  EXPECT_THAT(written, ElementsAre(ElementsAre("repl1", "B"), ElementsAre("repl1(10)", "B(20)"),
                                   ElementsAre("repl2", "B(40)"), ElementsAre("repl2(10)", "B(60)"),
                                   ElementsAre("B(80)", "D"), ElementsAre("B(100)", "C"),
                                   ElementsAre("B(120)", "E"), ElementsAre("B(140)")));
}

// Covers save-10.
TEST(SavePlan, DistributesOverADataParallelGroupAsMegatronDoes) {
  std::vector<SaveStructure> first(4);
  std::vector<SaveStructure> second(4);
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    for (auto* group : {&first, &second}) {
      auto& structure = (*group)[static_cast<std::size_t>(rank)];
      give(structure, {"repl1", DType::f32, {10}}, {row(0, 10)});
      give(structure, {"repl2", DType::f32, {10}}, {row(0, 10)});
      give(structure, {"B", DType::f32, {80}}, {row(20 * rank, 20)});
    }
    for (const auto& [key, elements] : {std::pair{"C", 100}, {"D", 1000}, {"E", 100}})
      give(first[static_cast<std::size_t>(rank)], {key, DType::f32, {elements}}, {row(0, elements)});
  }

  EXPECT_THAT(written_by_rank(first),
              ElementsAre(ElementsAre("B", "D"), ElementsAre("B(20)", "C"), ElementsAre("B(40)", "E"),
                          ElementsAre("repl1", "repl2", "B(60)")));
  EXPECT_THAT(written_by_rank(second), ElementsAre(ElementsAre("repl1", "B"), ElementsAre("repl2", "B(20)"),
                                                   ElementsAre("B(40)"), ElementsAre("B(60)")));
}

TEST(SavePlan, GivesSharedTensorsToTheRankWithNothingElse) {
  std::vector<SaveStructure> structures(8);
  for (auto& structure : structures) give(structure, {"c", DType::f32, {10}}, {row(0, 10)});
  give(structures[0], {"a", DType::f32, {10}}, {row(0, 10)});
  give(structures[1], {"b", DType::f32, {10}}, {row(0, 10)});

  const auto written = written_by_rank(structures);

  EXPECT_THAT(written, ElementsAre(ElementsAre("a"), ElementsAre("b"), ElementsAre("c"), IsEmpty(), IsEmpty(),
                                   IsEmpty(), IsEmpty(), IsEmpty()));
}

TEST(SavePlan, IsTheSameForSharedAndEqualStructures) {
  std::vector<SaveStructure> equal(4);
  for (auto& structure : equal) {
    for (int i = 0; i < 9; ++i) give(structure, {std::to_string(i), DType::f32, {10 + i}}, {row(0, 10 + i)});
  }
  const std::vector<const SaveStructure*> shared(4, &equal[0]);

  const auto apart = plan_save(views_of(equal)).value();
  const auto together = plan_save(shared).value();

  EXPECT_EQ(apart.assigned, together.assigned);
  EXPECT_EQ(apart.bytes, 4U * (10 + 11 + 12 + 13 + 14 + 15 + 16 + 17 + 18));
  EXPECT_EQ(together.bytes, apart.bytes);
}

TEST(SavePlan, CountsARankThatHasABoxTwiceOnce) {
  const Tensor twice{"twice", DType::u8, {10}};
  const Tensor shared{"shared", DType::u8, {20}};
  std::vector<SaveStructure> structures{holding(twice, {row(0, 10), row(0, 10)}),
                                        holding(shared, {row(0, 20)})};
  give(structures[0], shared, {row(0, 20)});

  const auto plan = plan_save(views_of(structures)).value();

  EXPECT_THAT(plan.assigned, ElementsAre(ElementsAre(0), ElementsAre(0)));
}

TEST(SavePlan, NamesATensorThatTwoRanksTypeDifferently) {
  const auto refused = plan_save(views_of(
      {holding({"w", DType::f32, {4}}, {row(0, 2)}), holding({"w", DType::bf16, {4}}, {row(2, 2)})}));

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::mismatch);
  EXPECT_EQ(refused.error().message,
            "tensor 'w' is f32 of shape (4) on rank 0 and bf16 of shape (4) on rank 1; give it one form");
}

TEST(SavePlan, NamesATensorThatTwoRanksShapeDifferently) {
  EXPECT_EQ(refusal_of_plan(
                {{}, holding({"w", DType::f32, {4}}, {row(0, 4)}), holding({"w", DType::f32, {4, 1}}, {})}),
            "tensor 'w' is f32 of shape (4) on rank 1 and f32 of shape (4, 1) on rank 2; give it one form");
}

TEST(SavePlan, NamesATensorWithAHole) {
  EXPECT_EQ(
      refusal_of_plan(
          {holding({"w", DType::f32, {9}}, {row(0, 4)}), holding({"w", DType::f32, {9}}, {row(5, 4)})}),
      "tensor 'w': Invalid access pattern: 8 of 9 elements of a tensor of shape (9) are covered by 2 boxes");
}

TEST(SavePlan, NamesATensorWhosePiecesOverlap) {
  EXPECT_EQ(refusal_of_plan(
                {holding({"w", DType::f32, {9}}, {row(0, 5)}), holding({"w", DType::f32, {9}}, {row(4, 5)})}),
            "tensor 'w': Invalid access pattern: [0:5] and [4:9] of a tensor of shape (9) overlap");
}

TEST(SavePlan, NamesATensorWhosePieceLeavesIt) {
  EXPECT_EQ(refusal_of_plan({holding({"w", DType::f32, {9}}, {row(0, 10)})}),
            "tensor 'w': Invalid access pattern: [0:10] does not lie in a tensor of shape (9)");
}

TEST(SavePlan, RefusesNamesThatFilesCannotHold) {
  EXPECT_THAT(refusal_of_plan({holding({"__metadata__", DType::f32, {1}}, {row(0, 1)})}),
              HasSubstr("no tensor can have the name '__metadata__'"));
  EXPECT_THAT(refusal_of_plan({holding({"a\xff", DType::f32, {1}}, {row(0, 1)})}),
              HasSubstr("is not UTF-8: \"a\\xff\""));
}

TEST(SavePlan, RefusesATensorThatARankListsTwice) {
  auto structure = holding({"w", DType::f32, {4}}, {row(0, 2)});
  give(structure, {"w", DType::f32, {4}}, {row(2, 2)});

  EXPECT_EQ(refusal_of_plan({{}, structure}),
            "rank 1 lists tensor 'w' twice; list it once, with all its pieces");
}

TEST(SavePlan, RefusesTensorsWhoseBytesCannotBeCounted) {
  const std::int64_t many = std::int64_t{1} << 61;

  EXPECT_THAT(refusal_of_plan({holding({"w", DType::f32, {many}}, {row(0, many)})}), HasSubstr("2^63 bytes"));
  EXPECT_THAT(refusal_of_plan({holding({"w", DType::f32, Shape(65, 1)}, {Box::whole(Shape(65, 1))})}),
              HasSubstr("more than 64 axes"));
  EXPECT_THAT(refusal_of_plan({holding({"w", DType::f32, {-1}}, {})}), HasSubstr("negative extent"));
}

TEST(SavePlan, RefusesATensorWithTwoHomes) {
  const auto at = [](std::uint32_t home) {
    auto structure = holding({"w", DType::f32, {4}}, {row(0, 4)});
    structure.tensors[0].home = home;
    return structure;
  };
  EXPECT_EQ(refusal_of_plan({at(0), at(2), at(0), at(2)}), "no error");
  EXPECT_THAT(refusal_of_plan({at(0), at(2), at(0), at(1)}),
              HasSubstr("rank 1 and rank 3 both store a tensor of their own as 'w'"));
}

// Covers stored-12.
TEST(SavePlan, TakesRanksWithoutPiecesAndWorldsWithoutTensors) {
  EXPECT_TRUE(plan_save({}).has_value());
  EXPECT_THAT(plan_save(views_of({{}, {}})).value().assigned, ElementsAre(IsEmpty(), IsEmpty()));
  EXPECT_THAT(plan_files({}, {}, Rank{3}), IsEmpty());
}

// Covers save-6.
TEST(PlanFiles, PutsATensorsSecondPartIntoASecondFile) {
  auto structure = holding({"a", DType::u8, {6}}, {row(0, 2), row(2, 2), row(4, 2)});
  give(structure, {"b", DType::u8, {3}}, {row(0, 1), row(1, 2)});
  const std::vector<std::uint32_t> all{0, 1, 2, 3, 4};

  const auto files = plan_files(structure, all, Rank{12});

  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0].name, "shard_00012_0.safetensors");
  EXPECT_EQ(files[1].name, "shard_00012_1.safetensors");
  EXPECT_EQ(files[2].name, "shard_00012_2.safetensors");
  const auto data = files[1].header.size();
  EXPECT_THAT(files[1].shards,
              ElementsAre(PlannedShard{1, data, data + 2}, PlannedShard{4, data + 2, data + 4}));
  EXPECT_EQ(files[1].bytes(), data + 4);
  const auto header = parse_safetensors_header(bytes_in(files[1].header), data + 4).value();
  EXPECT_THAT(sharding_offsets(header).value(), ElementsAre(Shape{2}, Shape{1}));
}

TEST(PlanFiles, DescribesNoMoreTensorsPerFileThanReadersAccept) {
  constexpr std::uint64_t kMaxHeader = 1000;
  SaveStructure structure;
  for (int i = 0; i < 40; ++i) give(structure, {"weight" + std::to_string(i), DType::u8, {3}}, {row(0, 3)});
  give(structure, {"twice", DType::u8, {4}}, {row(0, 1), row(1, 3)});
  std::vector<std::uint32_t> all(structure.pieces.size());
  std::iota(all.begin(), all.end(), 0);

  const auto files = plan_files(structure, all, Rank{0}, kMaxHeader);

  ASSERT_GT(files.size(), 5U);
  std::vector<std::uint32_t> pieces;
  for (std::size_t i = 0; i < files.size(); ++i) {
    EXPECT_EQ(files[i].name, "shard_00000_" + std::to_string(i) + ".safetensors");
    EXPECT_LE(files[i].header.size(), sizeof(std::uint64_t) + kMaxHeader);
    const auto header = parse_safetensors_header(bytes_in(files[i].header), files[i].bytes()).value();
    ASSERT_EQ(header.entries.size(), files[i].shards.size());
    for (std::size_t j = 0; j < header.entries.size(); ++j) {
      const auto& shard = files[i].shards[j];
      EXPECT_EQ(header.entries[j].name, structure.tensors[structure.pieces[shard.piece].tensor].key);
      EXPECT_EQ(header.entries[j].begin, shard.begin);
      EXPECT_EQ(header.entries[j].end, shard.end);
      pieces.push_back(shard.piece);
    }
  }
  EXPECT_EQ(pieces, all);
}

TEST(ManifestOf, KeepsATensorWithoutElements) {
  const std::vector<SaveStructure> structures{holding({"none", DType::f32, {0, 7}}, {Box::whole({0, 7})}),
                                              {}};

  const auto saved = save(structures, plan_save(views_of(structures)).value());

  EXPECT_THAT(saved.manifest.tensors, ElementsAre(ManifestTensor{"none", DType::f32, {0, 7}, {}}));
  EXPECT_THAT(saved.files, IsEmpty());
}

RC_GTEST_PROP(SavePlan, WritesEveryElementOnceAndKeepsTheBalance, ()) {
  const auto job = any_job();

  const auto plan = plan_save(views_of(job.structures)).value();

  std::map<std::string, std::vector<int>> written;
  std::uint64_t bytes = 0;
  for (std::size_t rank = 0; rank < job.structures.size(); ++rank) {
    const auto& structure = job.structures[rank];
    RC_ASSERT(std::is_sorted(plan.assigned[rank].begin(), plan.assigned[rank].end()));
    for (auto index : plan.assigned[rank]) {
      const auto& piece = structure.pieces.at(index);
      const auto& tensor = structure.tensors[piece.tensor];
      auto& counts = written[tensor.key];
      counts.resize(static_cast<std::size_t>(elements_of(tensor.shape)));
      for (std::size_t i = 0; i < counts.size(); ++i) {
        Box element = Box::whole(tensor.shape);
        auto rest = static_cast<std::int64_t>(i);
        for (std::size_t axis = tensor.shape.size(); axis-- > 0; rest /= tensor.shape[axis])
          element.offset[axis] = rest % tensor.shape[axis], element.extent[axis] = 1;
        counts[i] += intersection(element, piece.box).has_value() ? 1 : 0;
      }
      bytes += structure.bytes_of(piece);
    }
  }
  RC_ASSERT(plan.bytes == bytes);
  for (const auto& tensor : job.tensors) {
    const auto elements = static_cast<std::size_t>(elements_of(tensor.shape));
    RC_ASSERT(written[tensor.key] == std::vector<int>(elements, 1));
  }
}

RC_GTEST_PROP(SavePlan, BringsAManifestThatReadsAsItWasWritten, ()) {
  const auto job = any_job();

  const auto saved = save(job.structures, plan_save(views_of(job.structures)).value());

  const auto text = to_text(saved.manifest);
  const auto parsed = parse_manifest(text);
  RC_ASSERT(parsed.has_value());
  RC_ASSERT(*parsed == saved.manifest);
  RC_ASSERT(to_text(*parsed) == text);
  RC_ASSERT(saved.manifest.tensors.size() == job.tensors.size());
  for (const auto& file : saved.manifest.files) {
    RC_ASSERT(file.bytes == saved.files.at(file.name).size());
    const auto header = parse_safetensors_header(saved.files.at(file.name), file.bytes);
    RC_ASSERT(header.has_value());
    RC_ASSERT(header->data_begin == file.header_bytes);
  }
}

}  // namespace
}  // namespace troupe::core
