#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "actors/session/trainer_group.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/errors.hpp"
#include "core/indices.hpp"
#include "core/random.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using core::Rank;
using messages::Role;

constexpr std::size_t kWide = 3, kEach = 4, kPicks = 2, kRows = 6;
using Floats = std::vector<float>;

struct MoeJob {
  int ranks = 1;
  int ep = 1;
  core::Strategy strategy = core::Strategy::zero1;
  double bias_rate = 0.125;
  std::optional<double> capacity_factor{};
  std::optional<std::int64_t> most_rows{};
  int steps = 4;
  std::uint64_t seed = 0;
  std::vector<SimulatedFault> faults{};
  Storage* storage = nullptr;
  std::int64_t refuse_step = -1;

  friend std::ostream& operator<<(std::ostream& out, const MoeJob& job) {
    return out << core::name_of(job.strategy) << "On" << job.ranks << "ep" << job.ep;
  }
};

struct MoeResult {
  std::map<std::string, Floats> parameters;
  std::vector<double> losses;
  std::vector<StepOutcome> outcomes;
  std::vector<Floats> biases;  ///< after each step
  std::vector<std::int64_t> chosen, dropped;
  std::uint64_t left_out = 0;  ///< choices that had no slot
};

/// One layer of linear experts: y = sum of weight * W x. The loss is y times constants.
class MoeTrainer {
 public:
  MoeTrainer(Session& session, ExpertLayer& layer) : session_(session), layer_(layer) {}

  static std::vector<core::ParameterSpec> specs(const MoeJob& job, Rank rank) {
    const auto wide = static_cast<std::int64_t>(kWide);
    std::vector<core::ParameterSpec> specs{{"router", {static_cast<std::int64_t>(kEach), wide}}};
    specs.back().unit = core::UnitIndex{0};
    const int own = static_cast<int>(kEach) / job.ep, first = rank.value % job.ep * own;
    for (int expert = first; expert < first + own; ++expert) {
      specs.push_back({fmt::format("expert.{}", expert), {wide, wide}});
      specs.back().is_expert = true;
      specs.back().unit = core::UnitIndex{0};
    }
    return specs;
  }

