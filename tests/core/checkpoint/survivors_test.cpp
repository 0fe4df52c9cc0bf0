#include "core/checkpoint/survivors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

SurvivorReport at(std::int64_t over, bool may_finish = false, bool knows = false) {
  return {Survivor{1, 7, {over}, may_finish, knows, 3}, 3, false};
}

const SurvivorReport kNothing{{}, 3, false};

TEST(CommonStep, IsTheOneAfterWhichAllSurvivorsAre) {
  const auto steps = common_steps(std::vector{at(5, true), kNothing, at(5)});

  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].over, StepCount{5});
  EXPECT_THAT(steps[0].holders, ElementsAre(Rank{0}, Rank{2}));
  EXPECT_THAT(steps[0].finishing, IsEmpty()) << "a step that nobody decided never was";
}

TEST(CommonStep, IsFinishedByAllOnceOneHasDecidedIt) {
  const auto steps = common_steps(std::vector{at(5, true), at(6, false, true), kNothing, at(5, true)});

  EXPECT_EQ(steps[0].over, StepCount{6});
  EXPECT_THAT(steps[0].holders, ElementsAre(Rank{0}, Rank{1}, Rank{3}));
  EXPECT_THAT(steps[0].finishing, ElementsAre(Rank{0}, Rank{3}));
  EXPECT_EQ(steps[0].decided_by, Rank{1});
}

TEST(CommonStep, OmitsWhoLacksGradientsOrCannotBeTold) {
  const auto lacking = common_steps(std::vector{at(5, false), at(6, false, true)});
  EXPECT_THAT(lacking[0].holders, ElementsAre(Rank{1}));
  ASSERT_EQ(lacking.size(), 2u);
  EXPECT_EQ(lacking[1].over, StepCount{5});
  EXPECT_THAT(lacking[1].holders, ElementsAre(Rank{0}));

  const auto untold = common_steps(std::vector{at(5, true), at(6, true, false)});
  EXPECT_THAT(untold[0].holders, ElementsAre(Rank{1})) << "rank 1 came to step 6 without its decision";
}

TEST(CommonStep, DoesNotMixWhatBeganDifferently) {
  auto other = at(9);
  other.has->origin = 2;
  auto dealt = at(6);
  dealt.has->layout = 8;

  const auto steps = common_steps(std::vector{at(6), other, dealt});

  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].origin, 2u);
  EXPECT_THAT(steps[0].holders, ElementsAre(Rank{1}));
  EXPECT_EQ(steps[1].holders.size(), 1u);
  EXPECT_EQ(steps[2].holders.size(), 1u);
}

TEST(CommonStep, IsNoneWhereNobodyHasAnything) {
  EXPECT_THAT(common_steps(std::vector{kNothing, kNothing}), IsEmpty());
}

RC_GTEST_PROP(SurvivorReports, TravelAsText, ()) {
  SurvivorReport report{{}, *rc::gen::arbitrary<std::uint64_t>(), false};
  if (*rc::gen::arbitrary<bool>()) {
    report.has = Survivor{*rc::gen::arbitrary<std::uint64_t>(),
                          *rc::gen::arbitrary<std::uint64_t>(),
                          {*rc::gen::inRange<std::int64_t>(0, 1'000'000)},
                          *rc::gen::arbitrary<bool>(),
                          *rc::gen::arbitrary<bool>(),
                          *rc::gen::arbitrary<std::uint64_t>()};
    report.stays = *rc::gen::arbitrary<bool>();
  }

  const auto read = parse_survivor_report(to_text(report));

  RC_ASSERT(read.has_value());
  RC_ASSERT(*read == report);
}

TEST(SurvivorReports, AreRefusedWhereAltered) {
  for (const char* text :
       {"", " ", "x", "1 2", "1 2 3 4 5 6 7 8", "1 2 3 99999999999999999999 0 0 7 0",
        "1 2 3 18446744073709551615 0 0 7 0", "1 2 3 4 2 0 7 0", "1 2 3 4 0 0 7 0 9", "1 2 3 4 0 0 7 "})
    EXPECT_EQ(parse_survivor_report(text).error().code, Errc::corrupt) << text;
}

