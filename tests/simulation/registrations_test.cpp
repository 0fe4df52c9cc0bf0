// What ranks register, compared when they join.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "tests/simulation/agreeing_job.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using core::Result;

struct Parts {
  const char* name;
  const char* complaint;
  core::TrainingOptions training;
  std::function<std::vector<core::ParameterSpec>(int rank)> parameters;

  friend std::ostream& operator<<(std::ostream& out, const Parts& of) { return out << of.name; }
};

core::ParameterSpec part(const char* name, std::int64_t rows, std::int64_t offset, std::int64_t all = 8) {
  core::ParameterSpec spec{name, {rows, 4}};
  spec.global_shape = {all, 4};
  spec.offset = {offset, 0};
  return spec;
}

core::TrainingOptions cut(int tensor, int pipeline, int expert) {
  core::TrainingOptions training;
  training.tensor_parallel = tensor;
  training.pipeline_parallel = pipeline;
  training.expert_parallel = expert;
  return training;
}

class Registrations : public testing::TestWithParam<Parts> {};

TEST_P(Registrations, AreComparedWhenRanksJoin) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  const auto outcome = simulate_job<bool>(simulation, [](SimulatedRank& rank) -> Result<bool> {
    SessionOptions options;
    options.training = GetParam().training;
    options.training.lanes = 2;
    auto session = TRY(Session::join(rank, options, GetParam().parameters(rank.rank().value)));
    TRY(session->leave());
    return true;
  });

  const std::string complaint = GetParam().complaint;
  if (complaint.empty()) {
    EXPECT_EQ(problems_of(outcome.report), "");
  } else {
    agreeing::expect_on_all(outcome, Errc::mismatch, complaint);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cuts, Registrations,
    testing::Values(
        Parts{"whole", "", cut(2, 1, 1), [](int rank) { return std::vector{part("w", 4, 4 * rank)}; }},
        Parts{"gap", "no whole parameters: 'w'", cut(2, 1, 1),
              [](int rank) { return std::vector{part("w", 4, 5 * rank, 9)}; }},
        Parts{"twice_the_same_part", "no whole parameters: 'w'", cut(2, 1, 1),
              [](int) { return std::vector{part("w", 4, 0)}; }},
        Parts{"overlap", "no whole parameters: 'w'", cut(2, 1, 1),
              [](int rank) { return std::vector{part("w", 4, 3 * rank)}; }},
        Parts{"other_names_of_parts", "the first difference is entry 0: rank 0 has \"parameter w0",
              cut(2, 1, 1), [](int rank) { return std::vector{part(rank == 0 ? "w0" : "w1", 4, 4 * rank)}; }},
        Parts{"stages", "", cut(1, 2, 1),
              [](int rank) {
                return std::vector<core::ParameterSpec>{{rank == 0 ? "first" : "second", {8}}};
              }},
        Parts{"stages_with_one_name", "both register 'w' as theirs", cut(1, 2, 1),
              [](int) {
                return std::vector<core::ParameterSpec>{{"w", {8}}};
              }},
        Parts{"stages_with_a_copy", "", cut(1, 2, 1),
              [](int rank) {
                std::vector<core::ParameterSpec> specs{{"w", {8}}, {rank == 0 ? "first" : "second", {8}}};
                specs[0].is_copy = rank == 1;
                return specs;
              }},
        Parts{"stages_with_a_copy_of_another_shape", "'w' has different global shapes on ranks 0 and 1",
              cut(1, 2, 1),
              [](int rank) {
                std::vector<core::ParameterSpec> specs{{"w", {8 + rank}},
                                                       {rank == 0 ? "first" : "second", {8}}};
                specs[0].is_copy = rank == 1;
                return specs;
              }},
        Parts{"experts_with_one_name", "both register 'e' as theirs", cut(1, 1, 2),
              [](int) {
                std::vector<core::ParameterSpec> specs{{"w", {8}}, {"e", {8}}};
                specs[1].is_expert = true;
                return specs;
              }}),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace troupe::actors
