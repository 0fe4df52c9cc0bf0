#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "actors/session/trainer_group.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/errors.hpp"
#include "core/indices.hpp"
#include "core/random.hpp"
#include "tests/simulation/simulated_job.hpp"
#include "tests/simulation/swarm_of_cuts.hpp"

namespace troupe::actors {
namespace {

using core::DType;
using core::Strategy;

constexpr std::int64_t kWidth = 16;
constexpr int kLayers = 4;
constexpr int kLanes = 4;

/// How a job shares the model: tp ranks cut every vector, pp ranks have consecutive layers.
struct Cut {
  int ranks = 1;
  int tp = 1;
  int pp = 1;
  Strategy strategy = Strategy::zero1;
  int cp = 1;  ///< ranks with a piece of each lane

  std::string name() const {
    const auto text = fmt::format("{}On{}tp{}pp{}", core::name_of(strategy), ranks, tp, pp);
    return cp == 1 ? text : fmt::format("{}cp{}", text, cp);
  }

  friend std::ostream& operator<<(std::ostream& out, const Cut& of) { return out << of.name(); }
};

/// The model: h = x * tied + shift, then h = h * layer for each layer, y = h * tied; all elementwise, so that
/// no cut changes a bit. The loss is the sum of y.
class Model {
 public:
  Model(const Cut& cut, core::Rank rank)
      : width_(kWidth / cut.tp),
        offset_(rank.value % cut.tp * width_),
        piece_(rank.value / cut.tp % cut.cp),
        layers_(kLayers / cut.pp),
        stage_(rank.value / (cut.ranks / cut.pp)),
        stages_(cut.pp) {
    if (is_first() || is_last()) {
      add("tied", true, 0);
      specs_.back().is_copy = !is_first();
    }
    if (is_first()) add("shift", false, 0);
    for (int layer = 0; layer < layers_; ++layer) {
      add(fmt::format("layer.{}", stage_ * layers_ + layer), true, static_cast<std::uint32_t>(layer));
    }
    // Read in forward's first unit and in its last one.
    if (is_first() || is_last()) specs_.front().unit.reset();
  }

  const std::vector<core::ParameterSpec>& specs() const { return specs_; }
  bool is_first() const { return stage_ == 0; }
  bool is_last() const { return stage_ == stages_ - 1; }
  int layers() const { return layers_; }
  int stage() const { return stage_; }
  std::int64_t width() const { return width_; }
  std::int64_t offset() const { return offset_; }
  int piece() const { return piece_; }
  core::ParameterIndex index(const std::string& name) const {
    for (const auto index : core::indices<core::ParameterIndex>(specs_.size())) {
      if (specs_[index.value].name == name) return index;
    }
    CHECK(false, "the stage has the parameter");
  }
  core::ParameterIndex layer(int local) const {
    return index(fmt::format("layer.{}", stage_ * layers_ + local));
  }

  /// A function of the name and the element's number in the whole.
  float first_value(core::ParameterIndex index, std::int64_t element) const {
    const auto& spec = specs_[index.value];
    const auto place = spec.global_shape.empty() ? element : element + spec.offset[0];
    return 0.5F + static_cast<float>((std::hash<std::string>{}(spec.name) + 7919 * place) % 1000) / 1000.0F;
  }

 private:
  void add(std::string name, bool is_cut, std::uint32_t unit) {
    core::ParameterSpec spec{std::move(name), {width_}};
    if (!is_cut) spec.shape = {kWidth};
    if (is_cut && width_ != kWidth) {
      spec.global_shape = {kWidth};
      spec.offset = {offset_};
    }
    spec.unit = core::UnitIndex{unit};
    specs_.push_back(std::move(spec));
  }

  std::int64_t width_;
  std::int64_t offset_;
  int piece_;
  int layers_;
  int stage_;
  int stages_;
  std::vector<core::ParameterSpec> specs_;
};

using Vector = std::vector<float>;

/// What a rank ends with: of each parameter its part, and where that begins.
struct Trained {
  std::map<std::string, std::pair<std::int64_t, Vector>> parameters;
  std::vector<double> norms;
  std::vector<double> losses;
};

class PartsTrainer {
 public:
  PartsTrainer(Session& session, const Model& model) : session_(session), model_(model) {}