/// A tensor "w" of `elements` and "v" of half as many, dealt over `shards` of `ranks` / `shards` replicas.
std::vector<SaveStructure> deal(int ranks, int shards, std::int64_t elements) {
  std::vector<SaveStructure> structures;
  for (int rank = 0; rank < ranks; ++rank) {
    SaveStructure structure;
    for (const auto& [key, size] : {std::pair{"v", elements / 2}, std::pair{"w", elements}}) {
      const std::int64_t shard = rank % shards;
      const auto begin = size * shard / shards;
      const auto end = size * (shard + 1) / shards;
      if (begin == end) continue;
      structure.pieces.push_back(
          {static_cast<std::uint32_t>(structure.tensors.size()), {{begin}, {end - begin}}});
      structure.tensors.push_back({key, DType::f32, {size}});
    }
    structures.push_back(std::move(structure));
  }
  return structures;
}

/// What each element of a rank's pieces holds: the step of the state that it belongs to. -1: nothing.
using Memory = std::map<std::pair<std::string, std::int64_t>, std::int64_t>;

Memory memory_of(const SaveStructure& structure, std::int64_t step) {
  Memory memory;
  for (const auto& piece : structure.pieces) {
    for (std::int64_t i = 0; i < piece.box.extent[0]; ++i)
      memory[{structure.tensors[piece.tensor].key, piece.box.offset[0] + i}] = step;
  }
  return memory;
}

/// A job of the model, in which whoever is lost is replaced by a process without memory.
struct ModelJob {
  struct Process {
    std::optional<Survivor> has;
    Memory memory;
  };

  ModelJob(int replicas, int of_shards, std::int64_t of_elements)
      : shards(of_shards),
        elements(of_elements),
        structures(deal(replicas * of_shards, of_shards, of_elements)),
        processes(structures.size()) {}

  void set(std::size_t rank, std::int64_t over, bool may_finish, bool knows) {
    const auto& structure = structures[rank];
    processes[rank] = {
        Survivor{1, static_cast<std::uint64_t>(shards), {over}, may_finish, knows, layout_hash(structure)},
        memory_of(structure, over)};
  }
  std::int64_t newest() const {
    std::int64_t found = -1;
    for (const auto& process : processes) found = std::max(found, process.has ? process.has->over.value : -1);
    return found;
  }
  /// Whether each part has a holder among the first ranks.
  bool is_held(std::size_t ranks) const {
    std::set<std::size_t> held;
    for (std::size_t rank = 0; rank < std::min(ranks, processes.size()); ++rank) {
      if (processes[rank].has) held.insert(rank % static_cast<std::size_t>(shards));
    }
    return held.size() == static_cast<std::size_t>(shards);
  }

  int shards;
  std::int64_t elements;
  std::vector<SaveStructure> structures;
  std::vector<Process> processes;
};

constexpr std::int64_t kBegun = 5;

/// The next step is decided by some ranks, could be finished by others, and is void for the rest; then ranks
/// are lost.
ModelJob any_job_with_losses() {
  const auto replicas = *rc::gen::inRange(1, 4);
  const auto shards = *rc::gen::element(1, 2, 3);
  ModelJob job(replicas, shards, *rc::gen::inRange<std::int64_t>(6, 30));
  const bool is_decided = *rc::gen::arbitrary<bool>();
  for (std::size_t rank = 0; rank < job.processes.size(); ++rank) {
    const bool decides = is_decided && *rc::gen::arbitrary<bool>();
    // RS-2: whoever contributed to a verdict has its reduced gradients.
    const bool may_finish = !decides && (is_decided || *rc::gen::arbitrary<bool>());
    job.set(rank, decides ? kBegun + 1 : kBegun, may_finish, true);
    if (*rc::gen::inRange(0, 4) == 0) job.processes[rank] = {};
  }
  return job;
}

struct Choice {
  CommonStep step;
  std::unique_ptr<const Survival> survival;  ///< null: there is none
};

/// The choice of all ranks of an epoch, which want these.
Choice choose(const ModelJob& job, const std::vector<SaveStructure>& wanted) {
  std::vector<SurvivorReport> reports;
  for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
    reports.push_back({{}, layout_hash(wanted[rank]), false});
    if (rank < job.processes.size()) reports.back().has = job.processes[rank].has;
  }
  for (auto& step : common_steps(reports)) {
    std::vector<SurvivalPart> parts(reports.size());
    for (std::size_t rank = 0; rank < parts.size(); ++rank) parts[rank].wants = &wanted[rank];
    for (const auto holder : step.holders) {
      const auto rank = static_cast<std::size_t>(holder.value);
      parts[rank].has = {&job.structures[rank]};
    }
    if (auto survival = plan_survival(parts)) return {std::move(step), *std::move(survival)};
  }
  return {};
}

