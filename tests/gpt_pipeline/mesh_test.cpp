#include <map>
#include <tuple>
#include <utility>

#include "apps/gpt/rank/pipeline_plan.hpp"
#include "apps/gpt/stage/host_stage.hpp"
#include "tests/gpt_pipeline/pipeline_job.hpp"
#include "tests/simulation/swarm_of_cuts.hpp"

namespace troupe::apps::gpt {
namespace {

using core::ScheduleKind;
using core::Strategy;

/// A model with all that a share of a layer may lack: keys for fewer heads, norms of heads, and biases that
/// are added to a sum; of tokens whose halves both have letters.
TrainerOptions mesh_options(const Cut& cut) {
  auto options = trainer_options(cut);
  options.model.layers = 4;
  options.model.heads = 4;
  options.model.key_value_heads = 2;
  options.model.query_key_norm = true;
  options.model.query_key_value_bias = true;
  options.model.attention_output_bias = true;
  options.model.vocabulary = 128;
  options.session.training.lanes = 4;
  return options;
}

using Change = std::function<void(TrainerOptions&)>;

std::vector<Trained> run(const Cut& cut, const Corpus& corpus, int until = 20, const Change& change = {},
                         actors::Storage* disk = nullptr) {
  auto options = mesh_options(cut);
  if (change) change(options);
  return simulate(
      cut, [&](actors::SimulatedRank& rank) { return train_until(rank, options, corpus, until); }, disk);
}

void expect_bits(const std::vector<Trained>& ranks, const Trained& expected, const std::string& name) {
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank.losses, expected.losses) << name;
    EXPECT_EQ(rank.norms, expected.norms) << name;
    EXPECT_EQ(rank.parameters, expected.parameters) << name;
  }
}

void expect_close(const Trained& found, const Trained& whole, const std::string& name) {
  ASSERT_EQ(found.losses.size(), whole.losses.size()) << name;
  for (std::size_t step = 0; step < whole.losses.size(); ++step) {
    ASSERT_NEAR(found.losses[step], whole.losses[step], 1e-5 * whole.losses[step]) << name << ", " << step;
    ASSERT_NEAR(found.norms[step], whole.norms[step], 1e-4 * whole.norms[step]) << name << ", " << step;
  }
}

/// One rank, which computes in two slices or, of whole layers, in one.
const Trained& alone(bool tied, int slices, const Corpus& corpus) {
  static std::map<std::pair<bool, int>, Trained> known;
  auto& found = known[{tied, slices}];
  if (found.losses.empty())
    found = run({.tied = tied, .strategy = Strategy::ddp, .slices = slices}, corpus)[0];
  return found;
}

const std::vector<std::pair<ScheduleKind, int>> kSchedules = {{ScheduleKind::gpipe, 1},
                                                              {ScheduleKind::one_f_one_b, 1},
                                                              {ScheduleKind::interleaved, 2},
                                                              {ScheduleKind::zero_bubble, 1}};

/// Two stages of two parts.
std::vector<Cut> cuts() {
  std::vector<Cut> all;
  for (const auto strategy : {Strategy::ddp, Strategy::zero1}) {
    for (const bool tied : {true, false}) {
      for (const bool sequence : {false, true}) {
        for (const int data_parallel : {1, 2}) {
          for (const auto& [schedule, chunks] : kSchedules)
            all.push_back({4 * data_parallel, 2, schedule, chunks, tied, strategy, 2, sequence});
        }
      }
    }
  }
  all.push_back({8, 4, ScheduleKind::one_f_one_b, 1, true, Strategy::zero1, 2, true});
  return all;
}

class MeshBits : public testing::TestWithParam<Cut> {};

// Covers finish-8.
TEST_P(MeshBits, MatchFixedSlicesAndLossesMatchWholeLayers) {
  const TrainingText text;
  const bool tied = GetParam().tied;

  const auto& slices = alone(tied, 2, text.corpus());
  const auto ranks = run(GetParam(), text.corpus());

  ASSERT_EQ(slices.losses.size(), 20U);
  ASSERT_LT(slices.losses.back(), slices.losses.front());
  expect_bits(ranks, slices, GetParam().name());
  expect_close(ranks[0], alone(tied, 1, text.corpus()), GetParam().name());
}

