#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "actors/world/storage/posix.hpp"
#include "core/checkpoint/steps_missed.hpp"
#include "core/interop/dcp_metadata.hpp"
#include "tests/checkpoint/checkpoint_tool.hpp"
#include "tests/simulation/scripted_job.hpp"

namespace troupe::apps {
namespace {

using Json = nlohmann::json;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;

std::vector<float> floats_of(const std::string& hex) {
  std::vector<float> values(hex.size() / 8);
  for (std::size_t i = 0; i < values.size(); ++i) {
    unsigned char bytes[4];
    for (std::size_t b = 0; b < 4; ++b)
      bytes[b] = static_cast<unsigned char>(std::stoul(hex.substr(8 * i + 2 * b, 2), nullptr, 16));
    std::memcpy(&values[i], bytes, 4);
  }
  return values;
}

/// Keys of a checkpoint of PyTorch, with the paths to them.
std::set<std::string> names_of(const std::string& directory) {
  const auto file = read_file(directory + "/.metadata");
  const auto metadata = core::parse_dcp_metadata(std::as_bytes(std::span(file))).value();
  std::set<std::string> names;
  for (const auto& tensor : metadata.tensors) names.insert(tensor.key + " " + core::to_string(tensor.path));
  for (const auto& item : metadata.items) names.insert(item.key + " " + core::to_string(item.path));
  return names;
}

class TorchsOptimizer : public testing::Test {
 protected:
  std::string made(const std::vector<std::pair<std::string, float>>& tensors) {
    std::vector<MadeTensor> made;
    for (const auto& [key, value] : tensors) made.push_back({key, core::DType::f32, {1}, floats({value})});
    return make_checkpoint(directory_.path("made"), 1, made);
  }

  /// A checkpoint of PyTorch with these tensors of one element.
  std::string foreign(const std::vector<std::pair<std::string, float>>& tensors) {
    const auto to = directory_.path("foreign");
    EXPECT_EQ(run_checkpoint({"export", made(tensors), to, "--to", "dcp"}).exit_code, 0);
    return to;
  }

  /// The same as a file, which has nothing but tensors.
  std::string foreign_file(const std::vector<std::pair<std::string, float>>& tensors) {
    const auto checkpoint = made(tensors);
    return checkpoint + "/" + manifest_at(checkpoint).files.front().name;
  }

  Output import(const std::string& from) {
    return run_checkpoint({"import", from, directory_.path("out"), "--optimizer", "torch"});
  }

  /// What an imported checkpoint says of steps that parameters missed.
  static core::Value missed_in(const std::string& checkpoint) {
    const auto common = manifest_at(checkpoint).common;
    const auto* missed = common.find(core::kStepsMissedKey);
    return missed != nullptr ? *missed : core::Value();
  }

