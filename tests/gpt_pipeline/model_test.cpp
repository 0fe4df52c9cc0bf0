#include "apps/gpt/rank/pipeline_plan.hpp"
#include "tests/gpt_pipeline/pipeline_job.hpp"

namespace troupe::apps::gpt {
namespace {

using core::ScheduleKind;

constexpr int kFewSteps = 3;

/// Every job has the losses, the norms and the parameters of one rank with the same options.
void expect_bits_of_one_rank(const Cut& cut, const std::function<void(TrainerOptions&)>& change) {
  const TrainingText text;
  const auto run = [&](const Cut& of) {
    auto options = trainer_options(of);
    change(options);
    return simulate(of, [&](actors::SimulatedRank& rank) {
      return train_until(rank, options, text.corpus(), kFewSteps);
    });
  };

  const auto expected = run({.tied = cut.tied}).front();

  for (const auto& rank : run(cut)) {
    EXPECT_EQ(rank.losses, expected.losses) << cut.name();
    EXPECT_EQ(rank.norms, expected.norms) << cut.name();
    EXPECT_EQ(rank.parameters, expected.parameters) << cut.name();
  }
}

std::vector<Cut> one_of_each(bool tied) {
  return {{2, 2, ScheduleKind::one_f_one_b, 1, tied},
          {2, 2, ScheduleKind::interleaved, 2, tied},
          {2, 2, ScheduleKind::zero_bubble, 1, tied}};
}

TEST(PipelineModel, SplitsTheBackwardOfEveryKindOfLayer) {
  for (const auto& cut : one_of_each(true)) {
    expect_bits_of_one_rank(cut, [](TrainerOptions& options) {
      options.model.norm = Norm::layer;
      options.model.activation = Activation::gelu;
      options.model.attention_output_bias = true;
    });
    expect_bits_of_one_rank(cut, [](TrainerOptions& options) {
      options.model.key_value_heads = 1;
      options.model.query_key_norm = true;
      options.model.query_key_value_bias = true;
    });
  }
}

TEST(PipelineModel, AddsUpSeveralMicrobatchesPerLaneInOrder) {
  for (const bool tied : {true, false}) {
    for (const auto& cut : one_of_each(tied)) {
      expect_bits_of_one_rank(cut,
                              [](TrainerOptions& options) { options.session.training.microbatches = 3; });
    }
  }
}

TEST(PipelineModel, ScalesLossesAndComputesActivationsAgain) {
  for (const auto& cut : one_of_each(true)) {
    expect_bits_of_one_rank(cut, [](TrainerOptions& options) {
      options.session.training.loss_scaling = {.kind = core::LossScale::fixed, .scale = 1024};
    });
    if (cut.schedule == ScheduleKind::zero_bubble) continue;
    expect_bits_of_one_rank(cut, [](TrainerOptions& options) { options.arithmetic.keep = Keep::inputs; });
  }
}

TEST(PipelineModel, RanksMayHaveDifferentNumbersOfLanes) {
  expect_bits_of_one_rank({4, 2}, [](TrainerOptions& options) { options.session.training.lanes = 5; });
  expect_bits_of_one_rank({4, 2}, [](TrainerOptions& options) { options.session.training.lanes = 2; });
}

// Covers reduce-10.
TEST(PipelineModel, FastNumericsAddATiedEmbeddingOncePerStep) {
  const TrainingText text;
  const auto run = [&](const Cut& cut) {
    auto options = trainer_options(cut);
    options.session.training.numerics = core::Numerics::fast;
    options.session.training.microbatches = 2;
    return simulate(cut,
                    [&](actors::SimulatedRank& rank) {
                      return train_until(rank, options, text.corpus(), kFewSteps);
                    })
        .front();
  };
  const auto expected = run({});
  for (const auto& cut : one_of_each(true)) {
    const auto found = run(cut);
    ASSERT_EQ(found.losses.size(), expected.losses.size());
    for (std::size_t i = 0; i < found.losses.size(); ++i) {
      EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-5 * expected.losses[i]);
      EXPECT_NEAR(found.norms[i], expected.norms[i], 1e-5 * expected.norms[i]);
    }
  }
}

TEST(PipelineModel, EvaluatesAnswersAndIsExportedAsOnOneRank) {
  const TrainingText text;
  tests::ScratchFolder folder;
  for (const bool tied : {true, false}) {
    const Cut alone{.tied = tied};
    const auto expected = ask(alone, trainer_options(alone), text.corpus(), folder.path("alone")).front();
    ASSERT_FALSE(expected.exported.empty());
    for (const auto strategy : {core::Strategy::zero1, core::Strategy::zero3}) {
      for (auto cut : one_of_each(tied)) {
        cut.ranks = 4;
        cut.strategy = strategy;
        const auto ranks = ask(cut, trainer_options(cut), text.corpus(), folder.path("cut"));
        EXPECT_EQ(ranks.front().exported, expected.exported) << cut.name();
        for (const auto& rank : ranks) {
          EXPECT_EQ(rank.evaluation, expected.evaluation) << cut.name();
          EXPECT_EQ(rank.logits, expected.logits) << cut.name();
          EXPECT_EQ(rank.parameters, expected.parameters) << cut.name();
        }
      }
    }
  }
}

TEST(PipelineModel, TellsWhatEachStageDidInTheLastStep) {
  const TrainingText text;
  const Cut cut{4, 4, ScheduleKind::zero_bubble};
  const auto schedule = core::plan_schedule({cut.schedule, 4, 1, 8}).value();
  simulate(cut, [&](actors::SimulatedRank& rank) -> core::Result<Trained> {
    auto trainer = TRY(DistributedTrainer::create(rank, trainer_options(cut), text.corpus()));
    EXPECT_FALSE(TRY(trainer->pipeline_timeline())) << "there was no step";
    for (int step = 0; step < 2; ++step) TRY(trainer->step());

    const auto timeline = TRY(trainer->pipeline_timeline());

    TRY(trainer->session().leave());
    EXPECT_TRUE(timeline);
    if (!timeline) return Trained{};
    EXPECT_EQ(timeline->run.stages.size(), 4U);
    for (std::size_t stage = 0; stage < timeline->run.stages.size(); ++stage) {
      std::vector<core::PipelinePass> passes;
      double last = 0;
      for (const auto& pass : timeline->run.stages[stage]) {
        passes.push_back(pass.pass);
        EXPECT_GE(pass.start, last);
        EXPECT_GE(pass.end, pass.start);
        last = pass.end;
      }
      EXPECT_EQ(passes, schedule.passes[stage]);
    }
    EXPECT_EQ(timeline->run.stages[0].front().start, 0);
    EXPECT_GT(timeline->run.bubble_share(), 0);
    return Trained{};
  });
}

std::string refusal(const Cut& cut, const std::function<void(TrainerOptions&)>& change = {}) {
  auto options = trainer_options(cut);
  if (change) change(options);
  const auto checked = check_pipeline(options, {cut.ranks});
  return checked ? "nothing" : checked.error().message;
}

TEST(PipelineModel, RefusesWhatCannotBeCut) {
  EXPECT_EQ(refusal({2, 2}), "nothing");
  EXPECT_EQ(
      refusal({3, 2}),
      "expected pipelines of 2 ranks, but the job has 3; choose a --pipeline-parallel that divides them");
  EXPECT_EQ(
      refusal({16, 16}),
      "expected 16 layers or more, one for each chunk of 16 stages, but the model has 8; use fewer stages "
      "or chunks, or a deeper model");
  EXPECT_EQ(refusal({6, 2, ScheduleKind::interleaved, 2}),
            "an interleaved schedule of 2 stages needs a multiple of as many microbatches, found 3");
  EXPECT_EQ(refusal({6, 2}, [](auto& options) { options.session.training.tensor_parallel = 2; }),
            "expected pipelines of 2 times 2 ranks, but the job has 6; choose --pipeline-parallel, "
            "--tensor-parallel and --context-parallel whose product divides them");
  EXPECT_EQ(refusal({6, 2}, [](auto& options) { options.session.training.context_parallel = 2; }),
            "expected pipelines of 2 times 2 ranks, but the job has 6; choose --pipeline-parallel, "
            "--tensor-parallel and --context-parallel whose product divides them");
  EXPECT_EQ(refusal({2, 2, ScheduleKind::zero_bubble},
                    [](auto& options) { options.arithmetic.keep = Keep::inputs; }),
            "the weights' half of a backward reads activations that --recompute does not keep; leave out "
            "--recompute, or use --pipeline-schedule 1f1b");
  EXPECT_EQ(
      refusal({4, 2, ScheduleKind::interleaved, 2},
              [](auto& options) { options.session.training.expert_parallel = 2; }),
      "gradients of experts that 2 ranks share do not wait for their lane, as those of several chunks do "
      "with --strategy zero1; use zero2 or zero3, or leave out --pipeline-chunks");
}

TEST(PipelineModel, GivesTheFirstStagesTheLayersThatAreLeft) {
  const auto model = trainer_options({}).model;
  const auto layers_of = [&](int stages, int chunks, int stage) {
    std::vector<std::size_t> layers;
    const PipelineOptions options{.chunks = chunks};
    const auto cut = cut_model(model, options, stages, stage).value();
    for (const ModelPart part : cut.parts) {
      layers.push_back(part.first);
      layers.push_back(part.end);
    }
    return layers;
  };
  using Layers = std::vector<std::size_t>;

  EXPECT_EQ(layers_of(3, 1, 0), (Layers{0, 3}));
  EXPECT_EQ(layers_of(3, 1, 1), (Layers{3, 6}));
  EXPECT_EQ(layers_of(3, 1, 2), (Layers{6, 8}));
  EXPECT_EQ(layers_of(2, 3, 0), (Layers{0, 2, 4, 5, 6, 7}));
  EXPECT_EQ(layers_of(2, 3, 1), (Layers{2, 4, 5, 6, 7, 8}));
}

}  // namespace
}  // namespace troupe::apps::gpt
