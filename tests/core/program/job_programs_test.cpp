#include "core/program/job_programs.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/core/program/some_programs.hpp"

namespace troupe::core {
namespace {

TEST(JobPrograms, AHundredThousandRanksHaveFewProgramsWhichPassTheCheck) {
  for (const int rounds : {8, 3}) {
    const auto inputs = inputs_of(SomeJob{.strategy = Strategy::hsdp,
                                          .ranks = 100'000,
                                          .outer = 3'125,
                                          .units = 40,
                                          .rounds = rounds,
                                          .numerics = Numerics::ordered,
                                          .elements = 32 * 1024});

    const auto job = plan_all(inputs).value();

    EXPECT_EQ(job.of_place.size(), 100'000U);
    EXPECT_LE(job.programs.size(), rounds == 8 ? 2U : 3U);
    const auto checked = check_programs(representatives(job));
    EXPECT_TRUE(checked.has_value()) << checked.error().message;
  }
}

RC_GTEST_PROP(JobPrograms, RanksThatShareAProgramHaveTheSameOne, ()) {
  const auto strategy = *rc::gen::element(Strategy::ddp, Strategy::zero1, Strategy::zero3, Strategy::hsdp);
  const int outer = strategy == Strategy::ddp ? 1 : *rc::gen::inRange(1, 6);
  const int inner = *rc::gen::inRange(1, 6);
  const Mesh mesh = Mesh::create({.dp = outer * inner, .optimizer_instances = outer}).value();
  auto inputs = inputs_of(strategy, mesh).value();
  inputs.classes = {{}};
  inputs.units.assign(3, {.tensors = {{.elements = 60 * outer * inner}}});
  inputs.lanes = outer * inner + *rc::gen::inRange(0, 40);

  const auto job = plan_all(inputs).value();

  for (int place = 0; place < outer * inner; ++place) {
    auto own = plan_program(inputs, coordinates_in(inputs.domains[0], mesh, {place})).value();
    const auto& shared =
        job.programs[static_cast<std::size_t>(job.of_place[static_cast<std::size_t>(place)])];
    own.coordinates = shared.coordinates;
    RC_ASSERT(own == shared);
  }
}

}  // namespace
}  // namespace troupe::core
