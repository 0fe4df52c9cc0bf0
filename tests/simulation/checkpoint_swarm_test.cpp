#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <optional>

#include "actors/planes/checkpoint/reader.hpp"
#include "actors/world/random.hpp"
#include "tests/actors/planes/checkpoint/faulty_storage.hpp"
#include "tests/simulation/checkpoint_job.hpp"

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;

/// A few seconds' worth. SwarmOfCheckpoints.DISABLED_ManySeeds runs as many as it takes to believe it:
/// simulation_tests --gtest_also_run_disabled_tests --gtest_filter='*Checkpoints*ManySeeds*'
constexpr std::uint64_t kSeeds = 500;
constexpr std::uint64_t kManySeeds = 12'000;

/// What some number of seeds has met; a swarm that meets nothing proves nothing.
struct Marks {
  std::uint64_t jobs = 0;
  std::uint64_t committed = 0;
  std::uint64_t failed_saves = 0;
  std::uint64_t killed = 0;
  std::uint64_t restored = 0;
  std::uint64_t passed_over = 0;
  std::uint64_t nothing_to_begin_with = 0;
};

/// A disk through several jobs: each a draw of everything, each perhaps ended by a fault, then a crash, and
/// the next one goes on from what the disk still has.
class History {
 public:
  History(std::uint64_t seed, Marks& marks)
      : seed_(seed), draw_(seed, "checkpoint_swarm_test", "history"), marks_(marks), disk_(disk_options(0)) {}

  /// Empty, or what went wrong.
  std::string run() {
    const auto jobs = 1 + draw_.below(3);
    for (std::uint32_t job = 0; job < jobs; ++job) {
      auto complaint = run_job(false);
      if (complaint.empty()) complaint = end_job();
      if (!complaint.empty()) return complaint + "\n" + story_;
    }
    disk_.set_lying(false);
    auto complaint = run_job(true);
    return complaint.empty() ? "" : complaint + "\n" + story_;
  }