  core::Result<void> step(Trained& trained) {
    TRY(session_.begin_step(0.05));
    for (const core::Lane lane : session_.lanes()) TRY(play(lane));
    const auto outcome = TRY(session_.finish_step());
    CHECK(outcome.committed, "nothing refuses a step here");
    trained.norms.push_back(outcome.gradient_norm);
    trained.losses.push_back(outcome.loss);
    return {};
  }

 private:
  core::Result<void> play(core::Lane lane) {
    TRY(session_.begin_lane(lane));
    std::vector<Vector> inputs;  // of each layer, and what comes out of the last one
    inputs.push_back(TRY(first_input(lane)));
    for (int layer = 0; layer < model_.layers(); ++layer) {
      const auto weights = TRY(read(model_.layer(layer)));
      auto output = inputs.back();
      for (std::size_t i = 0; i < output.size(); ++i) output[i] *= weights[i];
      inputs.push_back(std::move(output));
    }
    double loss = 0;
    Vector gradient(inputs.back().size(), 1);
    if (model_.is_last()) {
      const auto tied = TRY(read(model_.index("tied")));
      for (std::size_t i = 0; i < tied.size(); ++i) loss += inputs.back()[i] * tied[i];
      gradient = Vector(tied.begin(), tied.end());
    } else {
      TRY(send(inputs.back(), model_.stage() + 1));
      TRY(receive(gradient, model_.stage() + 1));
    }
    TRY(session_.begin_backward());
    for (int layer = model_.layers(); layer-- > 0;) {
      const auto weights = TRY(read(model_.layer(layer)));
      const auto to = TRY(session_.gradient(model_.layer(layer)));
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        to[i] += gradient[i] * inputs[static_cast<std::size_t>(layer)][i];
        gradient[i] *= weights[i];
      }
      if (layer == 0 && model_.is_first()) TRY(add_shift(lane));
      TRY(session_.gradient_ready(model_.layer(layer)));
    }
    if (!model_.is_first()) TRY(send(gradient, model_.stage() - 1));
    TRY(add_tied(lane, inputs.back(), gradient));
    return session_.end_lane(loss);
  }

  core::Result<std::span<float>> read(core::ParameterIndex parameter) {
    TRY(session_.before_use(parameter));
    return session_.parameter(parameter);
  }

  float data(core::Lane lane, std::int64_t element) const {
    return 0.25F + static_cast<float>((13 * lane.value + 5 * element + 7 * model_.piece()) % 11) / 16.0F;
  }

  core::Result<Vector> first_input(core::Lane lane) {
    Vector values(static_cast<std::size_t>(model_.width()));
    if (!model_.is_first()) {
      TRY(receive(values, model_.stage() - 1));
      return values;
    }
    const auto tied = TRY(read(model_.index("tied")));
    const auto shift = TRY(read(model_.index("shift")));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto element = model_.offset() + static_cast<std::int64_t>(i);
      values[i] = data(lane, element) * tied[i] + shift[static_cast<std::size_t>(element)];
    }
    return values;
  }

  /// Every rank that keeps all of it computes the same.
  core::Result<void> add_shift(core::Lane lane) {
    const auto shift = model_.index("shift");
    const auto to = TRY(session_.gradient(shift));
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += data(lane, static_cast<std::int64_t>(i));
    return session_.gradient_ready(shift);
  }

