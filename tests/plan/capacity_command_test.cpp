#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "actors/planes/step/training_plan.hpp"
#include "apps/gpt/run/distributed_trainer.hpp"
#include "apps/gpt/stage/models.hpp"
#include "apps/troupe/plan/capacity_report.hpp"
#include "core/program/job_programs.hpp"
#include "tests/plan/golden_model.hpp"
#include "tests/plan/run_plan.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::apps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

std::vector<Capacity> capacities(const CapacityArguments& arguments) {
  auto plan = capacity_plan(arguments);
  EXPECT_TRUE(plan) << plan.error().message;
  return plan ? plan->found : std::vector<Capacity>{};
}

TEST(PlanCapacityCommand, CountsEveryStrategyOfTheMesh) {
  CapacityArguments arguments;
  arguments.program = {.numerics = "fast", .ranks = 4, .units = 8, .unit_elements = 1 << 20};
  arguments.device_memory = "0.1GiB";

  const auto found = capacities(arguments);

  ASSERT_EQ(found.size(), 4U);
  const std::int64_t elements = 8 << 20;
  EXPECT_EQ(found[0].memory.at_rest(), elements * (2 + 4 + 4 + 8)) << "ddp";
  EXPECT_EQ(found[1].memory.at_rest(), elements * (2 + 4) + elements / 4 * 12) << "zero1";
  EXPECT_EQ(found[2].memory.at_rest(), elements * 2 + elements / 4 * 16) << "zero2";
  EXPECT_EQ(found[3].memory.at_rest(), elements / 4 * 18) << "zero3";
  EXPECT_EQ(found[3].memory.parameter_pool, 2 * (1 << 20) * 2);
  EXPECT_FALSE(found[0].fits);
  EXPECT_TRUE(found[3].fits);
  // Twice the parameters for the gathers of zero3, once the gradients; three quarters of each leave the rank.
  // The verdict's one word goes to the three others.
  EXPECT_EQ(found[3].sent_bytes(), elements * 3 / 4 * (2 * 2 + 4) + 3 * 8);
}

// docs/memory.md states the numbers.
TEST(PlanCapacityCommand, NamesWhatARankPinsOfItsHost) {
  const auto json = Json::parse(run_plan("capacity --units 2 --json").out);
  const auto text = run_plan("capacity --units 2").out;

  const Json expected = {{"saves", 256 << 20}, {"restore", 32 << 20}, {"local_saves", 64 << 20}};
  EXPECT_EQ(json["pinned_host_bytes"], expected);
  EXPECT_THAT(
      text,
      HasSubstr("pins at most 256 MiB of its host's memory for saves, 32 MiB for a restore, and 64 MiB"));
}

TEST(PlanCapacityCommand, ComparesStrategiesOfOneAxisAndOfTwo) {
  const auto json = Json::parse(run_plan("capacity --mesh 2x4 --units 2 --json").out);

  std::vector<std::string> rows;
  for (const auto& one : json["strategies"]) {
    rows.push_back(one["strategy"].get<std::string>() + " " + one["mesh"].get<std::string>());
  }
  EXPECT_THAT(rows, ElementsAre("ddp 8", "zero1 8", "zero2 8", "zero3 8", "hsdp 2x4", "hfsdp 2x4"));
}

TEST(PlanCapacityCommand, CutsTheStateAmongRanksThatShareSequencesToo) {
  CapacityArguments data;
  data.program = {.ranks = 4, .units = 8};
  auto context = data;
  context.program.context_parallel = 2;

  const auto shared = capacities(context), alone = capacities(data);

  ASSERT_EQ(shared.size(), 4U);
  for (std::size_t i = 0; i < shared.size(); ++i) {
    EXPECT_EQ(shared[i].memory.at_rest(), alone[i].memory.at_rest()) << shared[i].strategy;
    EXPECT_EQ(shared[i].sent_bytes(), alone[i].sent_bytes()) << shared[i].strategy;
  }
  const auto run = run_plan("capacity --ranks 4 --context-parallel 2 --units 2");
  EXPECT_THAT(run.out, HasSubstr("4 ranks of 1 rounds, 2 of them to a sequence, ordered"));
}

