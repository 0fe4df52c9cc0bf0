#include "core/boxes/sharded_tensor.hpp"
#include "core/errors.hpp"
#include "tests/simulation/trainer_job.hpp"

namespace troupe::actors {
namespace {

using Parameters = std::vector<core::ParameterSpec>;

std::string refusal_of(const Parameters& parameters) {
  SimulatedStorage disk({});
  const auto outcome = simulate_job<int>(machines(disk, 2), [&](SimulatedRank& rank) -> core::Result<int> {
    TRY(Session::join(rank, {}, parameters));
    return 0;
  });
  return common_error(outcome.report);
}

core::ParameterSpec stacked(const char* name, core::StackingRule rule, std::int64_t rows) {
  core::ParameterSpec parameter{name, {rows, 4}};
  parameter.stacking = std::move(rule);
  return parameter;
}

TEST(StoredKeys, OfTwoParametersMustDiffer) {
  EXPECT_EQ(refusal_of({stacked("fc", core::swiglu_stacking(true), 8), {"fc_w", {4, 4}}}),
            "parameter fc_w would be stored as 'fc_w', as another one is; give it another name");
  EXPECT_EQ(refusal_of({stacked("fc", core::qkv_stacking(2, 1), 4), {"fc_k", {1, 4}}}),
            "parameter fc_k would be stored as 'fc_k', as another one is; give it another name");
  EXPECT_EQ(refusal_of({{"x", {4}}, {"optimizer.state.exp_avg.x", {4}}}),
            "parameter optimizer.state.exp_avg.x would be stored as 'optimizer.state.exp_avg.x', as another "
            "one is; give it another name");
  EXPECT_EQ(refusal_of({stacked("fc", core::swiglu_stacking(false), 8), {"fc_w", {4, 4}}}),
            "a rank came through");
}

TEST(StoredKeys, MustBePossibleInFiles) {
  EXPECT_EQ(refusal_of({{"__metadata__", {4}}}),
            "no tensor can have the name '__metadata__'; give it another one");
  EXPECT_NE(refusal_of({{"\xff", {4}}}).find("is not UTF-8"), std::string::npos);
}

/// What two ranks that keep different parts of the model say when they join, or of a save, if they use the
/// same names.
std::string refusal_of_two(const core::TrainingOptions& training, const core::ParameterSpec& first,
                           const core::ParameterSpec& second, const char* own = nullptr) {
  SimulatedStorage disk({});
  const auto outcome =
      simulate_job<std::string>(machines(disk, 2), [&](SimulatedRank& rank) -> core::Result<std::string> {
        SessionOptions options;
        options.training = training;
        std::vector<float> values(4);
        if (own != nullptr && rank.rank().value == 1) {
          TrainerTensor tensor;
          tensor.tensor = TRY(core::ShardedTensor::from_rank_offsets(own, core::DType::f32, {4}));
          tensor.memory = gpu::view_of(std::span(values));
          options.tensors.push_back(tensor);
        }
        const bool is_first = rank.rank().value == 0;
        auto joined = Session::join(rank, options, {{is_first ? "a" : "b", {4}}, is_first ? first : second});
        if (!joined) return joined.error().message;
        auto session = std::move(*joined);
        TRY(session->save());
        TRY(session->wait_saves());
        std::string refusal;
        for (const auto& save : session->take_saves()) {
          if (!save.committed) refusal += save.committed.error().message;
        }
        TRY(session->leave());
        return refusal;
      });
  EXPECT_EQ(problems_of(outcome.report), "");
  EXPECT_EQ(outcome.ranks[0], outcome.ranks[1]);
  return outcome.ranks[0];
}

constexpr auto* kBothRegister =
    "ranks 0 and 1 keep different parts of the model, and both register 'w' as theirs";
constexpr auto* kBothStore = "rank 0 and rank 1 both store a tensor of their own as 'w'; give parameters of";

TEST(StoredKeys, OfTwoStagesMustDifferUnlessOneCopies) {
  core::TrainingOptions training;
  training.pipeline_parallel = 2;
  core::ParameterSpec copy{"w", {4}};
  copy.is_copy = true;

  EXPECT_NE(refusal_of_two(training, {"w", {4}}, {"w", {4}}).find(kBothRegister), std::string::npos);
  EXPECT_EQ(refusal_of_two(training, {"w", {4}}, copy), "");
  EXPECT_EQ(refusal_of_two(training, copy, {"w", {4}}), "");
}

TEST(StoredKeys, OfAStageAndAnotherStagesTensorMustDiffer) {
  core::TrainingOptions training;
  training.pipeline_parallel = 2;

  EXPECT_NE(refusal_of_two(training, {"w", {4}}, {"v", {4}}, "w").find(kBothStore), std::string::npos);
  EXPECT_EQ(refusal_of_two(training, {"w", {4}}, {"v", {4}}, "average"), "");
}

TEST(StoredKeys, IsToldToTheStagesThatHaveNoneAlike) {
  SimulatedStorage disk({});
  const auto outcome = simulate_job<int>(machines(disk, 2), [&](SimulatedRank& rank) -> core::Result<int> {
    SessionOptions options;
    options.training.pipeline_parallel = 2;
    const bool is_first = rank.rank().value == 0;
    Parameters parameters{{is_first ? "a" : "b", {4}}};
    if (!is_first) parameters = {stacked("fc", core::swiglu_stacking(true), 8), {"fc_w", {4, 4}}};
    TRY(Session::join(rank, options, parameters));
    return 0;
  });

  EXPECT_NE(common_error(outcome.report).find("would be stored as 'fc_w'"), std::string::npos);
}

TEST(StoredKeys, OfExpertsOfTwoRanksMustDiffer) {
  core::TrainingOptions training;
  training.expert_parallel = 2;
  training.lanes = 2;
  core::ParameterSpec expert{"w", {4}};
  expert.is_expert = true;

  EXPECT_NE(refusal_of_two(training, expert, expert).find(kBothRegister), std::string::npos);
}

}  // namespace
}  // namespace troupe::actors
