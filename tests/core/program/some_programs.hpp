#pragma once

#include <string>
#include <vector>

#include "core/program/plan_program.hpp"

namespace troupe::core {

/// What the tests of programs plan: `units` units on demand with one trainable tensor of `elements` each.
struct SomeJob {
  Strategy strategy = Strategy::zero3;
  int ranks = 2;
  int outer = 1;
  int units = 4;
  int rounds = 1;  ///< lanes of each rank
  Numerics numerics = Numerics::fast;
  std::int64_t elements = 1024;
};

inline ProgramInputs inputs_of(const SomeJob& job) {
  const Mesh mesh = Mesh::create({.dp = job.ranks, .optimizer_instances = job.outer}).value();
  ProgramInputs inputs = inputs_of(job.strategy, mesh).value();
  inputs.classes = {{.storage = DType::bf16, .optimizer = {"adamw", {DType::f32, DType::f32}}}};
  inputs.units.assign(static_cast<std::size_t>(job.units), {.tensors = {{.elements = job.elements}}});
  inputs.numerics = job.numerics;
  inputs.lanes = job.ranks * job.rounds;
  return inputs;
}

inline Program program_of(const SomeJob& job) {
  const auto inputs = inputs_of(job);
  return plan_program(inputs, std::vector<int>(inputs.domains[0].sizes.size(), 0)).value();
}

}  // namespace troupe::core