TEST(PlanCapacityCommand, TakesAHundredThousandRanksOnTwoAxes) {
  CapacityArguments arguments;
  arguments.program = {.ranks = 100'000, .outer = 3'125, .rounds = 3, .units = 96};
  arguments.strategies = {"hsdp", "hfsdp"};

  const auto found = capacities(arguments);

  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].memory.optimizer, std::int64_t{96} * (1 << 20) / 32 * 8);
  EXPECT_LT(found[1].memory.optimizer, found[0].memory.optimizer / 2000);
}

TEST(PlanCapacityCommand, CountsWhatEachOptimizerKeeps) {
  const auto optimizer_bytes = [](const char* name) {
    CapacityArguments arguments;
    arguments.program = {.ranks = 4, .units = 8, .optimizer = name};
    arguments.strategies = {"zero1"};
    return capacities(arguments).at(0).memory.optimizer;
  };
  const std::int64_t elements = (8 << 20) / 4;
  EXPECT_EQ(optimizer_bytes("sgd"), 0);
  for (const char* name : {"momentum", "lion", "muon"})
    EXPECT_EQ(optimizer_bytes(name), 4 * elements) << name;
  for (const char* name : {"adam", "adamw"}) EXPECT_EQ(optimizer_bytes(name), 8 * elements) << name;
}

