#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/step_count.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {

/// A job of few elements whose chunks are so small, and staging buffers so few, that updates wait for them.
inline TinyTrainerOptions saving_job(const TinyMesh& mesh, std::int64_t steps, std::int64_t save_every = 1) {
  TinyTrainerOptions options;
  // Parameters begin at multiples of 64 elements, so six of them make shards for up to six ranks.
  options.layers = 6;
  options.width = 12;
  options.layer_time = std::chrono::microseconds(20);
  options.steps = steps;
  options.save_every = save_every;
  set_mesh(options.session.training, mesh);
  options.session.training.lanes = 4;
  options.session.training.bucket_elements = 330;
  options.session.training.clip_norm = 1.0;
  options.session.checkpoint.staging_bytes = 256;
  options.session.checkpoint.chunk_bytes = 64;
  options.session.checkpoint.deadline = std::chrono::seconds(30);
  options.session.join_deadline = std::chrono::milliseconds(500);
  return options;
}

/// A mesh of such a job.
inline TinyMesh saving_mesh(int ranks, std::uint64_t number) {
  return mesh_in_turn(ranks, number, 6);
}

/// The parameters after this many steps of a run that neither saves nor fails.
inline std::uint64_t undisturbed_hash(std::int64_t steps) {
  static std::map<std::int64_t, std::uint64_t> known;
  auto [found, is_new] = known.try_emplace(steps, 0);
  if (!is_new) return found->second;
  const auto outcome = simulate_tiny(1, 1, saving_job(core::Strategy::ddp, steps, 0));
  EXPECT_EQ(problems_of(outcome.report), "");
  return found->second = outcome.ranks[0].state_hash;
}

/// The steps whose saves were reported as committed, in order.
inline std::vector<std::int64_t> committed_steps(const SimulationReport& report) {
  std::vector<std::int64_t> steps;
  for (const auto& save : report.saves) {
    if (!save.failure.failed) steps.push_back(core::steps_through(save.step).value);
  }
  return steps;
}

inline SimulationOptions machines_of(Storage& storage, int ranks, std::uint64_t seed) {
  SimulationOptions simulation;
  simulation.ranks = {ranks};
  simulation.seed = seed;
  simulation.storage = &storage;
  return simulation;
}

/// Nothing went wrong in training, whatever became of the saves, and its bits are right.
inline std::string complaints_of(const JobOutcome<TinyTrainerResult>& outcome, std::int64_t steps) {
  auto text = problems_of(outcome.report);
  for (const auto& rank : outcome.ranks) {
    if (rank.state_hash != undisturbed_hash(steps)) text += "a rank ends with other bits\n";
  }
  return text;
}

/// Goes on from the disk with this many ranks up to `steps`; the step it began with, or a complaint.
inline std::pair<std::int64_t, std::string> go_on(Storage& storage, int ranks, std::int64_t steps,
                                                  std::uint64_t seed) {
  auto options = saving_job(saving_mesh(ranks, seed), steps, 0);
  options.restore = true;
  const auto outcome = simulate_tiny(machines_of(storage, ranks, seed), options);
  const auto& restored = outcome.ranks[0].restored;
  return {restored ? restored->step.value : 0, complaints_of(outcome, steps)};
}

}  // namespace troupe::actors
