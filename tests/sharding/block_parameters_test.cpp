#include <gtest/gtest.h>

#include <cmath>

#include "actors/world/simulation/storage.hpp"
#include "core/convert.hpp"
#include "core/errors.hpp"
#include "tests/sharding/scripted_units.hpp"
#include "tests/support/mx_reference.hpp"

namespace troupe::actors {
namespace {

using tests::ShardingMesh;

/// Units with parameters that are gathered in microscaling blocks beside such that are not. Shards of up to
/// eight ranks cut the large ones; some end within a block.
Script block_script(const ShardingMesh& mesh, core::DType element) {
  auto script = tests::unit_script(mesh);
  auto& p = script.parameters;
  p[0].shape = {300};
  p[1].shape = {40, 61};
  p[2].shape = {31};
  p[3].shape = {3, 700};
  p[4].shape = {1033};
  script.session.training.bucket_elements = 2000;
  for (auto& parameter : p) parameter.dtype = core::DType::bf16;
  for (const std::size_t gathered : {0U, 1U, 3U, 4U}) p[gathered].gather_dtype = element;
  p[2].dtype = core::DType::f32;
  // Neighbouring blocks of unlike size, so that scales which are not their own are seen.
  script.initial = [initial = script.initial](std::uint32_t parameter, std::size_t i) {
    return std::ldexp(initial(parameter, i), static_cast<int>(i / 32 % 11) - 8);
  };
  script.steps = 3;
  return script;
}

class BlockParameters : public testing::TestWithParam<ShardingMesh> {};

// Covers shard-7.
TEST_P(BlockParameters, AreTheirMainValuesRoundedOnceWhateverIsSharded) {
  for (const auto element : {core::DType::f8_e4m3, core::DType::f8_e5m2}) {
    const auto job = block_script(GetParam(), element);

    const auto outcome = tests::run(GetParam(), job);

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) EXPECT_EQ(rank.after.back(), expected_values(job));
  }
}

// Covers unit-15.
TEST_P(BlockParameters, GoOnFromAnotherStrategysMainValues) {
  const ShardingMesh other{core::Strategy::hfsdp, 2, 2};
  for (const auto& [from, to] : {std::pair(GetParam(), other), {other, GetParam()}}) {
    SimulatedStorage disk({});
    auto saving = block_script(from, core::DType::f8_e4m3);
    saving.steps = saving.save_after = 2;
    ASSERT_EQ(problems_of(tests::run(from, saving, &disk).report), "");
    auto going_on = block_script(to, core::DType::f8_e4m3);
    going_on.restore = true;

    const auto outcome = tests::run(to, going_on, &disk);

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) EXPECT_EQ(rank.after.back(), expected_values(going_on));
  }
}

/// What ranks read before their first step: of first values, or of a checkpoint.
JobOutcome<Values> read_first(const ShardingMesh& mesh, const Script& job, Storage* disk = nullptr) {
  SimulationOptions simulation;
  simulation.ranks = {mesh.ranks()};
  simulation.storage = disk;
  return simulate_job<Values>(simulation, [&](SimulatedRank& rank) -> core::Result<Values> {
    auto session = TRY(Session::join(rank, job.session, job.parameters));
    if (job.restore) TRY(session->restore());
    for (std::uint32_t p = 0; !job.restore && p < job.parameters.size(); ++p) {
      TRY(session->write_parameter({p}, [&](std::int64_t first, std::span<float> values) {
        for (std::size_t i = 0; i < values.size(); ++i)
          values[i] = job.initial(p, static_cast<std::size_t>(first) + i);
      }));
    }
    Values values;
    TRY(session->begin_evaluation());
    for (std::uint32_t p = 0; p < job.parameters.size(); ++p) {
      TRY(session->before_use({p}));
      auto& parameter = values.emplace_back();
      const auto memory = TRY(session->parameter_memory({p}));
      parameter.resize(static_cast<std::size_t>(job.parameters[p].elements()));
      core::convert_elements(job.parameters[p].dtype, memory.data, core::DType::f32,
                             std::as_writable_bytes(std::span(parameter)).data(), parameter.size());
    }
    TRY(session->end_evaluation());
    TRY(session->leave());
    return values;
  });
}

TEST_P(BlockParameters, AreRoundedBeforeTheFirstStepToo) {
  auto job = block_script(GetParam(), core::DType::f8_e4m3);

  const auto outcome = read_first(GetParam(), job);

  ASSERT_EQ(problems_of(outcome.report), "");
  job.steps = 0;
  for (const auto& values : outcome.ranks) EXPECT_EQ(values, expected_values(job));
}

/// Its bf16 values become such as blocks hold; its main values are those of any job.
TEST_P(BlockParameters, AreRoundedOfACheckpointThatHasOthers) {
  const ShardingMesh saved{core::Strategy::zero3, 1, 2};
  SimulatedStorage disk({});
  auto saving = block_script(saved, core::DType::f8_e4m3);
  // A job without blocks begins with f32 masters, one with blocks with bf16: here both with the same.
  const auto round_initial = [](Script& script) {
    script.initial = [initial = script.initial](std::uint32_t parameter, std::size_t i) {
      return rounded(core::DType::bf16, initial(parameter, i));
    };
  };
  round_initial(saving);
  const auto with_blocks = saving.parameters;
  for (auto& parameter : saving.parameters) parameter.gather_dtype.reset();
  saving.steps = saving.save_after = 2;
  ASSERT_EQ(problems_of(tests::run(saved, saving, &disk).report), "");
  auto going_on = block_script(GetParam(), core::DType::f8_e4m3);
  going_on.restore = true;
  round_initial(going_on);
  auto expected = expected_values(saving);
  for (std::size_t p = 0; p < expected.size(); ++p) {
    if (with_blocks[p].gather_dtype)
      expected[p] = tests::reference_mx(*with_blocks[p].gather_dtype, expected[p]).values;
  }

  const auto first = read_first(GetParam(), going_on, &disk);
  const auto outcome = tests::run(GetParam(), going_on, &disk);

  ASSERT_EQ(problems_of(first.report), "");
  for (const auto& values : first.ranks) EXPECT_EQ(values, expected);
  ASSERT_EQ(problems_of(outcome.report), "");
  for (const auto& rank : outcome.ranks) EXPECT_EQ(rank.after.back(), expected_values(going_on));
}

INSTANTIATE_TEST_SUITE_P(Strategies, BlockParameters, testing::ValuesIn(tests::sharding_meshes()),
                         [](const auto& each) { return each.param.name(); });

}  // namespace
}  // namespace troupe::actors