  core::Result<void> play(core::Lane lane) {
    TRY(session_.begin_lane(lane));
    const core::CounterRandom random(7, "data", session_.next_step(), lane);
    Floats x(kRows * kWide), d_out(kRows * kWide);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = random.uniform(i) - 0.25F;
      d_out[i] = random.uniform(x.size() + i) - 0.5F;
    }
    TRY(session_.before_use({0}));
    const auto router = TRY(session_.parameter({0}));
    Floats logits(kRows * kEach);
    for (std::size_t n = 0; n < kRows; ++n) {
      for (std::size_t e = 0; e < kEach; ++e) logits[n * kEach + e] = dot(&x[n * kWide], &router[e * kWide]);
    }
    const auto routes = TRY(layer_.route(logits));
    auto slots = routes.gather(kWide, x);
    Floats rows(routes.received * kWide), results(rows.size());
    TRY(layer_.dispatch(routes, gpu::view_of(std::as_const(slots)), gpu::view_of(rows), kRowBytes));
    for (const auto& [expert, source, first, end] : routes.products) {
      TRY(session_.before_use({1 + expert}));
      const auto weights = TRY(session_.parameter({1 + expert}));
      for (std::size_t i = first * kWide; i < end * kWide; ++i)
        results[i] = dot(&weights[i % kWide * kWide], &rows[i / kWide * kWide]);
    }
    TRY(layer_.combine(routes, gpu::view_of(std::as_const(results)), gpu::view_of(slots), kRowBytes));
    const double loss = TRY(backward(routes, {x, d_out, logits, slots, rows}));
    left_out += static_cast<std::uint64_t>(
        std::count(routes.slot_of_choice.begin(), routes.slot_of_choice.end(), std::int64_t{-1}));
    return session_.end_lane(loss);
  }

  std::uint64_t left_out = 0;

 private:
  static constexpr std::size_t kRowBytes = kWide * sizeof(float);
  struct Kept {
    const Floats &x, &d_out, &logits, &slots, &rows;
  };

  static float dot(const float* a, const float* b) {
    float sum = 0;
    for (std::size_t c = 0; c < kWide; ++c) sum += a[c] * b[c];
    return sum;
  }
  core::Result<double> backward(const ExpertRouting& routes, const Kept& kept) {
    TRY(session_.begin_backward());
    const auto y = routes.weigh(kWide, kept.slots);
    double loss = 0;
    for (std::size_t i = 0; i < y.size(); ++i)
      loss += static_cast<double>(y[i]) * static_cast<double>(kept.d_out[i]);
    const auto d = routes.weigh_backward(kWide, kept.slots, kept.d_out);
    Floats d_rows(kept.rows.size()), d_logits(kept.logits.size());
    TRY(layer_.dispatch(routes, gpu::view_of(d.slots), gpu::view_of(d_rows), kRowBytes));
    for (int e = layer_.experts_here(); e-- > 0;) {
      const core::ParameterIndex parameter{static_cast<std::uint32_t>(e) + 1};
      TRY(session_.before_use(parameter));
      for (const auto& [expert, source, first, end] : routes.products) {
        if (expert + 1 != parameter.value) continue;
        const auto gradient = TRY(session_.gradient(parameter, source));
        for (std::size_t row = first; row < end; ++row) {
          for (std::size_t i = 0; i < kWide * kWide; ++i)
            gradient[i] += d_rows[row * kWide + i / kWide] * kept.rows[row * kWide + i % kWide];
        }
      }
      TRY(session_.gradient_ready(parameter));
    }
    TRY(layer_.route_backward(routes, kept.logits, d.weights, d_logits));
    TRY(session_.before_use({0}));
    const auto gradient = TRY(session_.gradient({0}));
    for (std::size_t n = 0; n < kRows; ++n) {
      for (std::size_t i = 0; i < kEach * kWide; ++i)
        gradient[i] += d_logits[n * kEach + i / kWide] * kept.x[n * kWide + i % kWide];
    }
    TRY(session_.gradient_ready({0}));
    return loss;
  }

  Session& session_;
  ExpertLayer& layer_;
};

SessionOptions options_of(const MoeJob& job) {
  SessionOptions options;
  options.training.strategy = job.strategy;
  options.training.lanes = 8;
  options.training.expert_parallel = job.ep;
  options.training.optimizer.kind = core::OptimizerKind::adamw;
  options.step_deadline = std::chrono::seconds(10);
  core::ExpertLayerOptions layer;
  layer.experts = kEach;
  layer.choices = kPicks;
  layer.tokens = kRows;
  layer.bias_rate = job.bias_rate;
  layer.capacity_factor = job.capacity_factor;
  layer.most_rows = job.most_rows;
  options.training.experts = {{}, layer};  // the first layer of the model has none
  return options;
}

