// A trainer goes through faults before any machine does: the same function that a process of a real job calls
// runs here on all ranks of simulated jobs, in one thread and in virtual time. Processes die, hang and join,
// power fails, and after every job the parameters are those of one that was left alone:
//
//   build/release/bin/faults
//   build/release/bin/faults 17     # job 17 alone, and what happened in it
#include <cstdio>
#include <cstdlib>
#include <troupe/core/random.hpp>
#include <troupe/faults.hpp>
#include <troupe/session.hpp>

using namespace troupe;

namespace {

constexpr int kInputs = 16;
constexpr int kSteps = 60;

/// Learns a linear function. Each step computes for ten milliseconds; every tenth is followed by a save.
core::Result<void> train(actors::RankWorld& world, core::Strategy strategy, std::vector<float>& learned) {
  actors::SessionOptions options;
  options.training.lanes = 4;
  options.training.strategy = strategy;
  auto session = TROUPE_TRY(actors::Session::join(world, options, {{"weight", {kInputs}}}));
  if (!TROUPE_TRY(session->recover())) {
    const auto weight = TROUPE_TRY(session->parameter({0}));
    for (std::size_t i = 0; i < kInputs; ++i) weight[i] = 0;
    TROUPE_TRY(session->restore());
  }
  while (session->next_step().value < kSteps) {
    const auto step = session->next_step();
    TROUPE_TRY(session->begin_step(0.05));
    for (const auto lane : session->lanes()) {
      TROUPE_TRY(session->begin_lane(lane));
      TROUPE_TRY(session->before_use({0}));
      const auto weight = TROUPE_TRY(session->parameter({0}));
      const auto gradient = TROUPE_TRY(session->gradient({0}));
      const core::CounterRandom random(1, "inputs", step, lane);
      float error = 0;
      for (std::size_t i = 0; i < kInputs; ++i)
        error += (weight[i] - static_cast<float>(i)) * random.normal(i);
      for (std::size_t i = 0; i < kInputs; ++i) gradient[i] += 2 * error * random.normal(i);
      actors::compute_for(world, std::chrono::milliseconds(10));
      TROUPE_TRY(session->gradient_ready({0}));
      TROUPE_TRY(session->end_lane(error * error));
    }
    TROUPE_TRY(session->finish_step());
    if (session->next_step().value % 10 == 0) TROUPE_TRY(session->save());
  }
  TROUPE_TRY(session->wait_saves());
  TROUPE_TRY(session->publish_all());
  TROUPE_TRY(session->before_use({0}));
  const auto weight = TROUPE_TRY(session->parameter({0}));
  learned.assign(weight.begin(), weight.end());
  return session->leave();
}

}  // namespace

int main(int argc, char** argv) {
  const bool one = argc > 1;
  const auto first = one ? std::strtoull(argv[1], nullptr, 10) : 0;
  std::size_t faults = 0;
  int epochs = 0;
  for (auto seed = first; seed < (one ? first + 1 : 200); ++seed) {
    const auto strategy = seed % 2 == 0 ? core::Strategy::ddp : core::Strategy::zero1;
    std::vector<float> undisturbed;
    std::vector<float> learned;
    actors::simulate_job({.ranks = 1}, [&](auto& world) { return train(world, strategy, undisturbed); });
    actors::SimulatedJobOptions job{.ranks = 4, .seed = seed, .drawn_faults = 4};
    if (seed % 4 < 2) job.fewest_ranks = 1;
    const auto report =
        actors::simulate_job(job, [&](auto& world) { return train(world, strategy, learned); });
    for (const auto& line : report.log) {
      if (one) std::printf("%s\n", line.c_str());
    }
    if (!report.end || learned != undisturbed) {
      std::printf("job %llu: %s\n", static_cast<unsigned long long>(seed),
                  report.end ? "other parameters than without faults" : report.end.error().message.c_str());
      return 1;
    }
    faults += report.faults.size();
    epochs += report.epochs;
  }
  std::printf("%zu faults, %d epochs: all jobs have the parameters of one that was left alone\n", faults,
              epochs);
  return 0;
}