  ScratchFolder directory_;
};

class TorchsOptimizerOf : public TorchsOptimizer, public testing::WithParamInterface<const char*> {};

/// Four ranks of PyTorch saved it after one step; the next one's gradients are like those of the first.
TEST_P(TorchsOptimizerOf, GoesOnWithItsMomentsAndSteps) {
  const Output run = import(golden(GetParam()));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto expected = Json::parse(read_file(golden("interop/fsdp/next_step.json")));
  actors::Script script;
  script.parameters = {{"weight", {5, 3}}, {"bias", {5}}};
  script.learning_rate = 0.1;
  script.restore = true;
  script.steps = 2;
  script.gradient = [](const actors::GradientPlace&) { return 2.0F; };
  script.session.training.optimizer.kind = core::OptimizerKind::adamw;

  for (const int ranks : {1, 2, 3}) {
    auto storage = actors::PosixStorage::open(directory_.path("out")).value();
    actors::SimulationOptions simulation;
    simulation.ranks = {ranks};
    simulation.storage = storage.get();
    const auto outcome = actors::simulate_script(std::move(simulation), script);

    ASSERT_TRUE(outcome.report.violations.empty()) << outcome.report.violations[0];
    for (const auto& rank : outcome.ranks) {
      ASSERT_EQ(rank.after.size(), 1U) << "one step was done before";
      EXPECT_THAT(rank.after[0][0],
                  Pointwise(FloatNear(1e-6F), floats_of(expected["weight"]["bytes"].get<std::string>())));
      EXPECT_THAT(rank.after[0][1],
                  Pointwise(FloatNear(1e-6F), floats_of(expected["bias"]["bytes"].get<std::string>())));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, TorchsOptimizerOf, testing::Values("interop/fsdp", "interop/rank_files"));

TEST_F(TorchsOptimizer, ComesBackUnderEveryNameItHad) {
  ASSERT_EQ(import(golden("interop/fsdp")).exit_code, 0);

  for (const std::string how : {"automatic", "torch"}) {
    const Output run = run_checkpoint(
        {"export", directory_.path("out"), directory_.path(how), "--to", "dcp", "--optimizer", how});

    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(names_of(directory_.path(how)), names_of(golden("interop/fsdp")));
    EXPECT_EQ(run_checkpoint({"diff", golden("interop/fsdp"), directory_.path(how)}).exit_code, 0);
  }
}

TEST_F(TorchsOptimizer, KeepsTroupesNamesWhenAskedTo) {
  ASSERT_EQ(import(golden("interop/fsdp")).exit_code, 0);

  const Output run = run_checkpoint(
      {"export", directory_.path("out"), directory_.path("own"), "--to", "dcp", "--optimizer", "as-is"});

  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(names_of(directory_.path("own")),
              testing::IsSupersetOf({"weight ('weight',)", "troupe_checkpoint ('troupe_checkpoint',)"}));
}

TEST_F(TorchsOptimizer, OfAnExportIsThatOfTheCheckpoint) {
  const auto from =
      make_checkpoint(directory_.path("from"), 5,
                      {{"layer.weight", core::DType::f32, {2}, floats({1, 2})},
                       {"optimizer.state.exp_avg.layer.weight", core::DType::f32, {2}, floats({3, 4})},
                       {"optimizer.state.exp_avg_sq.layer.weight", core::DType::f32, {2}, floats({5, 6})}},
                      core::Value::Map{{"step", 5}, {"optimizer_steps", 4}});

  const Output out =
      run_checkpoint({"export", from, directory_.path("torch"), "--to", "dcp", "--optimizer", "torch"});
  const Output back = import(directory_.path("torch"));

  ASSERT_EQ(out.exit_code, 0) << out.err;
  EXPECT_THAT(
      names_of(directory_.path("torch")),
      testing::IsSupersetOf({"model.layer.weight ('model', 'layer.weight')",
                             "optim.state.layer.weight.exp_avg ('optim', 'state', 'layer.weight', 'exp_avg')",
                             "optim.state.layer.weight.step ('optim', 'state', 'layer.weight', 'step')"}));
  ASSERT_EQ(back.exit_code, 0) << back.err;
  EXPECT_EQ(run_checkpoint({"diff", from, directory_.path("out")}).exit_code, 0);
}

TEST_F(TorchsOptimizer, IsRefusedWithTheReasonWhereItCannotBe) {
  EXPECT_THAT(import(foreign({{"weight", 1}})).err, HasSubstr("has no state of an optimizer"));
}

TEST_F(TorchsOptimizer, OfParametersByNumberIsRefused) {
  const auto run = import(foreign({{"model.weight", 1}, {"optim.state.0.exp_avg", 2}}));

  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("parameters by number"));
  EXPECT_THAT(run.err, HasSubstr("get_state_dict()"));
}

TEST_F(TorchsOptimizer, RefusesMissingParametersByName) {
  EXPECT_THAT(import(foreign({{"model.a", 1}, {"optim.state.b.exp_avg", 2}})).err,
              HasSubstr("the optimizer's state of 'b', and no tensor of that name"));
}

TEST_F(TorchsOptimizer, KeepsDifferingStepCountsBothWays) {
  const auto run = import(foreign_file({{"model.a", 1},
                                        {"model.b", 1},
                                        {"optim.state.a.exp_avg", 1},
                                        {"optim.state.a.step", 3},
                                        {"optim.state.b.exp_avg", 1},
                                        {"optim.state.b.step", 4}}));

  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("the optimizer took 4 steps, and of some parameters fewer: 'a (3)'"));
  EXPECT_EQ(missed_in(directory_.path("out/step_00000004")), core::Value(core::Value::Map{{"a", 1}}));
  // The state as a session saves it.
  const auto saved = make_checkpoint(
      directory_.path("saved"), 6,
      {{"a", core::DType::f32, {1}, floats({1})},
       {"b", core::DType::f32, {1}, floats({1})},
       {"optimizer.state.exp_avg.a", core::DType::f32, {1}, floats({1})},
       {"optimizer.state.exp_avg.b", core::DType::f32, {1}, floats({1})}},
      core::Value::Map{
          {"step", 6}, {"optimizer_steps", 6}, {core::kStepsMissedKey, core::Value::Map{{"a", 1}}}});
  const auto torch = directory_.path("torch"), back = directory_.path("back");
  ASSERT_EQ(run_checkpoint({"export", saved, torch, "--to", "dcp", "--optimizer", "torch"}).exit_code, 0);
  ASSERT_EQ(run_checkpoint({"import", torch, back}).exit_code, 0);
  const auto contents = contents_of(back + "/step_00000006");
  EXPECT_EQ(contents.at("optim.state.a.step"), floats({5}));
  EXPECT_EQ(contents.at("optim.state.b.step"), floats({6}));
}

TEST_F(TorchsOptimizer, HasZeroMomentsForWhatNeverHadAGradient) {
  const auto run = import(foreign_file(
      {{"model.a", 1}, {"model.router", 2}, {"optim.state.a.exp_avg", 3}, {"optim.state.a.step", 4}}));

  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("the optimizer has nothing of 'router': moments of zero"));
  const auto contents = contents_of(directory_.path("out/step_00000004"));
  EXPECT_EQ(contents.at("optimizer.state.exp_avg.router"), floats({0}));
  EXPECT_EQ(contents.at("optimizer.state.exp_avg.a"), floats({3}));
  EXPECT_EQ(missed_in(directory_.path("out/step_00000004")), core::Value(core::Value::Map{{"router", 4}}));
}

TEST_F(TorchsOptimizer, StateFollowsWhatItsParametersAreRenamedTo) {
  const auto from = foreign({{"model.model.a", 1}, {"optim.state.model.a.exp_avg", 3}});
  const std::vector<std::pair<std::string, std::string>> rules{
      {"model.=", "model.a"}, {"model.model.=", "a"}, {"model.a=b", "b"}};

  for (const auto& [rule, name] : rules) {
    const auto out = directory_.path("renamed_" + rule);
    const auto run = run_checkpoint({"import", from, out, "--optimizer", "torch", "--rename", rule});

    ASSERT_EQ(run.exit_code, 0) << run.err;
    const auto contents = contents_of(out + "/step_00000001");
    EXPECT_TRUE(contents.contains(name)) << rule;
    EXPECT_TRUE(contents.contains("optimizer.state.exp_avg." + name)) << rule;
  }
}

TEST_F(TorchsOptimizer, ARuleThatFitsNothingIsNamed) {
  const auto run = run_checkpoint({"import", foreign({{"model.a", 1}, {"optim.state.a.exp_avg", 2}}),
                                   directory_.path("out"), "--optimizer", "torch", "--rename", "net.="});

  EXPECT_THAT(run.err, HasSubstr("no name begins with 'net.'"));
}

TEST_F(TorchsOptimizer, OfTwoOptimizersIsRefused) {
  EXPECT_THAT(import(foreign({{"a", 1}, {"first.state.a.exp_avg", 1}, {"second.state.a.exp_avg", 1}})).err,
              HasSubstr("several optimizers, below 'first.' and 'second.'"));
}

TEST_F(TorchsOptimizer, KeepsUnderItsNameWhatTroupesOptimizersIgnore) {
  const auto run =
      import(foreign({{"a", 1}, {"optim.state.a.exp_avg", 1}, {"optim.state.a.max_exp_avg_sq", 1}}));

  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("do not use them: 'optim.state.a.max_exp_avg_sq'"));
  EXPECT_TRUE(contents_of(directory_.path("out/step_00000001")).contains("optim.state.a.max_exp_avg_sq"));
}

TEST_F(TorchsOptimizer, HasNoPlaceInFilesWithoutValues) {
  const auto from = golden_checkpoint();

  EXPECT_THAT(
      run_checkpoint({"export", from, directory_.path("x"), "--to", "huggingface", "--optimizer", "torch"})
          .err,
      HasSubstr("--optimizer torch is for --to dcp only"));
  EXPECT_THAT(run_checkpoint({"export", from, directory_.path("x"), "--to", "dcp", "--form", "safetensors",
                              "--optimizer", "torch"})
                  .err,
              HasSubstr("which --form safetensors has not"));
}

}  // namespace
}  // namespace troupe::apps