core::Result<MoeResult> train_moe(SimulatedRank& rank, const MoeJob& job) {
  auto session = TRY(Session::join(rank, options_of(job), MoeTrainer::specs(job, rank.rank())));
  auto& layer = *TRY(session->experts(1));
  for (const auto index : core::indices<core::ParameterIndex>(session->parameters().size())) {
    const core::CounterRandom random(1, session->parameters()[index.value].name);
    TRY(session->write_parameter(index, [&](std::int64_t first, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = random.uniform(static_cast<std::size_t>(first) + i) - 0.5F;
    }));
  }
  if (job.storage != nullptr) TRY(session->restore());
  MoeTrainer trainer(*session, layer);
  MoeResult result;
  while (session->next_step().value < job.steps) {
    TRY(session->begin_step(0.02));
    for (const core::Lane lane : session->lanes()) TRY(trainer.play(lane));
    const bool refuses = session->next_step().value == job.refuse_step && rank.rank().value == 0;
    result.outcomes.push_back(TRY(session->finish_step(refuses ? "as a test" : "")));
    result.losses.push_back(result.outcomes.back().loss);
    result.biases.emplace_back(layer.bias().begin(), layer.bias().end());
    if (job.storage != nullptr) TRY(session->save());
  }
  result.chosen.assign(layer.chosen().begin(), layer.chosen().end());
  result.dropped.assign(layer.dropped().begin(), layer.dropped().end());
  result.left_out = trainer.left_out;
  TRY(session->begin_evaluation());
  for (const auto index : core::indices<core::ParameterIndex>(session->parameters().size())) {
    TRY(session->before_use(index));
    const auto values = TRY(session->parameter(index));
    result.parameters[session->parameters()[index.value].name].assign(values.begin(), values.end());
  }
  TRY(session->end_evaluation());
  TRY(session->leave());
  return result;
}

JobOutcome<MoeResult> run_moe(const MoeJob& job) {
  SimulationOptions simulation;
  simulation.ranks = {job.ranks};
  simulation.seed = job.seed;
  simulation.faults = job.faults;
  simulation.storage = job.storage;
  return simulate_job<MoeResult>(simulation, [&](SimulatedRank& rank) { return train_moe(rank, job); });
}

/// Those of all ranks, which have other experts.
std::map<std::string, Floats> all_parameters(const JobOutcome<MoeResult>& outcome) {
  std::map<std::string, Floats> all;
  for (const auto& rank : outcome.ranks) {
    for (const auto& [name, values] : rank.parameters)
      EXPECT_EQ(all.try_emplace(name, values).first->second, values);
  }
  return all;
}

void expect_same(const JobOutcome<MoeResult>& one, const JobOutcome<MoeResult>& other) {
  EXPECT_EQ(violations_of(other.report), "");
  for (const auto& result : other.report.results) ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(all_parameters(other), all_parameters(one));
  for (const auto& rank : other.ranks) {
    EXPECT_EQ(rank.losses, one.ranks[0].losses);
    EXPECT_EQ(rank.biases, one.ranks[0].biases);
    EXPECT_EQ(rank.chosen, one.ranks[0].chosen);
    EXPECT_EQ(rank.dropped, one.ranks[0].dropped);
  }
}

class ExpertLayersOn : public testing::TestWithParam<MoeJob> {};

