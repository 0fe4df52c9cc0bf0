#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "actors/simulation/invariants.hpp"
#include "core/indices.hpp"
#include "core/random.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

using core::Strategy;

constexpr int kSteps = 3;

/// A job whose ranks share a model in groups of `tp`.
struct SumCase {
  Strategy strategy = Strategy::zero1;
  int tp = 2;
  int dp = 2;
  int lanes = 4;
  int cp = 1;
  std::int64_t staging = 0;
  core::Numerics numerics = core::Numerics::ordered;
  bool overlap = true;

  std::string name() const {
    return fmt::format("{} tp{} cp{} dp{} lanes{} staging{}", core::name_of(strategy), tp, cp, dp, lanes,
                       staging);
  }
};

/// The model of a member: two parameters that all members keep whole, while each has a part of their
/// gradients, one that all compute alike, and one that is cut. All begin with zeros.
std::vector<core::ParameterSpec> specs_of(const SumCase& job, int member) {
  std::vector<core::ParameterSpec> specs(4);
  specs[0] = {.name = "summed.0", .shape = {7}, .unit = core::UnitIndex{0}, .also_sum = "tp"};
  specs[1] = {.name = "cut", .shape = {3}, .unit = core::UnitIndex{0}};
  specs[1].global_shape = {3 * job.tp};
  specs[1].offset = {3 * member};
  specs[2] = {.name = "alike", .shape = {5}, .unit = core::UnitIndex{1}};
  specs[3] = {.name = "summed.1", .shape = {130}, .unit = core::UnitIndex{1}, .also_sum = "tp"};
  return specs;
}

/// What a member finds in a piece of a lane; of what all compute alike the same on all members.
float gradient_of(const core::ParameterSpec& spec, int member, int piece, int lane, std::int64_t step,
                  std::int64_t element) {
  const int who = spec.name == "alike" ? 0 : member;
  const auto key =
      ((((step * 64 + lane) * 8 + piece) * 8 + who) * 1024 + element) * 2 + (spec.name == "summed.1" ? 1 : 0);
  const auto bits = static_cast<std::uint32_t>(static_cast<std::uint64_t>(key) * 0x9E3779B97F4A7C15ULL >> 33);
  return std::ldexp(static_cast<float>(bits % 100003) - 50000.0F, static_cast<int>(bits % 5) - 16);
}

using Values = std::map<std::string, std::vector<float>>;

struct SumsTrained {
  Values values;
  std::vector<double> norms;
};

core::Result<SumsTrained> train_sums(SimulatedRank& rank, const SumCase& job, bool powers = false) {
  const int member = rank.rank().value % job.tp, piece = rank.rank().value / job.tp % job.cp;
  const auto specs = specs_of(job, member);
  SessionOptions options;
  auto& training = options.training;
  training.strategy = job.strategy;
  training.numerics = job.numerics;
  training.tensor_parallel = job.tp;
  training.context_parallel = job.cp;
  training.lanes = job.lanes;
  training.overlap = job.overlap;
  training.bucket_elements = 6;
  training.staging_elements = job.staging;
  training.optimizer.kind = core::OptimizerKind::sgd;
  if (job.strategy == Strategy::hsdp || job.strategy == Strategy::hfsdp) training.optimizer_instances = 2;
  auto session = TRY(Session::join(rank, options, specs));
  for (const auto index : core::indices<core::ParameterIndex>(specs.size())) {
    TRY(session->write_parameter(
        index, [](std::int64_t, std::span<float> values) { std::fill(values.begin(), values.end(), 0.0F); }));
  }
  SumsTrained trained;
  for (int step = 0; step < kSteps; ++step) {
    TRY(session->begin_step(1.0));
    for (const core::Lane lane : session->lanes()) {
      TRY(session->begin_lane(lane));
      for (const auto index : core::indices<core::ParameterIndex>(specs.size()))
        TRY(session->before_use(index));
      TRY(session->begin_backward());
      for (std::uint32_t i = 4; i-- > 0;) {
        TRY(session->before_use({i}));
        const auto to = TRY(session->gradient({i}));
        for (std::size_t e = 0; e < to.size(); ++e) {
          to[e] += powers
                       ? static_cast<float>(1 << (specs[i].name == "alike" ? 0 : member))
                       : gradient_of(specs[i], member, piece, lane.value, step, static_cast<std::int64_t>(e));
        }
        TRY(session->gradient_ready({i}));
      }
      TRY(session->end_lane(0));
    }
    const auto outcome = TRY(session->finish_step());
    trained.norms.push_back(outcome.gradient_norm);
  }
  TRY(session->begin_evaluation());
  for (const auto index : core::indices<core::ParameterIndex>(specs.size())) {
    TRY(session->before_use(index));
    const auto values = TRY(session->parameter(index));
    trained.values[specs[index.value].name] = {values.begin(), values.end()};
  }
  TRY(session->end_evaluation());
  TRY(session->leave());
  return trained;
}