  /// What both ends of the pipeline have of its gradient, together on both.
  core::Result<void> add_tied(core::Lane lane, const Vector& last, const Vector& first) {
    const bool both = model_.is_first() && model_.is_last();
    if (!both && !model_.is_first() && !model_.is_last()) return {};
    Vector sum(last.size(), 0);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      if (model_.is_last()) sum[i] += last[i];
      if (model_.is_first()) {
        sum[i] += first[i] * data(lane, model_.offset() + static_cast<std::int64_t>(i));
      }
    }
    if (!both) TRY(exchange_ends(sum));
    const auto to = TRY(session_.gradient(model_.index("tied")));
    for (std::size_t i = 0; i < sum.size(); ++i) to[i] += sum[i];
    return session_.gradient_ready(model_.index("tied"));
  }

  core::Result<void> exchange_ends(Vector& sum) {
    auto& stages = *TRY(session_.group("pp"));
    const int other = model_.is_first() ? stages.size() - 1 : 0;
    Vector theirs(sum.size());
    if (model_.is_first()) {
      TRY(send(sum, other));
      TRY(receive(theirs, other));
    } else {
      TRY(receive(theirs, other));
      TRY(send(sum, other));
    }
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += theirs[i];
    return {};
  }

  core::Result<void> send(Vector& values, int to) {
    auto& stages = *TRY(session_.group("pp"));
    return stages.wait(TRY(stages.send(gpu::view_of(std::span(values)), DType::f32, to)));
  }
  core::Result<void> receive(Vector& values, int from) {
    auto& stages = *TRY(session_.group("pp"));
    return stages.wait(TRY(stages.receive(gpu::view_of(std::span(values)), DType::f32, from)));
  }

  Session& session_;
  const Model& model_;
};

using Compute = std::function<void()>;

/// Steps from where the newest checkpoint is, or from the first values; a checkpoint after each of them.
core::Result<Trained> train(SimulatedRank& rank, const Cut& cut, int until, const Compute& compute = {}) {
  const Model model(cut, rank.rank());
  SessionOptions options;
  options.training.strategy = cut.strategy;
  options.training.tensor_parallel = cut.tp;
  options.training.pipeline_parallel = cut.pp;
  options.training.context_parallel = cut.cp;
  options.training.lanes = kLanes;
  options.training.bucket_elements = 20;
  options.training.clip_norm = 0.5;
  auto session = TRY(Session::join(rank, options, model.specs()));
  for (const auto index : core::indices<core::ParameterIndex>(model.specs().size())) {
    TRY(session->write_parameter(index, [&](std::int64_t first, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = model.first_value(index, first + static_cast<std::int64_t>(i));
      }
    }));
  }
  if (rank.storage() != nullptr) TRY(session->restore());
  Trained trained;
  PartsTrainer trainer(*session, model);
  while (session->next_step().value < until) {
    if (compute) compute();
    TRY(trainer.step(trained));
    if (rank.storage() != nullptr) TRY(session->save());
  }
  TRY(session->begin_evaluation());
  for (const auto index : core::indices<core::ParameterIndex>(model.specs().size())) {
    const auto& spec = model.specs()[index.value];
    TRY(session->before_use(index));
    const auto values = TRY(session->parameter(index));
    trained.parameters[spec.name] = {spec.offset.empty() ? 0 : spec.offset[0],
                                     {values.begin(), values.end()}};
  }
  TRY(session->end_evaluation());
  TRY(session->leave());
  return trained;
}

JobOutcome<Trained> run(const Cut& cut, int until, Storage* storage = nullptr) {
  SimulationOptions simulation;
  simulation.ranks = {cut.ranks};
  simulation.storage = storage;
  return simulate_job<Trained>(simulation, [&](SimulatedRank& rank) { return train(rank, cut, until); });
}

/// What all ranks together hold; a part that two of them hold otherwise is a failure.
std::map<std::string, Vector> whole(const std::vector<Trained>& ranks) {
  std::map<std::string, Vector> all;
  std::map<std::string, std::vector<bool>> seen;
  for (const auto& rank : ranks) {
    for (const auto& [name, part] : rank.parameters) {
      auto& values = all.try_emplace(name, kWidth, 0.0F).first->second;
      auto& known = seen.try_emplace(name, kWidth, false).first->second;
      for (std::size_t i = 0; i < part.second.size(); ++i) {
        const auto at = static_cast<std::size_t>(part.first) + i;
        if (known[at]) {
          EXPECT_EQ(values[at], part.second[i]) << name << " " << at;
        }
        values[at] = part.second[i];
        known[at] = true;
      }
    }
  }
  return all;
}