 private:
  SimulatedStorageOptions disk_options(double rate) const {
    SimulatedStorageOptions options;
    options.seed = seed_;
    options.sector_bytes = 64;
    options.write_failure = options.sync_failure = rate;
    options.read_failure = rate / 10;
    return options;
  }

  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[draw_.below(static_cast<std::uint32_t>(values.size()))];
  }

  TinyTrainerOptions draw_options(int ranks) {
    steps_ += 1 + draw_.below(4);
    auto options = saving_job(saving_mesh(ranks, draw_.bits()), steps_, 1 + draw_.below(2));
    options.restore = true;
    auto& checkpoint = options.session.checkpoint;
    checkpoint.chunk_bytes = one_of({std::uint64_t{32}, std::uint64_t{100}, std::uint64_t{4096}});
    checkpoint.staging_bytes = checkpoint.chunk_bytes * one_of({1, 2, 50});
    checkpoint.retention.keep_last = one_of({0, 1, 2});
    checkpoint.retention.keep_every = one_of({0, 0, 3});
    checkpoint.when_busy = one_of({core::WhenBusy::queue, core::WhenBusy::refuse});
    checkpoint.load.mode = one_of({core::LoadMode::exchange, core::LoadMode::read});
    checkpoint.load.exchange_bytes = one_of({std::uint64_t{1}, std::uint64_t{200}, std::uint64_t{1} << 20});
    checkpoint.deadline = one_of({std::chrono::nanoseconds(30s), std::chrono::nanoseconds(30ms)});
    options.session.step_deadline = 60s;
    options.session.training.overlap = draw_.below(3) != 0;
    return options;
  }

  void draw_disk_faults() {
    auto options = disk_options(one_of({0.0, 0.0, 0.0, 0.005, 0.05}));
    reads_fail_ = options.read_failure > 0;
    if (draw_.below(6) == 0) options.capacity_bytes = disk_.used_bytes() + draw_.below(12'000);
    disk_.set_options(options);
    if (draw_.below(8) == 0) lied_ = true;
    disk_.set_lying(lied_);
  }

  std::vector<SimulatedFault> draw_faults(int ranks) {
    if (draw_.below(3) != 0) return {};
    SimulatedFault fault;
    fault.rank = {static_cast<int>(draw_.below(static_cast<std::uint32_t>(ranks)))};
    fault.kind = draw_.below(5) == 0 ? SimulatedFault::Kind::hang : SimulatedFault::Kind::kill;
    fault.at = draw_.up_to(5ms);
    if (draw_.below(2) == 0) {
      const bool of_writer = fault.rank.value != 0 || draw_.below(2) == 0;
      fault.role = of_writer ? messages::Role::checkpoint_writer : messages::Role::checkpoint_coordinator;
      fault.state = of_writer ? one_of({"accepted", "staging", "staged", "written", "durable", "committed",
                                        "failed", "aborted"})
                              : one_of({"gathering", "preparing", "writing", "committing", "idle"});
    }
    return {fault};
  }

  std::string run_job(bool last) {
    const int ranks = 1 + static_cast<int>(draw_.below(4));
    auto options = draw_options(ranks);
    if (last) disk_.set_options(disk_options(0));
    if (last) reads_fail_ = false;
    if (!last) draw_disk_faults();
    FaultyStorage faulty(disk_);
    if (!last && draw_.below(3) == 0) {
      faulty.fail_at(draw_.below(150),
                     one_of({FaultyStorage::Fault::one_fails, FaultyStorage::Fault::one_lies,
                             FaultyStorage::Fault::all_follow}));
      reads_fail_ = true;
    }
    auto simulation = machines_of(faulty, ranks, draw_.bits());
    simulation.io_delay = one_of({10us, 200us, 20000us});
    if (!last) simulation.faults = draw_faults(ranks);
    marks_.jobs += 1;
    const auto outcome = simulate_tiny(simulation, options);
    auto complaint = violations_of(outcome.report);
    if (complaint.empty()) complaint = judge(outcome, !simulation.faults.empty());
    note(outcome);
    return complaint;
  }

  /// Storage never ends a job that has begun; what goes on goes on from what was promised, and with the right
  /// bits.
  std::string judge(const JobOutcome<TinyTrainerResult>& outcome, bool has_fault) {
    const auto problems = problems_of(outcome.report);
    const bool nothing_to_begin_with = problems.find("no checkpoint could be loaded") != std::string::npos;
    if (nothing_to_begin_with) marks_.nothing_to_begin_with += 1;
    is_stuck_ = nothing_to_begin_with && promised_ == 0;
    // A disk that does not answer may keep a job from beginning.
    const bool no_answer = reads_fail_ && outcome.report.steps_committed == 0;
    const bool may_end = has_fault || no_answer || (nothing_to_begin_with && promised_ == 0);
    if (!problems.empty() && !may_end) return problems;
    for (std::size_t rank = 0; rank < outcome.ranks.size(); ++rank) {
      if (!outcome.report.results[rank]) continue;
      if (outcome.ranks[rank].state_hash != undisturbed_hash(steps_))
        return fmt::format("rank {} ends with other bits after {} steps", rank, steps_);
      const auto& restored = outcome.ranks[rank].restored;
      const auto from = restored ? restored->step.value : 0;
      if (from < promised_ && !reads_fail_)
        return fmt::format("it begins with step {} though {} was promised", from, promised_);
    }
    return {};
  }

  void note(const JobOutcome<TinyTrainerResult>& outcome) {
    story_ += fmt::format("a job of {} ranks to step {}{}{}\n", outcome.ranks.size(), steps_,
                          lied_ ? ", the disk lies" : "", reads_fail_ ? ", reads may fail" : "");
    for (const auto& save : outcome.report.saves)
      story_ += fmt::format("  save after step {}: {}\n", save.step.value, save.failure.message);
    story_ += fmt::format("  leaves {}\n", fmt::join(*disk_.list(""), ", "));
    for (auto step : committed_steps(outcome.report)) {
      if (!lied_) promised_ = step;
      marks_.committed += 1;
    }
    marks_.failed_saves += outcome.report.saves.size() - committed_steps(outcome.report).size();
    bool killed = false;
    for (const auto& result : outcome.report.results) killed = killed || !result;
    marks_.killed += killed ? 1 : 0;
    const auto& restored = outcome.ranks[0].restored;
    if (!restored) return;
    marks_.restored += 1;
    marks_.passed_over += restored->passed_over.size();
  }

  /// Power goes, or only the processes; bits rot.
  std::string end_job() {
    if (draw_.below(4) != 0) disk_.crash();
    if (lied_) promised_ = 0;
    lied_ = false;
    story_ += fmt::format("  then {}\n", fmt::join(*disk_.list(""), ", "));
    disk_.set_options(disk_options(0));
    // Somebody takes away what no job could begin with.
    const auto names = is_stuck_ ? *disk_.list("") : std::vector<std::string>();
    for (const auto& name : names) {
      if (auto removed = remove_tree(disk_, name); !removed) return removed.error().message;
    }
    is_stuck_ = false;
    const auto checkpoints = *list_checkpoints(disk_);
    if (draw_.below(4) == 0 && checkpoints.size() >= 2) rot(checkpoints.front());
    for (const auto& checkpoint : checkpoints) {
      const auto manifest = check_quickly(disk_, checkpoint.name);
      if (manifest && manifest->step != checkpoint.step) return checkpoint.name + " holds another step";
    }
    return {};
  }

  /// The newest one: then the one before it has to do, when it is whole.
  void rot(const CheckpointName& newest) {
    const auto files = *disk_.list(newest.name);
    if (files.empty()) return;
    const auto file = path_in(newest.name, files[draw_.below(static_cast<std::uint32_t>(files.size()))]);
    if (!disk_.rot(file)) return;
    // Nothing was promised of what the disk lied about, though it may still be there.
    const auto before = std::exchange(promised_, 0);
    const auto checkpoints = *list_checkpoints(disk_);
    for (const auto& checkpoint : checkpoints) {
      const auto manifest = check_quickly(disk_, checkpoint.name);
      if (!manifest || !verify_checkpoint(disk_, checkpoint.name, *manifest)) continue;
      promised_ = std::min(before, checkpoint.step.value);
      break;
    }
  }

  std::uint64_t seed_;
  RandomStream draw_;
  Marks& marks_;
  SimulatedStorage disk_;
  std::int64_t steps_ = 0;  ///< where the job is to end; further than any job before
  std::string story_;
  std::int64_t promised_ = 0;  ///< at least this checkpoint must be there
  bool is_stuck_ = false;      ///< whatever the disk has is damaged
  bool lied_ = false;          ///< the disk lies about syncs in this job
  bool reads_fail_ = false;    ///< a good checkpoint may be passed over
};

void run_seeds(std::uint64_t count) {
  Marks marks;
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    const auto complaint = History(seed, marks).run();
    ASSERT_EQ(complaint, "") << "seed " << seed;
  }

  fmt::print(
      "{} seeds: {} jobs, {} saves committed, {} failed, {} jobs ended early, {} restored, {} checkpoints "
      "passed over, {} jobs had nothing to begin with\n",
      count, marks.jobs, marks.committed, marks.failed_saves, marks.killed, marks.restored, marks.passed_over,
      marks.nothing_to_begin_with);
  EXPECT_GT(marks.committed, count);
  EXPECT_GT(marks.failed_saves, count / 4);
  EXPECT_GT(marks.killed, count / 10);
  EXPECT_GT(marks.restored, count / 2);
  EXPECT_GT(marks.passed_over, count / 50);
}

// Covers ranks-18.
TEST(SwarmOfCheckpoints, KeepsWhatWasCommittedAndLoadsNothingElse) {
  run_seeds(kSeeds);
}

TEST(SwarmOfCheckpoints, DISABLED_ManySeeds) {
  run_seeds(kManySeeds);
}

}  // namespace
}  // namespace troupe::actors
