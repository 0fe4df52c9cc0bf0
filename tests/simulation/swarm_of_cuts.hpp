#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "actors/world/simulation/storage.hpp"
#include "core/random.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {

/// How many jobs a swarm had, and how many of those that came to their end went on from a checkpoint.
struct SwarmLives {
  int jobs = 0;
  int resumed = 0;
};

/// Jobs of any of `cuts` on any devices, of which a rank may die or hang; then others over the same disk,
/// until one comes to its end with what `whole` makes of `expected`'s job. `train` gets a rank, a cut, the
/// steps to come to, and what to call where time passes; a Result has a norm for each step it took. Faults
/// come within the first microseconds.
template <class Trained, class Cut, class Train, class Whole, class Expected>
SwarmLives swarm_of_cuts(std::string_view name, std::uint64_t seeds, const std::vector<Cut>& cuts, int until,
                         const Train& train, const Whole& whole, const Expected& expected,
                         std::uint32_t microseconds = 8000) {
  SwarmLives lives;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const core::CounterRandom random(seed, name);
    std::uint64_t drawn = 0;
    const auto draw = [&](std::uint32_t bound) { return random.below(bound, drawn++); };
    SimulatedStorage disk({});
    bool is_over = false;
    for (int life = 0; life < 20 && !is_over; ++life) {
      const auto& cut = cuts[draw(static_cast<std::uint32_t>(cuts.size()))];
      SimulationOptions simulation;
      simulation.ranks = {cut.ranks};
      simulation.seed = seed;
      simulation.storage = &disk;
      simulation.fabric.in_launch_order = draw(2) == 0;
      if (draw(4) != 0) {
        simulation.faults.push_back(
            {.kind = draw(3) == 0 ? SimulatedFault::Kind::hang : SimulatedFault::Kind::kill,
             .rank = {static_cast<std::int32_t>(draw(static_cast<std::uint32_t>(cut.ranks)))},
             .at = std::chrono::microseconds(draw(microseconds))});
      }
      const auto outcome = simulate_job<Trained>(simulation, [&](SimulatedRank& rank) {
        const core::CounterRandom times(seed, fmt::format("rank {}", rank.rank().value));
        std::uint64_t time = 0;
        return train(rank, cut, until,
                     [&] { rank.compute(std::chrono::nanoseconds(times.below(1'000'000, time++))); });
      });
      EXPECT_EQ(violations_of(outcome.report), "") << "seed " << seed << ", " << cut.name();
      const auto& results = outcome.report.results;
      is_over = std::all_of(results.begin(), results.end(), [](const auto& result) { return bool{result}; });
      lives.jobs += 1;
      if (!is_over) continue;
      EXPECT_EQ(whole(outcome.ranks), expected) << "seed " << seed << ", " << cut.name();
      lives.resumed += outcome.ranks[0].norms.size() < static_cast<std::size_t>(until) ? 1 : 0;
    }
    EXPECT_TRUE(is_over) << "seed " << seed;
    if (testing::Test::HasFailure()) return lives;
  }
  return lives;
}

}  // namespace troupe::actors