/// Qwen3-8B has 8,190,735,360 parameters, of which the embedding and the head are the largest units.
TEST(PlanCapacityCommand, OfAModelShardsItsTrueParameters) {
  CapacityArguments arguments;
  arguments.program = {.numerics = "fast", .ranks = 8};
  arguments.model = golden_model("Qwen3-8B");
  arguments.strategies = {"ddp", "zero3"};

  const auto plan = capacity_plan(arguments).value();

  const double elements = 8'190'735'360;
  EXPECT_EQ(plan.elements, 8'190'735'360);
  EXPECT_EQ(plan.units, 38);
  EXPECT_EQ(plan.found[0].memory.at_rest(), plan.elements * (2 + 4 + 4 + 8)) << "ddp has no padding";
  EXPECT_NEAR(static_cast<double>(plan.found[1].memory.at_rest()), elements / 8 * 18, elements / 8 * 0.01);
  const std::int64_t head = 151'936 * 4'096 + 4'096;
  EXPECT_EQ(plan.found[1].memory.parameter_pool, 2 * head * 2);
  EXPECT_EQ(plan.found[1].memory.gradient_pool, 2 * head * 4);
  EXPECT_EQ(plan.found[0].total(), plan.found[0].memory.total() + plan.stages[0].activations.total());
}

/// To the byte what sessions of the reference trainer take.
TEST(PlanCapacityCommand, OfAModelIsWhatTheTrainersSessionsPlan) {
  using Gathered = std::optional<core::DType>;
  for (const auto& [name, wire, gathered] : {std::tuple("Qwen3-8B", core::DType::f32, Gathered()),
                                             {"Qwen3-8B", core::DType::f32, core::DType::f8_e4m3},
                                             {"Mistral-7B-v0.3", core::DType::f32, Gathered()},
                                             {"Qwen2.5-7B", core::DType::bf16, core::DType::f8_e5m2}}) {
    CapacityArguments arguments;
    arguments.program = {.ranks = 8, .outer = 2, .rounds = 2};
    arguments.program.wire_dtype = core::name_of(wire);
    if (gathered) arguments.program.gather_dtype = core::name_of(*gathered);
    arguments.model = golden_model(name);
    const auto config = trainers_config(arguments.model);

    for (const auto& found : capacities(arguments)) {
      core::TrainingOptions training;
      training.strategy = core::strategy_from_name(found.strategy).value();
      training.lanes = 16;
      training.optimizer_instances = found.outer;
      training.staging_elements = arguments.program.staging_elements;
      training.wire_dtype = wire;
      const auto specs =
          gpt::session_parameters(gpt::parameter_table(config), core::DType::bf16, training, gathered);
      const auto plan = actors::plan_training(specs, training, {8}).value();
      const auto job = core::plan_all(plan.inputs).value();

      EXPECT_EQ(found.memory, core::memory_of(job.programs.at(0))) << name << " " << found.strategy;
    }
  }
}

TEST(PlanCapacityCommand, DeclaredOrdersTakeTheSameMemoryAndTraffic) {
  for (const std::string model : {"", "Qwen3-8B"}) {
    CapacityArguments arguments;
    arguments.program = {.ranks = 8, .outer = 2, .rounds = 2, .units = 38, .resident_elements = 4096};
    if (!model.empty()) {
      arguments.program = {.ranks = 8, .outer = 2, .rounds = 2};
      arguments.model = golden_model(model);
    }
    const auto usual = capacities(arguments);
    // Every third of 38 units, which 3 does not divide, is each of them once.
    for (int i = 0; i < 38; ++i) arguments.program.forward_order.push_back(3 * i % 38);

    const auto declared = capacities(arguments);

    ASSERT_EQ(declared.size(), usual.size());
    for (std::size_t i = 0; i < usual.size(); ++i) {
      EXPECT_EQ(declared[i].memory, usual[i].memory) << usual[i].strategy;
      EXPECT_EQ(declared[i].sent_bytes(), usual[i].sent_bytes()) << usual[i].strategy;
    }
    arguments.program.forward_order.pop_back();
    EXPECT_THAT(capacity_plan(arguments).error().message, HasSubstr("the forward order lacks unit 35"));
  }
}

/// Its activations are pieces of 64 bytes, which is next to nothing here.
TEST(PlanCapacityCommand, ActivationsAreThoseOfTheReferenceTrainer) {
  for (const char* name : {"Qwen3-8B", "Mistral-7B-v0.3", "Qwen2.5-7B", "deepseek-coder-1.3b"}) {
    CapacityArguments arguments;
    arguments.model = golden_model(name);
    arguments.program.dtype = "f32";
    arguments.sequences = 2;
    arguments.length = 512;
    arguments.keep_probabilities = true;
    arguments.strategies = {"zero1"};
    const auto config = trainers_config(arguments.model);

    const auto need = gpt::memory_need(config, {2, 512}, {}, gpu::DeviceKind::host).activations;

    const auto counted = static_cast<double>(capacities(arguments).at(0).activations);
    EXPECT_NEAR(counted / static_cast<double>(need), 1, 1e-4) << name;
  }
}

TEST(PlanCapacityCommand, ChoosesTheFittingOneThatCommunicatesLeast) {
  const std::string job = "capacity --numerics fast --ranks 8 --units 24 --unit-elements 12582912 --rounds 2";

  // ddp 5.06 GiB, zero1 2.11, zero2 1.23, zero3 0.79; zero1 sends least, zero3 most.
  EXPECT_THAT(run_plan(job + " --device-memory 6GiB").out, HasSubstr("\nchoose zero1: "));
  EXPECT_THAT(run_plan(job + " --device-memory 2GiB").out, HasSubstr("\nchoose zero2: "));
  EXPECT_THAT(run_plan(job + " --device-memory 1GiB").out, HasSubstr("\nchoose zero3: "));
  EXPECT_THAT(run_plan(job + " --device-memory 512MiB").out,
              HasSubstr("\nnone fits in 512MiB: zero3 takes least, 0.785 GiB; use more ranks"));
  EXPECT_EQ(Json::parse(run_plan(job + " --device-memory 512MiB --json").out)["choose"], nullptr);
}

TEST(PlanCapacityCommand, TimesFollowTheLinks) {
  const auto zero3 = [](const std::string& more) {
    const auto run = run_plan("capacity --strategy zero3 --ranks 4 --numerics fast --units 4 --json " + more);
    return Json::parse(run.out)["strategies"][0];
  };
  const auto near = zero3("--link inner=1GB/s,0s");
  const auto far = zero3("--node-ranks 2 --link inner=1TB/s,0s --link outer=0.5GB/s,0s");

  // Four units of 2^20: bf16 gathered twice, f32 gradients once, three quarters of each; and the verdict.
  const double bytes = 0.75 * 4 * (1 << 20) * 8;
  EXPECT_NEAR(near["communicators"][0]["seconds"].get<double>(), bytes / 1e9, 1e-9);
  EXPECT_NEAR(far["communicators"][0]["seconds"].get<double>(), bytes / 0.5e9, 1e-9);
  EXPECT_EQ(near["communicators"][0]["link"], "inner");
  EXPECT_EQ(far["communicators"][0]["link"], "outer");
  EXPECT_FALSE(near.contains("exposed_seconds"));
  const auto busy = zero3("--compute-ms 1000");
  EXPECT_LT(busy["exposed_seconds"].get<double>(), busy["communication_seconds"].get<double>());
}

TEST(PlanCapacityCommand, WritesAPageThatNeedsNothingElse) {
  const tests::ScratchFolder folder;
  const auto run =
      run_plan("capacity --model " + golden_model("Qwen3-8B") + " --mesh 2x4 --html " + folder.path("page"));

  EXPECT_EQ(run.exit_code, 0) << run.err;
  std::ifstream file(folder.path("page"));
  std::ostringstream page;
  page << file.rdbuf();
  const auto text = page.str();
  const std::string begin = "<script id=\"run-data\" type=\"application/json\">";
  const auto from = text.find(begin) + begin.size();
  const auto data = Json::parse(text.substr(from, text.find("</script>", from) - from));
  EXPECT_EQ(data["model"], "Qwen3ForCausalLM of 36 layers");
  EXPECT_EQ(data["strategies"].size(), 6U);
  for (const char* mark : {"/*style*/", "/*plots*/", "/*script*/", "https:", "src=", "<link", "fetch("}) {
    EXPECT_THAT(text, Not(HasSubstr(mark)));
  }
}

struct CapacityRefusal {
  const char* arguments;
  const char* message;
};

TEST(PlanCapacityCommand, SaysWhichOptionCannotBe) {
  const CapacityRefusal refusals[] = {
      {"--mesh 2x", "--mesh: expected ranks, or those of the outer and the inner axis as in 2x4"},
      {"--mesh 2x2x2", "--mesh: expected ranks"},
      {"--mesh 2000000", "at most 1048576 ranks"},
      {"--mesh 2x4 --ranks 8", "--ranks excludes --mesh"},
      {"--device-memory lots", "--device-memory: expected bytes up to a petabyte, as in 80GiB or 80GB"},
      {"--device-memory 0", "--device-memory: expected bytes"},
      {"--link inner=fast", "--link: expected inner or outer with bandwidth and latency"},
      {"--link middle=1GB/s,1us", "--link: expected inner or outer"},
      {"--link inner=1GB,1us", "--link: expected inner or outer"},
      {"--model /none/config.json", "--model: "},
      {"--sequences 2", "--sequences requires --model"},
      {"--tensor-parallel 2", "--tensor-parallel requires --model"},
      {"--strategy ddp --ranks 4 --outer 2", "ddp cannot have 2 optimizer instances"},
      {"--html /none/page.html", "--html: cannot write \"/none/page.html\""},
  };
  for (const auto& [arguments, message] : refusals) {
    const auto run = run_plan(std::string("capacity ") + arguments);

    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_THAT(run.err, HasSubstr(message)) << arguments;
  }
}

}  // namespace
}  // namespace troupe::apps
