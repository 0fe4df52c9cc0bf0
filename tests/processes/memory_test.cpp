// Jobs whose ranks go on from what they have in memory.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "actors/world/environment.hpp"
#include "core/number.hpp"
#include "tests/processes/lost_ranks.hpp"

namespace troupe {
namespace {

using testing::HasSubstr;
using testing::Not;

enum class Mend { restart, spare, fewer };

std::vector<std::string> launch_options_of(Mend mend) {
  switch (mend) {
    case Mend::restart:
      return {"--max-restarts", "1"};
    case Mend::spare:
      return {"--spares", "1"};
    case Mend::fewer:
      return {"--nproc-per-node", "3:4"};
  }
  return {};
}

/// TROUPE_MEMORY_SEED draws other moments.
std::uint32_t seed_of_moments() {
  return core::parse_number<std::uint32_t>(actors::process_variables()("TROUPE_MEMORY_SEED").value_or("33"),
                                           {0, 1U << 30})
      .value();
}

class StateInMemory : public tests::LostRanks {
 protected:
  StateInMemory() : random_(seed_of_moments()) { RecordProperty("seed", std::to_string(seed_of_moments())); }

  Blow any_blow(std::size_t first, std::size_t last) {
    using Moment = std::uniform_int_distribution<int>;
    Blow blow{static_cast<std::size_t>(Moment(static_cast<int>(first), static_cast<int>(last))(random_)),
              {Moment(0, 3)(random_)}};
    blow.later = std::chrono::microseconds(Moment(0, 4000)(random_));
    return blow;
  }

  static tests::GptJob job_with(Mend mend, const std::string& strategy) {
    tests::GptJob job{4, 60, launch_options_of(mend), {"--strategy", strategy}};
    if (strategy.starts_with("h"))
      job.trainer_options.insert(job.trainer_options.end(), {"--optimizer-instances", "2"});
    return job;
  }

  std::mt19937 random_;
};

TEST_F(StateInMemory, LosesNoStepWhereEachPartIsReplicated) {
  for (const std::string strategy : {"ddp", "hsdp"}) {
    for (const auto mend : {Mend::restart, Mend::spare, Mend::fewer}) {
      const auto name = fmt::format("{}-{}", strategy, static_cast<int>(mend));
      const auto blow = any_blow(12, 40);
      SCOPED_TRACE(fmt::format("{}: slot {} after {} steps and {} us", name, blow.slots[0], blow.steps,
                               blow.later.count()));

      const auto run = lose(job_with(mend, strategy), name, {blow});

      EXPECT_THAT(run.result.output, HasSubstr("resumed from the memory of 3 of"));
      EXPECT_EQ(steps_taken_again(name), 0) << run.result.output;
      expect_bits(name);
    }
  }
}

TEST_F(StateInMemory, IsRolledBackWithoutReplicasOfALostPart) {
  int number = 0;
  for (const std::string strategy : {"zero1", "zero2", "zero3", "hfsdp"}) {
    const auto mend = static_cast<Mend>(number++ % 3);
    const auto name = fmt::format("{}-{}", strategy, static_cast<int>(mend));
    const auto blow = any_blow(12, 40);
    SCOPED_TRACE(fmt::format("{}: slot {} after {} steps and {} us", name, blow.slots[0], blow.steps,
                             blow.later.count()));

    const auto run = lose(job_with(mend, strategy), name, {blow});

    EXPECT_THAT(run.result.output, Not(HasSubstr("resumed from the memory")));
    EXPECT_LE(steps_taken_again(name), 12);
    expect_bits(name);
  }
}

}  // namespace
}  // namespace troupe
