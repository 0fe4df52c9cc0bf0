#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/planes/replica/copies.hpp"
#include "actors/world/simulation/storage.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {

/// Nodes with memory or a disk each, which outlive jobs.
class LocalTierJobs : public testing::Test {
 protected:
  static constexpr std::int64_t kSteps = 6;
  static constexpr int kWorld = 8;

  static std::vector<core::Clique> pairs() { return {{{0}, {1}}, {{2}, {3}}, {{4}, {5}}, {{6}, {7}}}; }
  static std::vector<core::Clique> uneven() { return {{{2}, {6}, {7}}, {{3}, {1}}, {{5}}, {{0}, {4}}}; }

  static TinyTrainerOptions local_job(const TinyMesh& mesh, std::int64_t steps) {
    auto options = tiny_job(mesh);
    options.steps = steps;
    options.restore = true;
    options.local_every = 1;
    options.session.checkpoint.deadline = std::chrono::seconds(30);
    options.session.checkpoint.staging_bytes = 2048;
    options.session.checkpoint.chunk_bytes = 256;
    options.session.local.deadline = std::chrono::seconds(10);
    options.session.local.sync = true;
    options.session.local.staging_bytes = 128;
    options.session.local.chunk_bytes = 64;
    return options;
  }

  static std::uint64_t uninterrupted_hash() {
    auto options = tiny_job(core::Strategy::ddp);
    options.steps = kSteps;
    auto outcome = simulate_tiny(1, 1, options);
    EXPECT_EQ(problems_of(outcome.report), "");
    return outcome.ranks[0].state_hash;
  }

  explicit LocalTierJobs(int nodes = kWorld) {
    for (int node = 0; node < nodes; ++node) {
      SimulatedStorageOptions options;
      options.name = fmt::format("node {}", node);
      nodes_.push_back(std::make_unique<SimulatedStorage>(options));
    }
  }

  SimulationOptions simulation(int world = kWorld) const {
    SimulationOptions simulation;
    simulation.ranks = {world};
    simulation.seed = 5;
    for (const auto& node : nodes_) simulation.local_storages.push_back(node.get());
    return simulation;
  }

  JobOutcome<TinyTrainerResult> run(const TinyTrainerOptions& options, int world = kWorld) {
    auto outcome = simulate_tiny(simulation(world), options);
    EXPECT_EQ(problems_of(outcome.report), "");
    return outcome;
  }

  /// A job that saved after `steps` steps and has ended.
  void save(TinyTrainerOptions options, std::int64_t steps, int world = kWorld) {
    options.steps = steps;
    const auto outcome = run(options, world);
    for (const auto& rank : outcome.ranks) {
      ASSERT_FALSE(rank.local_saves.empty());
      for (const auto& save : rank.local_saves) ASSERT_TRUE(save.committed) << save.committed.error().message;
    }
  }

  /// One bit flips on a disk.
  void rot(int rank, int owner) {
    for (const auto& copy : held(rank)) {
      if (copy.owner.value != owner) continue;
      const auto file = fmt::format("shard_{:05}_0.safetensors", owner);
      ASSERT_TRUE(nodes_[static_cast<std::size_t>(rank)]->rot(path_in(path_of(copy.name, copy.owner), file)));
      return;
    }
    FAIL() << "rank " << rank << " holds no copy of " << owner;
  }

  /// The node of this rank is lost, and another one stands in its place.
  void replace(int rank) {
    nodes_[static_cast<std::size_t>(rank)] = std::make_unique<SimulatedStorage>(SimulatedStorageOptions{});
  }

  std::vector<core::HeldCopy> held(int rank) {
    auto found = find_copies(*nodes_[static_cast<std::size_t>(rank)]);
    EXPECT_TRUE(found);
    EXPECT_THAT(found->passed_over, testing::IsEmpty());
    return found->held;
  }

  /// Steps and owners, such as "3: 0 1".
  std::string text_of_held(int rank) {
    std::string text;
    core::StepCount step{-1};
    for (const auto& copy : held(rank)) {
      if (copy.name.step != step)
        text += fmt::format("{}{}:", text.empty() ? "" : ", ", copy.name.step.value);
      step = copy.name.step;
      text += fmt::format(" {}", copy.owner.value);
    }
    return text;
  }

  void hide(int rank, int owner, const std::string& file) {
    for (const auto& copy : held(rank)) {
      if (copy.owner.value != owner) continue;
      ASSERT_TRUE(
          nodes_[static_cast<std::size_t>(rank)]->remove(path_in(path_of(copy.name, copy.owner), file)));
      return;
    }
    FAIL() << "rank " << rank << " holds no copy of " << owner;
  }

  void expect_goes_on(const JobOutcome<TinyTrainerResult>& outcome, std::int64_t from) {
    const auto expected = uninterrupted_hash();
    for (const auto& rank : outcome.ranks) {
      ASSERT_TRUE(rank.restored.has_value());
      EXPECT_TRUE(rank.restored->is_local);
      EXPECT_EQ(rank.restored->step, core::Step{from});
      EXPECT_EQ(rank.restored->common, (core::Value{core::Value::Map{{"done", from}}}));
      EXPECT_EQ(rank.outcomes.size(), static_cast<std::size_t>(kSteps - from));
      EXPECT_EQ(rank.state_hash, expected);
    }
  }

  std::vector<std::unique_ptr<SimulatedStorage>> nodes_;
};

/// They also have a disk for checkpoints.
class TwoTiers : public LocalTierJobs {
 protected:
  JobOutcome<TinyTrainerResult> run_with_disk(const TinyTrainerOptions& options, int world = kWorld) {
    auto simulated = simulation(world);
    simulated.storage = &disk_;
    auto outcome = simulate_tiny(simulated, options);
    EXPECT_EQ(problems_of(outcome.report), "");
    return outcome;
  }
  /// Checkpoints after steps 2 and 4, local saves after every step.
  TinyTrainerOptions job() {
    auto options = local_job(core::Strategy::zero1, kSteps);
    options.session.local.cliques = pairs();
    options.save_every = 2;
    return options;
  }
  void train_to(std::int64_t steps) {
    auto options = job();
    options.steps = steps;
    run_with_disk(options);
  }
  void expect_checkpoint(const JobOutcome<TinyTrainerResult>& outcome, std::int64_t step) {
    for (const auto& rank : outcome.ranks) {
      ASSERT_TRUE(rank.restored.has_value());
      EXPECT_FALSE(rank.restored->is_local);
      EXPECT_EQ(rank.restored->step, core::Step{step});
      EXPECT_EQ(rank.state_hash, uninterrupted_hash());
    }
  }

  SimulatedStorage disk_{SimulatedStorageOptions{}};
};

}  // namespace troupe::actors
