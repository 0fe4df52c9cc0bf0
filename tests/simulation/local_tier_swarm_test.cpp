#include <fmt/format.h>

#include <gtest/gtest.h>

#include <memory>

#include "actors/world/random.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/step_count.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

/// A few seconds' worth. SwarmOfLocalTiers.DISABLED_ManySeeds runs more:
/// simulation_tests --gtest_also_run_disabled_tests --gtest_filter='*LocalTiers*ManySeeds*'
constexpr std::uint64_t kSeeds = 300;
constexpr std::uint64_t kManySeeds = 10'000;
constexpr std::int64_t kSteps = 5;

/// What some number of seeds has met; a swarm that meets nothing proves nothing.
struct Marks {
  std::uint64_t committed = 0;
  std::uint64_t failed = 0;
  std::uint64_t killed = 0;
  std::uint64_t local = 0;
  std::uint64_t checkpoint = 0;
  std::uint64_t anew = 0;
};

/// A job that a fault may end, nodes of which some are lost, lose power or have a bit flipped, and the job
/// again: it must come to the bits of a run that never stopped, from no save older than what was promised.
class LocalHistory {
 public:
  LocalHistory(std::uint64_t seed, Marks& marks)
      : draw_(seed, "local_tier_swarm_test", "history"), marks_(marks), disk_(storage_options(0)) {
    world_ = 1 << (1 + draw_.below(3));
    factor_ = 1 << draw_.below(3);
    if (factor_ > world_) factor_ = world_;
    jump_ = draw_.below(2) == 0 ? 1 : world_ / factor_;
    job_ = tiny_job(mesh_in_turn(world_, draw_.bits()));
    job_.steps = kSteps;
    job_.local_every = 1 + draw_.below(2);
    job_.save_every = draw_.below(3);
    job_.restore = true;
    auto& session = job_.session;
    session.local.jump = jump_;
    session.local.factor = factor_;
    session.local.keep = 1 + static_cast<int>(draw_.below(2));
    session.local.sync = draw_.below(2) == 0;
    session.local.chunk_bytes = 32 << draw_.below(6);
    session.local.staging_bytes = session.local.chunk_bytes * (1 + draw_.below(4));
    session.local.deadline = std::chrono::seconds(10);
    session.checkpoint.chunk_bytes = 128;
    session.checkpoint.staging_bytes = 512;
    session.checkpoint.deadline = std::chrono::seconds(30);
    for (int node = 0; node < world_; ++node) replace(node);
  }

  /// Empty, or what went wrong.
  std::string run() {
    const bool failing = draw_.below(4) == 0;
    if (failing) node(draw_.below(world()))->set_options(storage_options(0.02));
    auto broken = simulation();
    if (draw_.below(4) != 0) broken.faults.push_back(draw_death());
    const auto before = simulate_tiny(broken, job_);
    if (!before.report.violations.empty()) return violations_of(before.report);
    for (const auto& save : before.report.local_saves) {
      (save.failure.failed ? marks_.failed : marks_.committed) += 1;
      if (!save.failure.failed) promised_ = core::steps_through(save.step).value;
    }
    for (int i = 0; i < world_; ++i) node(static_cast<std::uint32_t>(i))->set_options(storage_options(0));
    marks_.killed += broken.faults.empty() ? 0 : 1;
    lose_nodes();

    const auto after = simulate_tiny(simulation(), job_);

    return judge(after);
  }

 private:
  static SimulatedStorageOptions storage_options(double failures) {
    SimulatedStorageOptions options;
    options.write_failure = options.read_failure = failures;
    options.sector_bytes = 64;
    return options;
  }
  std::uint32_t world() const { return static_cast<std::uint32_t>(world_); }
  SimulatedStorage* node(std::uint32_t rank) { return nodes_[rank].get(); }

  void replace(int rank) {
    auto options = storage_options(0);
    options.seed = draw_.bits();
    if (nodes_.size() < static_cast<std::size_t>(world_)) nodes_.resize(static_cast<std::size_t>(world_));
    nodes_[static_cast<std::size_t>(rank)] = std::make_unique<SimulatedStorage>(options);
  }