INSTANTIATE_TEST_SUITE_P(Cuts, MeshBits, testing::ValuesIn(cuts()), testing::PrintToStringParamName());

/// In the order of `kSchedules`, on four ranks.
std::vector<Cut> one_of_each(bool tied, bool sequence) {
  std::vector<Cut> all;
  for (const auto& [schedule, chunks] : kSchedules)
    all.push_back({4, 2, schedule, chunks, tied, Strategy::zero1, 2, sequence});
  return all;
}

void expect_bits_of_slices(const Cut& cut, const Change& change) {
  const TrainingText text;
  const Cut slices{.tied = cut.tied, .slices = 2};
  const auto expected = run(slices, text.corpus(), 3, change)[0];
  expect_bits(run(cut, text.corpus(), 3, change), expected, cut.name());
}

TEST(Mesh, AddsUpSeveralMicrobatchesPerLane) {
  for (const bool tied : {true, false}) {
    for (const auto& cut : one_of_each(tied, tied))
      expect_bits_of_slices(cut, [](auto& options) { options.session.training.microbatches = 3; });
  }
}

TEST(Mesh, ScalesLossesAndComputesActivationsAgain) {
  for (const auto& cut : one_of_each(true, true)) {
    expect_bits_of_slices(cut, [](auto& options) {
      options.session.training.loss_scaling = {.kind = core::LossScale::fixed, .scale = 1024};
      if (options.pipeline.schedule != ScheduleKind::zero_bubble) options.arithmetic.keep = Keep::inputs;
    });
  }
}

TEST(Mesh, SharesOtherLayersAndRowsThatDoNotDivide) {
  for (const auto& cut : one_of_each(false, true)) {
    expect_bits_of_slices(cut, [](auto& options) {
      options.model.norm = Norm::layer;
      options.model.activation = Activation::gelu;
      options.microbatch = {3, 5};
    });
  }
}

/// In fast numerics a rank adds its lanes as they come.
TEST(Mesh, InFastNumericsHasTheLossesOfWholeLayers) {
  const TrainingText text;
  const Change fast = [](auto& options) { options.session.training.numerics = core::Numerics::fast; };
  for (const bool tied : {true, false}) {
    const auto whole = run({.tied = tied}, text.corpus(), 20, fast)[0];
    for (const bool sequence : {false, true}) {
      for (const auto& cut : one_of_each(tied, sequence)) {
        const auto ranks = run(cut, text.corpus(), 20, fast);
        expect_close(ranks[0], whole, cut.name());
        for (const auto& rank : ranks) EXPECT_EQ(rank.parameters, ranks[0].parameters) << cut.name();
      }
    }
  }
}

TEST(Mesh, EvaluatesAnswersAndExportsAsOneRankInSlices) {
  const TrainingText text;
  tests::ScratchFolder folder;
  for (const bool tied : {true, false}) {
    for (const bool sequence : {false, true}) {
      const Cut slices{.tied = tied, .slices = 2};
      const auto expected = ask(slices, mesh_options(slices), text.corpus(), folder.path("alone"))[0];
      ASSERT_FALSE(expected.exported.empty());
      for (auto cut : one_of_each(tied, sequence)) {
        cut.ranks = 8;
        const auto ranks = ask(cut, mesh_options(cut), text.corpus(), folder.path("cut"));
        EXPECT_EQ(ranks[0].exported, expected.exported) << cut.name();
        for (const auto& rank : ranks) {
          EXPECT_EQ(rank.evaluation, expected.evaluation) << cut.name();
          EXPECT_EQ(rank.logits, expected.logits) << cut.name();
        }
      }
    }
  }
}