JobOutcome<SumsTrained> run_sums(const SumCase& job, bool powers = false) {
  SimulationOptions simulation;
  simulation.ranks = {job.tp * job.cp * job.dp};
  simulation.seed = static_cast<std::uint64_t>(job.tp * 16 + job.dp);
  return simulate_job<SumsTrained>(simulation,
                                   [&](SimulatedRank& rank) { return train_sums(rank, job, powers); });
}

/// Neighbours first; one without passes through.
float tree_of(std::vector<float> terms) {
  for (std::size_t apart = 1; apart < terms.size(); apart *= 2)
    for (std::size_t i = 0; i + apart < terms.size(); i += 2 * apart) terms[i] += terms[i + apart];
  return terms[0];
}

/// The loop that the job comes to: of each member lanes, then pieces; then the members in their order; then
/// the scale, and a step of a whole learning rate.
SumsTrained expected_of(const SumCase& job, int member) {
  SumsTrained expected;
  for (const auto& spec : specs_of(job, member))
    expected.values[spec.name].resize(static_cast<std::size_t>(spec.shape[0]));
  const auto of_member = [&](const core::ParameterSpec& spec, int who, int step, std::int64_t element) {
    std::vector<float> pieces;
    for (int piece = 0; piece < job.cp; ++piece) {
      std::vector<float> lanes;
      for (int lane = 0; lane < job.lanes; ++lane)
        lanes.push_back(gradient_of(spec, who, piece, lane, step, element));
      pieces.push_back(tree_of(lanes));
    }
    return tree_of(pieces);
  };
  const float scale = 1.0F / static_cast<float>(job.lanes);
  for (int step = 0; step < kSteps; ++step) {
    double squares = 0;
    for (int who = 0; who < job.tp; ++who) {
      for (const auto& spec : specs_of(job, who)) {
        const bool is_cut = !spec.global_shape.empty();
        for (std::int64_t e = 0; e < spec.shape[0]; ++e) {
          float sum = of_member(spec, spec.also_sum.empty() ? who : 0, step, e);
          for (int other = 1; other < job.tp && !spec.also_sum.empty(); ++other)
            sum += of_member(spec, other, step, e);
          const float gradient = sum * scale;
          if (is_cut || who == 0) squares += static_cast<double>(gradient) * gradient;
          if (who == member) expected.values[spec.name][static_cast<std::size_t>(e)] -= gradient;
        }
      }
    }
    expected.norms.push_back(std::sqrt(squares));
  }
  return expected;
}

void expect_sums(const SumCase& job) {
  const auto outcome = run_sums(job);
  ASSERT_EQ(problems_of(outcome.report), "") << job.name();
  for (std::size_t rank = 0; rank < outcome.ranks.size(); ++rank) {
    const auto expected = expected_of(job, static_cast<int>(rank) % job.tp);
    EXPECT_EQ(outcome.ranks[rank].values, expected.values) << job.name() << ", rank " << rank;
    ASSERT_EQ(outcome.ranks[rank].norms.size(), expected.norms.size());
    for (std::size_t step = 0; step < expected.norms.size(); ++step)
      EXPECT_NEAR(outcome.ranks[rank].norms[step], expected.norms[step], 1e-9 * expected.norms[step])
          << "each element counts once: " << job.name();
  }
}

// Covers reduce-9, beyond-2.
TEST(AlsoSummedGradients, MatchALoopOverLanesThenMembersBitwise) {
  for (const auto strategy :
       {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3, Strategy::hsdp, Strategy::hfsdp}) {
    for (const auto& [tp, dp] : {std::pair{2, 1}, {2, 2}, {4, 2}, {3, 4}}) {
      if ((strategy == Strategy::hsdp || strategy == Strategy::hfsdp) && dp == 1) continue;
      for (const std::int64_t staging : {0, 6})
        expect_sums({.strategy = strategy, .tp = tp, .dp = dp, .lanes = 4, .staging = staging});
    }
  }
}

/// With a scale that is not a power of two, pieces of lanes, and collectives between the passes.
// Covers buffer-12, finish-6.
TEST(AlsoSummedGradients, AreScaledOnceAfterThePiecesOfLanes) {
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3}) {
    expect_sums({.strategy = strategy, .tp = 3, .dp = 1, .lanes = 6});
    expect_sums({.strategy = strategy, .tp = 2, .dp = 2, .lanes = 6, .overlap = false});
    expect_sums({.strategy = strategy, .tp = 2, .dp = 2, .lanes = 6, .cp = 2});
  }
}

