#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "actors/planes/step/training_plan.hpp"
#include "apps/gpt/rank/rank_model.hpp"
#include "apps/gpt/rank/session_peers.hpp"
#include "apps/gpt/rank/stage_lanes.hpp"
#include "apps/gpt/rank/stage_passes.hpp"
#include "apps/gpt/rank/tensor_rank.hpp"
#include "apps/gpt/stage/models.hpp"
#include "apps/pipeline/runner.hpp"
#include "apps/troupe/plan/capacity_report.hpp"
#include "core/program/job_programs.hpp"
#include "tests/plan/golden_model.hpp"
#include "tests/plan/run_plan.hpp"
#include "tests/support/scratch_folder.hpp"

// Capacity of models that ranks share: layers, rows, sequences, experts and stages.

namespace troupe::apps {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

/// How ranks of the reference trainer share a model.
struct SharedJob {
  const char* model;
  int tensor = 1;
  bool sequence = false;
  int experts = 1;
  int stages = 1;
  int chunks = 1;
  const char* schedule = "1f1b";
  int context = 1;
  int expert_tensor = 0;
  int slices = 0;  ///< of each layer; 0: as many as ranks share it
  int pieces = 0;  ///< of each sequence; 0: as many as ranks share it
};

const SharedJob kSharedJobs[] = {
    {"Qwen3-8B", 2},
    {"Qwen3-8B", 4, true},
    {"Qwen3-30B-A3B", 1, false, 4},
    {"Qwen3-30B-A3B", 2, true, 2},
    {"Mistral-7B-v0.3", 1, false, 1, 4},
    {"deepseek-coder-1.3b", 1, false, 1, 5, 1, "gpipe"},
    {"Qwen2.5-7B", 2, true, 1, 2, 2, "interleaved"},
    {"Qwen3-30B-A3B", 2, false, 4, 2},
    {"Qwen3-8B", 2, true, 1, 1, 1, "1f1b", 2},
    {"Mistral-7B-v0.3", 2, false, 1, 2, 1, "1f1b", 4},
    {"Qwen3-30B-A3B", 1, false, 1, 1, 1, "1f1b", 1, 2},
    {"Qwen3-30B-A3B", 2, true, 2, 1, 1, "1f1b", 1, 4},
    {"Qwen3-30B-A3B", 1, false, 4, 2, 1, "1f1b", 1, 2},
    {"Qwen3-8B", 1, false, 1, 1, 1, "1f1b", 1, 0, 8},
    {"Qwen3-8B", 2, true, 1, 2, 1, "1f1b", 1, 0, 4},
    {"Qwen3-8B", 1, false, 1, 1, 1, "1f1b", 1, 0, 0, 2},
    {"Qwen3-8B", 2, true, 1, 1, 1, "1f1b", 2, 0, 4, 8},
    {"Qwen2.5-7B", 2, true, 1, 2, 2, "interleaved", 1, 0, 0, 2},
    {"Mistral-7B-v0.3", 1, false, 1, 4, 1, "1f1b", 2, 0, 0, 4},
    {"Qwen3-30B-A3B", 1, false, 4, 2, 1, "1f1b", 2, 0, 0, 4},
};

CapacityArguments arguments_of(const SharedJob& job) {
  CapacityArguments arguments;
  arguments.model = golden_model(job.model);
  arguments.program = {.ranks = 8,
                       .rounds = 4,
                       .context_parallel = job.context,
                       .context_pieces = job.pieces,
                       .stages = job.stages,
                       .schedule = job.schedule,
                       .chunks = job.chunks,
                       .tensor_parallel = job.tensor,
                       .sequence_parallel = job.sequence,
                       .tensor_slices = job.slices,
                       .expert_parallel = job.experts,
                       .expert_tensor_parallel = job.expert_tensor};
  return arguments;
}

/// The options with which the trainer describes the job to itself.
gpt::TrainerOptions trainer_options(const SharedJob& job, const CapacityArguments& arguments) {
  gpt::TrainerOptions options;
  options.model = trainers_config(arguments.model);
  options.microbatch = {2, 512};
  options.tensor = {job.sequence, job.slices};
  options.pipeline = {core::schedule_kind_from_name(job.schedule).value(), job.chunks};
  auto& training = options.session.training;
  training.lanes = arguments.program.lanes();
  training.tensor_parallel = job.tensor;
  training.context_parallel = job.context;
  training.context_pieces = job.pieces;
  training.expert_parallel = job.experts;
  training.expert_tensor_parallel = job.expert_tensor;
  training.pipeline_parallel = job.stages;
  training.staging_elements = arguments.program.staging_elements;
  options.model = gpt::model_of_rank(options.model, training, {0}).value();
  return options;
}

gpt::StageCut cut_of(const gpt::TrainerOptions& options, int stage) {
  const int stages = options.session.training.pipeline_parallel;
  return stages == 1 ? gpt::uncut(options.model)
                     : gpt::cut_model(options.model, options.pipeline, stages, stage).value();
}

/// To the byte what sessions of the reference trainer take on every stage that differs from others.
TEST(PlanSharedCapacity, IsWhatTheTrainersSessionsPlan) {
  for (const auto& job : kSharedJobs) {
    auto arguments = arguments_of(job);
    for (const char* strategy : {"ddp", "zero1", "zero3"}) {
      arguments.strategies = {strategy};
      auto options = trainer_options(job, arguments);
      options.arithmetic.dtype = core::DType::bf16;
      auto& training = options.session.training;
      training.strategy = core::strategy_from_name(strategy).value();
      const auto plan = capacity_plan(arguments).value();
      const gpt::SharedTable table(options.model, {static_cast<std::size_t>(job.tensor), 0, job.sequence});
      const auto whole = gpt::session_parameters(table, options);
      std::int64_t most = 0;

      for (const auto& stage : plan.stages) {
        auto specs = whole;
        std::vector<core::UnitPass> passes;
        if (job.stages > 1) {
          const auto cut = cut_of(options, stage.stage);
          const gpt::StageParameters parameters(options.model, table.part(), cut);
          specs = parameters.select(whole);
          const auto schedule = schedule_of(arguments.program).value();
          passes = gpt::unit_passes(schedule.passes[static_cast<std::size_t>(stage.stage)], parameters);
        }
        const core::WorldSize world{8 * job.tensor * job.stages};
        const auto session = actors::plan_training(specs, training, world, passes).value();
        const auto programs = core::plan_all(session.inputs).value().programs;
        auto own = arguments.program;
        own.strategy = strategy;
        own.stage = stage.stage;
        const auto planned = core::plan_all(program_inputs(own, stage.tensors).value()).value().programs;

        ASSERT_EQ(planned.size(), programs.size()) << job.model;
        for (std::size_t i = 0; i < programs.size(); ++i) {
          EXPECT_EQ(core::memory_of(planned[i]), core::memory_of(programs[i]))
              << job.model << " " << strategy << " tensor " << job.tensor << " stage " << stage.stage;
        }
        most = std::max(most, core::memory_of(planned[0]).total() + stage.activations.total());
      }
      EXPECT_GE(plan.found[0].total(), most) << job.model << " " << strategy;
    }
  }
}

/// Layers of experts need more than those without, which often come first.
TEST(PlanSharedCapacity, ShowsAStageInTheMiddleThatNeedsMost) {
  const tests::ScratchFolder folder;
  auto config = Json::parse(std::ifstream(golden_model("Qwen3-30B-A3B")));
  config["num_hidden_layers"] = 16;
  config["mlp_only_layers"] = {0, 1, 2, 3};
  config["vocab_size"] = 1000;
  std::ofstream(folder.path("config.json")) << config;

  const auto run = run_plan("capacity --model " + folder.path("config.json") +
                            " --ranks 8 --stages 4 --rounds 16 --strategy zero1 --json");

  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(Json::parse(run.out)["strategies"][0]["stage"], 1);
}

/// They are laid out like those of whole models, in pieces of 64 bytes.
TEST(PlanSharedCapacity, HasTheActivationsOfTheReferenceTrainer) {
  for (const auto& job : kSharedJobs) {
    auto arguments = arguments_of(job);
    arguments.program.dtype = "f32";
    arguments.sequences = 2;
    arguments.length = 512;
    arguments.keep_probabilities = true;
    arguments.strategies = {"zero1"};
    if (job.experts > 1 || job.expert_tensor > 0)
      continue;  // the trainer has room for all tokens at one rank
    const auto options = trainer_options(job, arguments);

    const auto plan = capacity_plan(arguments).value();
    for (const auto& stage : plan.stages) {
      const auto& training = options.session.training;
      const auto pieces = static_cast<std::size_t>(training.pieces_of_lane());
      gpt::StageShape shape{
          .batch = {2, 512 / pieces}, .share = gpt::share_of(options, {0}), .context_parallel = pieces};
      if (job.stages > 1)
        shape.slots = StageRunner(schedule_of(arguments.program).value(), stage.stage).slots();
      const auto piece =
          gpt::stage_bytes(options.model, cut_of(options, stage.stage), shape, {}, gpu::DeviceKind::host);
      const auto need = static_cast<double>(piece) * training.own_pieces();

      EXPECT_NEAR(static_cast<double>(stage.activations.total()) / need, 1, 1e-4)
          << job.model << " tensor " << job.tensor << " stage " << stage.stage << " pieces " << pieces;
    }
  }
}

/// What `gpt` counted on four real ranks: width 16, two layers, 4 x 16 tokens, tied, four microbatches.
TEST(PlanSharedCapacity, SendsWhatTheTrainerCounts) {
  const tests::ScratchFolder folder;
  std::ofstream(folder.path("config.json")) << R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 16,
    "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 16, "vocab_size": 256, "tie_word_embeddings": true,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "model_type": "llama", "torch_dtype": "float32"})";

  const auto run = run_plan("capacity --model " + folder.path("config.json") +
                            " --ranks 1 --rounds 4 --tensor-parallel 2 --sequence-parallel --stages 2 "
                            "--sequences 4 --length 16 --dtype f32 --strategy zero1 --json");

  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::map<std::string, std::int64_t> bytes, launches;
  const auto json = Json::parse(run.out);
  for (const auto& one : json["strategies"][0]["communicators"]) {
    bytes[one["axis"]] += one["sent_bytes"].get<std::int64_t>();
    launches[one["axis"]] += one["launches"].get<std::int64_t>();
  }
  EXPECT_EQ(bytes["tensor"], 98'816);
  EXPECT_EQ(launches["tensor"], 64);
  EXPECT_EQ(bytes["pipeline"], 16'384);
  EXPECT_EQ(bytes["verdict"], 2'280);
}

/// What `gpt` counted on real ranks: as above, but not tied.
TEST(PlanSharedCapacity, SendsWhatTheTrainerCountsForPieces) {
  const tests::ScratchFolder folder;
  std::ofstream(folder.path("config.json")) << R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 16,
    "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 16, "vocab_size": 256, "tie_word_embeddings": false,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "model_type": "llama", "torch_dtype": "float32"})";
  const auto sent = [&](const std::string& axis, const std::string& how) {
    const auto run =
        run_plan("capacity --model " + folder.path("config.json") +
                 " --rounds 4 --sequences 4 --length 16 --dtype f32 --strategy zero1 --json " + how);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    std::pair<std::int64_t, std::int64_t> found;
    const auto json = Json::parse(run.out);
    for (const auto& one : json["strategies"][0]["communicators"])
      if (one["axis"] == axis) found = {one["sent_bytes"], one["launches"]};
    return found;
  };
  const std::string layers = "--ranks 2 --tensor-parallel 2 --context-parallel 2 --context-pieces ";
  const std::string stages = "--ranks 2 --stages 2 --context-parallel 2 --context-pieces 4";

  EXPECT_EQ(sent("context", layers + "2"), (std::pair<std::int64_t, std::int64_t>(49'152, 48)));
  EXPECT_EQ(sent("context", layers + "4"), (std::pair<std::int64_t, std::int64_t>(65'536, 48)));
  EXPECT_EQ(sent("context", stages), (std::pair<std::int64_t, std::int64_t>(65'536, 24)));
  EXPECT_EQ(sent("pipeline", stages).first, 8'192);
  EXPECT_EQ(sent("pipeline", "--ranks 1 --stages 2 --context-pieces 2").first, 16'384);
}

/// Tensor-parallel ranks are neighbours; ranks with the same experts are as far apart as experts are spread.
TEST(PlanSharedCapacity, SendsBetweenNodesWhatIsFarApart) {
  const auto links = [](const std::string& more) {
    const auto run = run_plan("capacity --model " + golden_model("Qwen3-30B-A3B") +
                              " --strategy hsdp --node-ranks 8 --json " + more);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    const auto json = Json::parse(run.out);
    std::map<std::string, std::string> found;
    for (const auto& one : json["strategies"][0]["communicators"])
      found[one["axis"].get<std::string>() + " " + one.value("group", "")] = one["link"];
    return found;
  };
  using Links = std::map<std::string, std::string>;

  EXPECT_EQ(links("--mesh 2x4 --expert-parallel 2 --tensor-parallel 2 --sequence-parallel --stages 2"),
            (Links{{"inner axis intra_dp_cp", "inner"},
                   {"inner axis intra_edp", "inner"},
                   {"outer axis inter_instance", "outer"},
                   {"tensor ", "inner"},
                   {"expert ", "inner"},
                   {"pipeline ", "outer"},
                   {"verdict world", "outer"}}));
  EXPECT_EQ(links("--mesh 1x8 --expert-parallel 4 --tensor-parallel 2")["inner axis intra_edp"], "outer");
  // Twice as many ranks share an expert, and rows go to each of them.
  EXPECT_EQ(links("--mesh 1x8 --expert-parallel 2 --expert-tensor-parallel 4 --tensor-parallel 2")
                ["inner axis intra_edp"],
            "outer");
}

TEST(PlanSharedCapacity, SaysWhatCannotBeShared) {
  const struct {
    const char *model, *arguments, *message;
  } refusals[] = {
      {"Qwen3-8B", "--tensor-parallel 3", "3 tensor-parallel ranks do not divide 32 heads"},
      {"Qwen3-8B", "--tensor-parallel 16", "16 tensor-parallel ranks do not divide 8 heads with keys"},
      {"Qwen3-8B", "--sequence-parallel", "sequence parallelism is between tensor-parallel ranks"},
      {"Qwen3-8B", "--tensor-slices 6", "--tensor-slices 6 do not divide 8 heads with keys"},
      {"Qwen3-8B", "--tensor-slices 2 --tensor-parallel 4", "each has 1, 2, 4, 8 ... of them"},
      {"Qwen3-8B", "--expert-parallel 2", "2 expert-parallel ranks, and the model has no experts"},
      {"Qwen3-30B-A3B", "--expert-parallel 3", "3 expert-parallel ranks do not divide 128 experts"},
      {"Qwen3-30B-A3B", "--ranks 4 --expert-parallel 8", "expert"},
      {"Qwen3-8B", "--expert-tensor-parallel 2",
       "experts are cut over 2 ranks, and the model has no experts"},
      {"Qwen3-30B-A3B", "--tensor-parallel 4 --expert-tensor-parallel 6", "a multiple of these"},
      {"Qwen3-30B-A3B", "--tensor-parallel 4 --expert-tensor-parallel 2", "a multiple of these"},
      {"Qwen3-30B-A3B", "--expert-tensor-parallel 7",
       "7 expert-tensor-parallel ranks do not divide the 768 of"},
      {"Qwen3-8B", "--stages 37", "37 stages of 1 chunks need as many layers, and the model has 36"},
      {"Qwen3-8B", "--stages 2 --stage 1", "--stage"},
      {"Qwen3-8B", "--context-pieces 3", "--context-pieces 3 cuts a sequence in 6 runs of tokens"},
      {"Qwen3-8B", "--context-parallel 4 --context-pieces 2",
       "--context-pieces 2 are not shared evenly by --context-parallel 4"},
      {"Qwen3-8B", "--context-pieces 2 --numerics fast", "only with --numerics ordered"},
      {"Qwen3-8B", "--ranks 1048576 --tensor-parallel 8", "1048576 ranks for each of 8 parts of the model"},
  };
  for (const auto& [model, arguments, message] : refusals) {
    const auto run = run_plan("capacity --model " + golden_model(model) + " " + arguments);

    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_THAT(run.err, HasSubstr(message)) << arguments;
  }
}

}  // namespace
}  // namespace troupe::apps