TEST(Mesh, EvaluatesAnswersAndExportsAlikeForSeveralPieces) {
  const TrainingText text;
  tests::ScratchFolder folder;
  const auto asked = [&](const Cut& cut) {
    return ask(cut, mesh_options(cut), text.corpus(), folder.path(cut.name()));
  };
  for (const bool tied : {true, false}) {
    const auto expected = asked({.tied = tied, .slices = 2, .pieces = 4})[0];
    ASSERT_FALSE(expected.exported.empty());
    for (const auto& [tensor, context, stages] :
         {std::tuple{1, 2, 1}, {1, 4, 1}, {2, 1, 1}, {2, 2, 1}, {2, 4, 1}, {1, 1, 2}, {1, 2, 2}, {2, 2, 2}}) {
      const Cut cut{.ranks = tensor * context * stages,
                    .stages = stages,
                    .tied = tied,
                    .tensor = tensor,
                    .sequence = tensor > 1,
                    .slices = 2,
                    .context = context,
                    .pieces = 4};
      const auto ranks = asked(cut);
      EXPECT_EQ(ranks[0].exported, expected.exported) << cut.name();
      for (const auto& rank : ranks) {
        EXPECT_EQ(rank.evaluation, expected.evaluation) << cut.name();
        EXPECT_EQ(rank.logits, expected.logits) << cut.name();
      }
    }
  }
}

/// Untied, in ordered numerics, on the first of two stages of two parts: C = 16, N = 32 rows, D = 4.
TEST(Mesh, TellsWhatItSendsAlongEachAxis) {
  const TrainingText text;
  const Cut cut{4, 2, ScheduleKind::gpipe, 1, false, Strategy::zero1, 2, false};
  simulate(cut, [&](actors::SimulatedRank& rank) -> core::Result<Trained> {
    auto trainer = TRY(DistributedTrainer::create(rank, mesh_options(cut), text.corpus()));
    EXPECT_TRUE(trainer->traffic().empty());
    std::vector<std::vector<AxisTraffic>> steps;
    for (int step = 0; step < 2; ++step) {
      TRY(trainer->step());
      TRY(trainer->evaluate(1));
      steps.push_back(trainer->traffic());
    }
    TRY(trainer->session().leave());
    EXPECT_EQ(steps[0], steps[1]) << "an evaluation is in no step";
    if (rank.rank().value != 0) return Trained{};
    constexpr std::int64_t kRows = 32 * 16 * 4, kMicrobatches = 4, kLayers = 2, kNorm = 4 * 4;
    // A sum of two members is an exchange of halves and a gather of them: of a layer's two products and of
    // their two gradients, and of the embedding; and of the gradients of the norms of queries and keys.
    const std::int64_t sums = 4 * kLayers + 1, norms = 2 * kLayers;
    EXPECT_EQ(steps[0].size(), 4U);
    for (const auto& [axis, sent] : steps[0]) {
      if (axis == "tensor") {
        EXPECT_EQ(sent.launches, kMicrobatches * 2 * (sums + norms));
        EXPECT_EQ(sent.bytes, kMicrobatches * (sums * kRows + norms * kNorm));
      } else if (axis == "pipeline") {
        EXPECT_EQ(sent.launches, 2 * kMicrobatches) << "activations go, and gradients come";
        EXPECT_EQ(sent.bytes, kMicrobatches * kRows);
      } else if (axis == "data") {
        EXPECT_EQ(sent.bytes, 0) << "there is one data-parallel rank";
      } else {
        EXPECT_EQ(axis, "verdict");
        EXPECT_GT(sent.bytes, 0);
      }
    }
    return Trained{};
  });
}

/// Besides its activations, in elements: of a tied embedding of 64 tokens and the factors of 32 rows, a
/// message on the first stage, and two of them and the values on the last.
TEST(Mesh, CountsAStagesMemoryBesideActivations) {
  for (const bool tied : {true, false}) {
    const Cut cut{8, 2, ScheduleKind::one_f_one_b, 1, tied, Strategy::zero1, 2, true};
    const auto options = mesh_options(cut);
    for (int rank = 0; rank < 8; ++rank) {
      const PipelinePlace place{{rank}, {8}};
      const int stage = rank / 4;
      const auto shape = stage_shape(options, place, schedule_of(options, place).value(), stage);
      const auto activations = host_stage_bytes(options.model, cut_of(options, place).value(), shape);

      const std::size_t message = 32 * (64 + 16);
      const std::size_t head = stage == 0 ? message : 2 * message + 64 * 16;
      const std::size_t elements = tied ? head : 0;
      EXPECT_EQ(pipeline_bytes(options, place, gpu::DeviceKind::host).value(),
                activations + elements * sizeof(float));
      EXPECT_EQ(shape.share.index, static_cast<std::size_t>(rank % 2));
    }
  }
}