/// What each member adds names it, so the sum says exactly who was counted, and how often.
// Covers reduce-9, finish-6.
TEST(AlsoSummedGradients, CountEachMemberOnceInBothNumerics) {
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3, Strategy::hsdp}) {
    for (const auto numerics : {core::Numerics::ordered, core::Numerics::fast}) {
      const SumCase job{.strategy = strategy, .tp = 4, .dp = 2, .numerics = numerics};
      const auto outcome = run_sums(job, true);
      ASSERT_EQ(problems_of(outcome.report), "") << job.name();
      for (std::size_t rank = 0; rank < outcome.ranks.size(); ++rank) {
        const auto& values = outcome.ranks[rank].values;
        const auto own = static_cast<float>(1 << (rank % 4));
        EXPECT_EQ(values.at("summed.0"), std::vector<float>(7, -kSteps * 15.0F)) << job.name();
        EXPECT_EQ(values.at("summed.1"), std::vector<float>(130, -kSteps * 15.0F)) << job.name();
        EXPECT_EQ(values.at("cut"), std::vector<float>(3, -kSteps * own)) << job.name();
        EXPECT_EQ(values.at("alike"), std::vector<float>(5, -kSteps * 1.0F)) << job.name();
      }
    }
  }
}

std::string join_error(const std::function<void(core::ParameterSpec&, int member)>& change) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  const auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    const int member = rank.rank().value;
    auto specs = specs_of({}, member);
    change(specs[0], member);
    SessionOptions options;
    options.training.tensor_parallel = 2;
    TRY(Session::join(rank, options, specs));
    return true;
  });
  return outcome.report.results[0] ? "" : outcome.report.results[0].error().message;
}

// Covers finish-14.
TEST(AlsoSummedGradients, OfDifferentlyUsedParametersAreRefusedByName) {
  const auto one = join_error([](core::ParameterSpec& spec, int member) {
    if (member == 1) spec.also_sum.clear();
  });
  EXPECT_NE(
      one.find("rank 0 has \"parameter summed.0 f32 [7] decays=true group=0 summed over tp\", the other "
               "has \"parameter summed.0 f32 [7] decays=true group=0\""),
      std::string::npos)
      << one;
  const auto other = join_error([](core::ParameterSpec& spec, int member) {
    if (member == 1) spec.shape = {8};
  });
  EXPECT_NE(other.find("parameter summed.0 f32 [8]"), std::string::npos) << other;
  EXPECT_EQ(
      join_error([](core::ParameterSpec& spec, int) { spec.also_sum = "cp"; }),
      "the gradient of parameter summed.0 is to be summed over the group \"cp\", found no such sum; \"tp\" "
      "and \"pp\" are the groups that ParameterSpec::also_sum may name");
  EXPECT_EQ(
      join_error([](core::ParameterSpec& spec, int member) {
        spec.global_shape = {14};
        spec.offset = {7 * member};
      }),
      "parameter summed.0 is a part of a tensor, of which each rank of the group \"tp\" has another, so "
      "gradients of it cannot be summed over them; leave out global_shape or also_sum");
}

/// FG-1, told launch by launch.
class FinalSums : public testing::Test {
 protected:
  void launch(FinalSum what, int step) {
    monitor_.on_work({{0}, messages::Role::conductor, 0},
                     LaunchCollective{.step = {step}, .final_sum = what, .bucket = {3}});
  }
  std::vector<std::string> step_shard(int step) {
    monitor_.on_work({{0}, messages::Role::parameter_shard, 3},
                     StepShard{.step = {step}, .bucket = {3}, .commit = true});
    std::vector<std::string> found;
    for (const auto& sentence : monitor_.violations()) {
      if (sentence.starts_with("FG-1")) found.push_back(sentence);
    }
    return found;
  }

  InvariantMonitor monitor_;
};

using Sentences = std::vector<std::string>;

TEST_F(FinalSums, OncePerStepViolateNothing) {
  for (const int step : {4, 5}) {
    launch(FinalSum::awaits, step);
    launch(FinalSum::is, step);
    EXPECT_EQ(step_shard(step), Sentences{});
  }
}

TEST_F(FinalSums, ThatAreMissingAreNamed) {
  launch(FinalSum::awaits, 4);
  EXPECT_EQ(step_shard(4), Sentences{"FG-1: rank 0 steps bucket 3 in step 4, whose gradients were not summed "
                                     "over their group once"});
}

TEST_F(FinalSums, ThatComeTwiceOrEarlyAreNamed) {
  launch(FinalSum::awaits, 4);
  launch(FinalSum::is, 4);
  launch(FinalSum::is, 4);
  EXPECT_EQ(step_shard(4).front(),
            "FG-1: rank 0 sums the gradients of bucket 3 over their group again in step 4");
  launch(FinalSum::is, 5);
  EXPECT_EQ(
      step_shard(5)[2],
      "FG-1: rank 0 sums the gradients of bucket 3 over their group before their last reduction in step 5");
}

}  // namespace
}  // namespace troupe::actors