std::vector<Cut> cuts() {
  std::vector<Cut> all;
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3}) {
    for (const auto& [ranks, tp, pp] : {std::tuple{2, 2, 1},
                                        {2, 1, 2},
                                        {4, 1, 4},
                                        {4, 2, 2},
                                        {4, 2, 1},
                                        {4, 1, 2},
                                        {8, 2, 2},
                                        {8, 2, 4},
                                        {16, 4, 2}}) {
      all.push_back({ranks, tp, pp, strategy});
    }
  }
  return all;
}

class ModelParallel : public testing::TestWithParam<Cut> {};

// Covers reduce-10, adapter-7, beyond-4.
TEST_P(ModelParallel, HasTheBitsOfOneRank) {
  const auto alone = run({}, 5);
  const auto together = run(GetParam(), 5);

  ASSERT_EQ(problems_of(alone.report) + problems_of(together.report), "");
  const auto expected = whole(alone.ranks);
  EXPECT_EQ(whole(together.ranks), expected);
  EXPECT_NE(expected.at("tied"), whole(run({}, 0).ranks).at("tied")) << "steps change it";
  for (const auto& rank : together.ranks) {
    EXPECT_EQ(rank.norms, alone.ranks[0].norms) << "every element counts once";
    for (std::size_t step = 0; step < 5; ++step) {
      if (GetParam().tp == 1) {
        EXPECT_EQ(rank.losses[step], alone.ranks[0].losses[step]);
      }
      EXPECT_EQ(rank.losses[step], together.ranks[0].losses[step]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, ModelParallel, testing::ValuesIn(cuts()), testing::PrintToStringParamName());

/// Ranks with pieces of lanes beside ranks with parts of the model: as many as pieces compute the same.
class ContextAndModelParallel : public testing::TestWithParam<Cut> {};

TEST_P(ContextAndModelParallel, HaveTheBitsOfOneRankForEachPiece) {
  const Cut& cut = GetParam();
  const auto alone = run({cut.cp, 1, 1, Strategy::ddp, cut.cp}, 5);
  const auto together = run(cut, 5);

  ASSERT_EQ(problems_of(alone.report) + problems_of(together.report), "");
  EXPECT_EQ(whole(together.ranks), whole(alone.ranks));
  EXPECT_NE(whole(alone.ranks), whole(run({}, 5).ranks)) << "pieces have other data";
  for (const auto& rank : together.ranks) {
    EXPECT_EQ(rank.norms, alone.ranks[0].norms) << "every element counts once";
    EXPECT_EQ(rank.losses, (cut.tp == 1 ? alone : together).ranks[0].losses);
  }
}

std::vector<Cut> context_cuts() {
  std::vector<Cut> all;
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3}) {
    for (const auto& [ranks, tp, pp, cp] :
         {std::tuple{4, 2, 1, 2}, {4, 1, 2, 2}, {8, 2, 1, 2}, {8, 2, 2, 2}, {16, 2, 2, 2}, {12, 2, 1, 3}}) {
      all.push_back({ranks, tp, pp, strategy, cp});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cuts, ContextAndModelParallel, testing::ValuesIn(context_cuts()),
                         testing::PrintToStringParamName());

// Covers state-12, model-2.
TEST(ModelParallelCheckpoint, GoesOnBitwiseOnAnyOtherCut) {
  const auto expected = whole(run({}, 6).ranks);
  const std::vector<Cut> shares{{1, 1, 1, Strategy::ddp},   {2, 2, 1, Strategy::zero1},
                                {2, 1, 2, Strategy::zero3}, {4, 2, 2, Strategy::ddp},
                                {8, 2, 2, Strategy::zero1}, {4, 1, 4, Strategy::zero1},
                                {8, 2, 4, Strategy::zero3}, {4, 1, 2, Strategy::zero1}};
  for (const auto& from : shares) {
    for (const auto& to : shares) {
      SimulatedStorage disk({});
      const auto first = run(from, 3, &disk);
      const auto second = run(to, 6, &disk);

      ASSERT_EQ(problems_of(first.report) + problems_of(second.report), "") << from.name() << to.name();
      ASSERT_EQ(second.ranks[0].norms.size(), 3U) << "it goes on after the saved step";
      ASSERT_EQ(whole(second.ranks), expected) << from.name() << " to " << to.name();
    }
  }
}

/// A job of any cut on any devices, of which a rank dies or hangs; then others, until one comes to the end.
TEST(ModelParallelSwarm, EndsWithOneRanksBitsWhateverFails) {
  constexpr int kUntil = 6;
  const auto train_one = [](auto&&... arguments) { return train(arguments...); };
  const auto make_whole = [](const auto& ranks) { return whole(ranks); };

  const auto lives = swarm_of_cuts<Trained>("model parallel swarm", 150, cuts(), kUntil, train_one,
                                            make_whole, whole(run({}, kUntil).ranks));

  std::printf("150 seeds: %d jobs, %d came to the end from a checkpoint\n", lives.jobs, lives.resumed);
  EXPECT_GT(lives.resumed, 50);
}

TEST(ContextAndModelParallelSwarm, EndsWithOneRanksBitsPerPieceWhateverFails) {
  constexpr int kUntil = 6;
  const auto train_one = [](auto&&... arguments) { return train(arguments...); };
  const auto make_whole = [](const auto& ranks) { return whole(ranks); };
  auto cuts = context_cuts();
  std::erase_if(cuts, [](const Cut& cut) { return cut.cp != 2; });

  const auto lives =
      swarm_of_cuts<Trained>("context and model parallel swarm", 60, cuts, kUntil, train_one, make_whole,
                             whole(run({2, 1, 1, Strategy::ddp, 2}, kUntil).ranks));

  EXPECT_GT(lives.resumed, 20);
}

std::string refusal(const Cut& cut, const std::function<void(std::vector<core::ParameterSpec>&)>& change,
                    const core::TrainingOptions& training = {}) {
  SimulationOptions simulation;
  simulation.ranks = {cut.ranks};
  const auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    SessionOptions options;
    options.training = training;
    options.training.tensor_parallel = cut.tp;
    options.training.pipeline_parallel = cut.pp;
    auto specs = Model({cut.ranks, 1, 1}, {0}).specs();
    change(specs);
    TRY(Session::join(rank, options, specs));
    return true;
  });
  return outcome.report.results[0] ? "" : outcome.report.results[0].error().message;
}

TEST(ModelParallelOptions, ThatCannotBeAreRefused) {
  const auto nothing = [](auto&) {};
  EXPECT_EQ(refusal({6, 4, 1}, nothing),
            "tensor_parallel 4 times pipeline_parallel 1 do not divide 6 ranks; choose numbers from 1 whose "
            "product does");
  EXPECT_EQ(refusal({2, 0, 1}, nothing),
            "tensor_parallel 0 times pipeline_parallel 1 do not divide 2 ranks; choose numbers from 1 whose "
            "product does");
  const auto part = [](auto& specs) {
    specs[0].global_shape = {2 * kWidth};
    specs[0].offset = {0};
  };
  EXPECT_EQ(refusal({1, 1, 1}, part),
            "parameter tied is a part of a tensor, but there are no other ranks to keep the rest: "
            "tensor_parallel is 1");
  EXPECT_NE(refusal({2, 2, 1},
                    [](auto& specs) {
                      specs[0].global_shape = {2 * kWidth};
                      specs[0].offset = {kWidth + 1};
                    }),
            "");
}

TEST(ModelParallelOptions, DifferentPlansWithinAStageAreAMismatch) {
  SimulationOptions simulation;
  simulation.ranks = {4};
  const auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    SessionOptions options;
    options.training.pipeline_parallel = 2;
    std::vector<core::ParameterSpec> specs{{"w", {rank.rank().value < 2 ? 16 : 24}}};
    if (rank.rank().value == 3) specs[0].name = "v";
    TRY(Session::join(rank, options, specs));
    return true;
  });

  for (const auto& result : outcome.report.results) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, core::Errc::mismatch);
    EXPECT_NE(result.error().message.find("rank 3 plans another step than rank 2"), std::string::npos)
        << result.error().message;
  }
}

}  // namespace
}  // namespace troupe::actors