  SimulationOptions simulation() {
    SimulationOptions options;
    options.ranks = {world_};
    options.seed = draw_.bits();
    options.storage = &disk_;
    for (const auto& storage : nodes_) options.local_storages.push_back(storage.get());
    options.io_delay = std::chrono::microseconds(1 + draw_.below(2000));
    options.fabric.bytes_per_second = draw_.below(2) == 0 ? 1e10 : 1e6;
    return options;
  }

  SimulatedFault draw_death() {
    SimulatedFault fault;
    fault.rank = {static_cast<std::int32_t>(draw_.below(world()))};
    if (draw_.below(2) == 0) {
      fault.at = std::chrono::microseconds(draw_.below(20'000));
      return fault;
    }
    const char* const states[] = {"copying", "copied", "receiving", "held", "tidying", "kept"};
    fault.role = messages::Role::replica_keeper;
    fault.state = states[draw_.below(6)];
    return fault;
  }

  /// Ruins at most as much as cliques are there for, or now and then everything.
  void lose_nodes() {
    const bool lost_all = draw_.below(8) == 0;
    for (std::int32_t rank = 0; rank < world_; ++rank) {
      const bool first_of_clique = rank % (jump_ * factor_) < jump_;
      if (first_of_clique && !lost_all) continue;
      switch (draw_.below(4)) {
        case 0:
          replace(rank);
          break;
        case 1:
          node(static_cast<std::uint32_t>(rank))->crash();
          break;
        default:
          break;
      }
    }
    if (lost_all) promised_ = 0;
  }

  std::string judge(const JobOutcome<TinyTrainerResult>& outcome) {
    const auto problems = problems_of(outcome.report);
    if (!problems.empty()) return problems;
    for (const auto& rank : outcome.ranks) {
      const auto from = rank.restored ? rank.restored->step.value : 0;
      if (from < promised_)
        return fmt::format("began after {} steps, the save after step {} was called good", from, promised_);
      if (rank.state_hash != expected()) return fmt::format("other bits, beginning after {} steps", from);
    }
    const auto& restored = outcome.ranks[0].restored;
    (!restored ? marks_.anew : restored->is_local ? marks_.local : marks_.checkpoint) += 1;
    return {};
  }

  static std::uint64_t expected() {
    static const std::uint64_t hash = [] {
      auto options = tiny_job(core::Strategy::ddp);
      options.steps = kSteps;
      return simulate_tiny(1, 1, options).ranks[0].state_hash;
    }();
    return hash;
  }

  RandomStream draw_;
  Marks& marks_;
  int world_ = 1;
  int factor_ = 1;
  int jump_ = 1;
  TinyTrainerOptions job_;
  std::int64_t promised_ = 0;
  std::vector<std::unique_ptr<SimulatedStorage>> nodes_;
  SimulatedStorage disk_;
};

void run_seeds(std::uint64_t seeds) {
  Marks marks;
  for (std::uint64_t seed = 0; seed < seeds; ++seed)
    ASSERT_EQ(LocalHistory(seed, marks).run(), "") << "seed " << seed;
  for (auto count : {marks.committed, marks.failed, marks.killed, marks.local, marks.checkpoint, marks.anew})
    EXPECT_GT(count, seeds / 100) << "this swarm hardly meets what it is for";
  fmt::print(
      "{} seeds: {} local saves, {} failed, {} deaths; went on from {} local saves, {} checkpoints, {} "
      "anew\n",
      seeds, marks.committed, marks.failed, marks.killed, marks.local, marks.checkpoint, marks.anew);
}

// Covers local-11.
TEST(SwarmOfLocalTiers, KeepsWhatWasPromisedAndTheBits) {
  run_seeds(kSeeds);
}

TEST(SwarmOfLocalTiers, DISABLED_ManySeeds) {
  run_seeds(kManySeeds);
}

}  // namespace
}  // namespace troupe::actors