// Covers model-2, model-6.
TEST(MeshCheckpoint, GoesOnOnAnyOtherCutAndBack) {
  const TrainingText text;
  const Corpus& corpus = text.corpus();
  for (const bool tied : {true, false}) {
    const Cut slices{.tied = tied, .slices = 2};
    const Cut mesh{8, 2, ScheduleKind::one_f_one_b, 1, tied, Strategy::zero1, 2, true};
    const Cut chunks{4, 2, ScheduleKind::interleaved, 2, tied, Strategy::ddp, 2, true};
    const Cut whole{.tied = tied};
    const Cut stages{4, 4, ScheduleKind::zero_bubble, 1, tied, Strategy::ddp};
    const Cut sharded{4, 1, ScheduleKind::one_f_one_b, 1, tied, Strategy::zero3, 2, true};
    const auto exact = run(slices, corpus, 6)[0];
    const auto close = run(whole, corpus, 6)[0];
    for (const auto& [from, to] : {std::pair{mesh, slices},
                                   {slices, mesh},
                                   {mesh, chunks},
                                   {chunks, mesh},
                                   {mesh, sharded},
                                   {sharded, mesh},
                                   {mesh, whole},
                                   {whole, mesh},
                                   {mesh, stages},
                                   {stages, mesh}}) {
      const auto name = from.name() + " to " + to.name();
      const auto halves = [](const Cut& cut) { return cut.all_slices() == 2; };
      actors::SimulatedStorage disk({});

      run(from, corpus, 3, {}, &disk);
      const auto ranks = run(to, corpus, 6, {}, &disk);

      for (const auto& rank : ranks) {
        ASSERT_EQ(rank.losses.size(), 3U) << name << " goes on after the saved step";
        EXPECT_EQ(rank.parameters, ranks[0].parameters) << name;
        EXPECT_NEAR(rank.losses.back(), close.losses.back(), 1e-5 * close.losses.back()) << name;
        if (!halves(from) || !halves(to)) continue;
        EXPECT_EQ(rank.losses.back(), exact.losses.back()) << name;
        EXPECT_EQ(rank.parameters, exact.parameters) << name;
      }
    }
  }
}

/// Meshes, moments and victims are drawn, and those that follow go on from what is on the disk.
TEST(MeshSwarm, EndsWithTheBitsOfFixedSlicesWhateverFails) {
  constexpr int kUntil = 4;
  const TrainingText text;
  const Cut slices{.slices = 2};
  const std::vector<Cut> meshes = {slices,
                                   {4, 2, ScheduleKind::one_f_one_b, 1, true, Strategy::zero1, 2, true},
                                   {8, 2, ScheduleKind::zero_bubble, 1, true, Strategy::ddp, 2, true},
                                   {4, 2, ScheduleKind::interleaved, 2, true, Strategy::zero1, 2, true},
                                   {2, 1, ScheduleKind::one_f_one_b, 1, true, Strategy::zero3, 2, true}};
  const auto expected = run(slices, text.corpus(), kUntil)[0].parameters;
  const auto train = [&](actors::SimulatedRank& rank, const Cut& cut, int until,
                         const std::function<void()>& pass_time) -> core::Result<Trained> {
    auto trainer = TRY(DistributedTrainer::create(rank, mesh_options(cut), text.corpus()));
    TRY(trainer->resume({}));
    Trained trained;
    while (trainer->session().next_step().value < until) {
      pass_time();
      trained.norms.push_back(TRY(trainer->step()).gradient_norm);
      TRY(trainer->save());
    }
    TRY(trainer->session().wait_saves());
    trained.parameters = TRY(trainer->parameter_hash());
    TRY(trainer->session().leave());
    return trained;
  };

  const auto lives = actors::swarm_of_cuts<Trained>(
      "mesh swarm", 12, meshes, kUntil, train, [](const auto& ranks) { return ranks[0].parameters; },
      expected);

  EXPECT_GT(lives.jobs, 20) << "most deaths hit a job that runs";
  EXPECT_GT(lives.resumed, 3);
}

}  // namespace
}  // namespace troupe::apps::gpt