TEST_P(ExpertLayersOn, HaveTheBitsOfOneRank) {
  for (const double bias_rate : {0.0, 0.125}) {
    for (const std::optional<double> capacity : {std::optional<double>(), std::optional(0.75)}) {
      MoeJob one, other = GetParam();
      one.bias_rate = other.bias_rate = bias_rate;
      one.capacity_factor = other.capacity_factor = capacity;
      const auto alone = run_moe(one);
      expect_same(alone, run_moe(other));

      std::int64_t chosen = 0, dropped = 0;
      for (const auto count : alone.ranks[0].chosen) chosen += count;
      for (const auto count : alone.ranks[0].dropped) dropped += count;
      EXPECT_EQ(chosen, 4 * 8 * static_cast<std::int64_t>(kRows * kPicks)) << "all steps and lanes";
      EXPECT_EQ(dropped > 0, capacity.has_value());
      EXPECT_EQ(static_cast<std::uint64_t>(dropped), alone.ranks[0].left_out);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExpertLayersOn,
                         testing::Values(MoeJob{2, 1}, MoeJob{2, 2}, MoeJob{4, 2}, MoeJob{4, 4},
                                         MoeJob{2, 2, core::Strategy::ddp},
                                         MoeJob{4, 2, core::Strategy::zero3},
                                         MoeJob{4, 4, core::Strategy::zero2}, MoeJob{8, 4}),
                         testing::PrintToStringParamName());

TEST(ExpertLayers, MoveBiasesInCommittedStepsOnly) {
  MoeJob job{2, 2};
  job.refuse_step = 1;
  const auto outcome = run_moe(job);

  EXPECT_EQ(violations_of(outcome.report), "");
  const auto& biases = outcome.ranks[1].biases;
  ASSERT_EQ(biases.size(), 4u);
  EXPECT_NE(biases[0], Floats(kEach, 0));
  EXPECT_EQ(biases[1], biases[0]);
  EXPECT_NE(biases[2], biases[1]);
  EXPECT_EQ(outcome.ranks[0].biases, biases);
}

TEST(ExpertLayers, GoOnFromACheckpointOnOtherRanks) {
  SimulatedStorage whole({}), parts({});
  MoeJob one;
  one.storage = &whole;
  const auto through = run_moe(one);
  MoeJob first{2, 2};
  first.storage = &parts;
  first.steps = 2;
  run_moe(first);
  MoeJob rest{4, 4};
  rest.storage = &parts;
  const auto resumed = run_moe(rest);

  EXPECT_EQ(violations_of(resumed.report), "");
  EXPECT_EQ(all_parameters(resumed), all_parameters(through));
  EXPECT_EQ(resumed.ranks[3].biases.back(), through.ranks[0].biases.back());
  EXPECT_EQ(resumed.ranks[3].chosen, through.ranks[0].chosen);
}

// DeepSeek-V3 has this many: more than values of a checkpoint would have room for.
TEST(ExpertLayers, KeepBiasesAndLoadsOfAnyNumber) {
  constexpr std::uint32_t kMany = 58, kOfEach = 256;
  SimulatedStorage disk({});
  const auto play = [&](int ranks, bool counts) {
    SimulationOptions simulation;
    simulation.ranks = {ranks};
    simulation.storage = &disk;
    return simulate_job<std::vector<Floats>>(
        simulation, [&](SimulatedRank& rank) -> core::Result<std::vector<Floats>> {
          SessionOptions options;
          options.training.lanes = 2;
          options.training.unused_parameters = core::UnusedParameters::zeros;
          options.training.experts.resize(kMany);
          for (auto& layer : options.training.experts) {
            layer.experts = kOfEach;
            layer.tokens = 1;
            layer.bias_rate = 0.01;
          }
          auto session = TRY(Session::join(rank, options, {{"w", {4}}}));
          TRY(session->restore());
          if (counts) {
            TRY(session->begin_step(0.1));
            for (const auto lane : session->lanes()) {
              TRY(session->begin_lane(lane));
              for (std::uint32_t layer = 0; layer < kMany; ++layer) {
                std::vector<std::int64_t> chosen(kOfEach);
                chosen[(layer + static_cast<std::uint32_t>(lane.value)) % kOfEach] = 2;
                TRY(TRY(session->experts(layer))->count(chosen, std::vector<std::int64_t>(kOfEach)));
              }
              TRY(session->end_lane(0));
            }
            TRY(session->finish_step());
            TRY(session->save());
          }
          std::vector<Floats> biases;
          for (std::uint32_t layer = 0; layer < kMany; ++layer) {
            const auto& experts = *TRY(session->experts(layer));
            EXPECT_EQ(experts.chosen()[layer % kOfEach], 2);
            EXPECT_EQ(experts.chosen()[layer % kOfEach + 1], 2);
            biases.emplace_back(experts.bias().begin(), experts.bias().end());
          }
          TRY(session->leave());
          return biases;
        });
  };

  const auto saved = play(2, true), restored = play(1, false);

  EXPECT_EQ(violations_of(saved.report) + violations_of(restored.report), "");
  ASSERT_EQ(restored.ranks[0].size(), std::size_t{kMany});
  EXPECT_EQ(restored.ranks[0], saved.ranks[1]);
  EXPECT_EQ(restored.ranks[0][57][57], -0.01F);
  EXPECT_EQ(restored.ranks[0][57][59], 0.01F);
}

TEST(ExpertLayers, RefuseTheStepEverywhereWhenOneRankOverflows) {
  MoeJob job{2, 2};
  job.most_rows = 13;  // on average 12 come
  job.steps = 6;
  const auto outcome = run_moe(job);

  EXPECT_EQ(violations_of(outcome.report), "");
  int refused = 0;
  for (std::size_t step = 0; step < 6; ++step) {
    const auto& own = outcome.ranks[0].outcomes[step];
    EXPECT_EQ(outcome.ranks[1].outcomes[step].committed, own.committed);
    if (own.committed) continue;
    refused += 1;
    EXPECT_NE(own.reason.find("rows would come to the experts of layer 1 on rank"), std::string::npos)
        << own.reason;
  }
  EXPECT_GT(refused, 0);
}

// A swarm of deaths in every state of an ExpertGroup: all others end with the dead rank's name.
TEST(ExpertLayers, EndEverywhereWhenOneDiesInAnyState) {
  for (const auto* state : {"counting", "exchanging", "computing", "combining", "idle"}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE(fmt::format("{} {}", state, seed));
      MoeJob job{4, seed % 2 == 0 ? 4 : 2};
      job.seed = seed;
      const Rank dead{static_cast<std::int32_t>(seed)};
      job.faults = {
          {.kind = SimulatedFault::Kind::kill, .rank = dead, .role = Role::expert_group, .state = state}};
      const auto outcome = run_moe(job);

      EXPECT_EQ(violations_of(outcome.report), "");
      for (std::int32_t rank = 0; rank < 4; ++rank) {
        if (rank == dead.value) continue;
        const auto& result = outcome.report.results[static_cast<std::size_t>(rank)];
        ASSERT_FALSE(result);
        EXPECT_NE(result.error().message.find(fmt::format("rank {}", dead.value)), std::string::npos)
            << result.error().message;
      }
    }
  }
}

TEST(ExpertLayers, NameTheRankWhoseCountsAreMissing) {
  const MoeJob job{2, 2};
  SimulationOptions simulation;
  simulation.ranks = {2};
  const auto outcome = simulate_job<int>(simulation, [&](SimulatedRank& rank) -> core::Result<int> {
    auto session = TRY(Session::join(rank, options_of(job), MoeTrainer::specs(job, rank.rank())));
    TRY(session->begin_step(0.1));
    TRY(session->begin_lane(session->lanes().front()));
    if (rank.rank().value == 1) rank.compute(std::chrono::minutes(5));
    TRY(TRY(session->experts(1))->route(Floats(kRows * kEach, 1)));
    return 0;
  });

  ASSERT_FALSE(outcome.report.results[0]);
  const auto message = outcome.report.results[0].error().message;
  EXPECT_NE(message.find("counts of layer 1 in lane 0"), std::string::npos) << message;
  EXPECT_NE(message.find("rank 1"), std::string::npos) << message;
}

TEST(ExpertLayers, SayWhatIsOutOfTurn) {
  const MoeJob job{2, 2};
  SimulationOptions simulation;
  simulation.ranks = {2};
  const auto outcome = simulate_job<int>(simulation, [&](SimulatedRank& rank) -> core::Result<int> {
    auto session = TRY(Session::join(rank, options_of(job), MoeTrainer::specs(job, rank.rank())));
    EXPECT_EQ(session->experts(0).error().message,
              "there is no layer 0 of experts; TrainingOptions::experts has layers 1");
    auto& layer = *TRY(session->experts(1));
    EXPECT_EQ(layer.first_expert(), 2 * rank.rank().value);
    EXPECT_EQ(layer.most_rows(), 2 * static_cast<std::int64_t>(kRows * kPicks));
    TRY(session->begin_step(0.1));
    TRY(session->begin_lane(session->lanes().front()));
    EXPECT_EQ(layer.route(Floats(kEach * (kRows + 1))).error().code, Errc::invalid_argument);
    EXPECT_EQ(layer.route(Floats(kEach + 1)).error().code, Errc::invalid_argument);
    const auto routes = TRY(layer.route(Floats(kRows * kEach, 1)));
    Floats slots(kRows * kPicks * kWide), rows(2 * slots.size());
    const auto view = [](Floats& values) { return gpu::view_of(std::span(values)); };
    const auto early = layer.combine(routes, view(rows), view(slots), kWide * sizeof(float));
    EXPECT_EQ(
        early.error().message,
        "rows of exchange 1 of layer 1 cannot go back: they are not with their experts; let them go out "
        "first");
    Floats small(kWide);
    EXPECT_EQ(layer.dispatch(routes, view(slots), view(small), kWide * sizeof(float)).has_value(),
              routes.received <= 1);
    TRY(routes.received <= 1 ? core::Result<void>{}
                             : layer.dispatch(routes, view(slots), view(rows), kWide * sizeof(float)));
    TRY(session->end_lane(0));
    for (std::size_t lane = 1; lane < session->lanes().size(); ++lane) {
      TRY(session->begin_lane(session->lanes()[lane]));
      TRY(session->end_lane(0));
    }
    EXPECT_EQ(
        session->finish_step().error().message,
        fmt::format("rows of exchange 1 of layer 1 in lane {} have not come back; combine() them before "
                    "finish_step()",
                    session->lanes().front().value));
    TRY(layer.combine(routes, view(rows), view(slots), kWide * sizeof(float)));
    EXPECT_FALSE(TRY(session->finish_step()).committed) << "there were no gradients";
    TRY(session->leave());
    return 0;
  });

  for (const auto& result : outcome.report.results) EXPECT_TRUE(result) << result.error().message;
  EXPECT_EQ(violations_of(outcome.report), "");
}

TEST(ExpertLayers, AreCheckedWhenRanksJoin) {
  const auto join = [](const MoeJob& job, const std::function<void(core::ExpertLayerOptions&, Rank)>& alter) {
    SimulationOptions simulation;
    simulation.ranks = {job.ranks};
    const auto outcome = simulate_job<int>(simulation, [&](SimulatedRank& rank) -> core::Result<int> {
      auto options = options_of(job);
      alter(options.training.experts[1], rank.rank());
      TRY(Session::join(rank, options, MoeTrainer::specs(job, rank.rank())));
      return 0;
    });
    const auto& result = outcome.report.results.back();
    return result ? std::string() : result.error().message;
  };
  using Layer = core::ExpertLayerOptions;

  EXPECT_NE(join({2, 2}, [](Layer& layer, Rank) { layer.experts = 3; }).find("3 experts"), std::string::npos);
  EXPECT_NE(join({1, 1}, [](Layer& layer, Rank) { layer.choices = 5; }).find("5 choices"), std::string::npos);
  EXPECT_NE(join({1, 1}, [](Layer& layer, Rank) { layer.choices = 0; }).find("0 choices"), std::string::npos);
  EXPECT_NE(join({1, 1}, [](Layer& layer, Rank) { layer.tokens = 0; }).find("0 tokens"), std::string::npos);
  EXPECT_NE(join({1, 1}, [](Layer& layer, Rank) { layer.bias_rate = -1; }).find("bias rate of -1"),
            std::string::npos);
  EXPECT_NE(join({1, 1}, [](Layer& layer, Rank) { layer.capacity_factor = 0; }).find("capacity factor"),
            std::string::npos);
  EXPECT_NE(join({2, 1}, [](Layer& layer, Rank rank) { layer.bias_rate = 1 + rank.value; })
                .find("experts of layer 1"),
            std::string::npos);
}

}  // namespace
}  // namespace troupe::actors