/// What the ranks have once holders have finished the step, kept what they want, and given as planned.
std::vector<Memory> carried_out(const ModelJob& job, const Choice& choice,
                                const std::vector<SaveStructure>& wanted) {
  std::vector<Memory> after;
  for (const auto& structure : wanted) after.push_back(memory_of(structure, -1));
  for (const auto holder : choice.step.holders) {
    const auto rank = static_cast<std::size_t>(holder.value);
    for (auto& [place, value] : after[rank]) {
      if (job.processes[rank].memory.contains(place)) value = job.processes[rank].memory.at(place);
    }
  }
  for (const auto& read : choice.survival->plan.reads) {
    RC_ASSERT(std::ranges::count(choice.step.holders, Rank{static_cast<std::int32_t>(read.reader)}) == 1);
    for (const auto& part : read.parts) {
      RC_ASSERT(part.rank != read.reader);
      for (auto byte = part.begin; byte < part.end; byte += 4) {
        const auto element = read.shard->box.offset[0] + static_cast<std::int64_t>(byte / 4);
        const std::pair place{read.tensor->key, element};
        auto& memory = after[part.rank];
        if (memory.contains(place)) memory[place] = job.processes[read.reader].memory.at(place);
      }
    }
  }
  return after;
}

RC_GTEST_PROP(Survival, LosesNoDecidedStepWhileEachPartIsHeld, ()) {
  auto job = any_job_with_losses();
  // Epoch after epoch, of which all but the last end in the middle, with further losses.
  for (int more = *rc::gen::inRange(0, 3); more > 0; --more) {
    const auto choice = choose(job, job.structures);
    RC_ASSERT((choice.survival != nullptr) == job.is_held(job.processes.size()));
    if (!choice.survival) return;
    RC_ASSERT(choice.step.over.value == job.newest());
    for (const auto rank : choice.step.finishing) {
      if (*rc::gen::arbitrary<bool>())
        job.set(static_cast<std::size_t>(rank.value), choice.step.over.value, false, true);
    }
    job.processes[*rc::gen::inRange<std::size_t>(0, job.processes.size())] = {};
  }
  const auto shards = *rc::gen::element(1, 2, 3);
  const auto wanted = deal(shards * *rc::gen::inRange(1, 4), shards, job.elements);

  auto choice = choose(job, wanted);

  RC_ASSERT((choice.survival != nullptr) == job.is_held(wanted.size()));
  if (!choice.survival) return;
  if (wanted.size() >= job.processes.size()) RC_ASSERT(choice.step.over.value == job.newest());
  for (const auto rank : choice.step.finishing)
    job.set(static_cast<std::size_t>(rank.value), choice.step.over.value, false, true);
  for (const auto& memory : carried_out(job, choice, wanted)) {
    for (const auto& [place, value] : memory) RC_ASSERT(value == choice.step.over.value);
  }
}

TEST(Survival, SharesTheGivingAmongThoseThatHaveTheSame) {
  SaveStructure all;
  for (int i = 0; i < 9; ++i) {
    all.tensors.push_back({"t" + std::to_string(i), DType::f32, {100}});
    all.pieces.push_back({static_cast<std::uint32_t>(i), {{0}, {100}}});
  }
  const std::vector<SurvivalPart> parts{{{&all}, nullptr}, {{}, &all}, {{&all}, nullptr}, {{&all}, nullptr}};

  const auto survival = plan_survival(parts).value();

  std::map<std::uint32_t, int> given;
  for (const auto& read : survival->plan.reads) {
    given[read.reader] += 1;
    ASSERT_THAT(read.parts, ElementsAre(SharedRead::Part{1, 0, 400}));
  }
  EXPECT_THAT(given, ElementsAre(testing::Pair(0, 3), testing::Pair(2, 3), testing::Pair(3, 3)));
}

TEST(Survival, NamesWhatNobodyHas) {
  const auto halves = deal(2, 2, 8);
  const std::vector<SurvivalPart> parts{{{&halves[0]}, nullptr}, {{}, &halves[1]}};

  const auto survival = plan_survival(parts);

  ASSERT_FALSE(survival.has_value());
  EXPECT_EQ(survival.error().code, Errc::not_found);
  EXPECT_EQ(survival.error().message, "nobody has all of [2:4] of 'v' any more");
}

}  // namespace
}  // namespace troupe::core
