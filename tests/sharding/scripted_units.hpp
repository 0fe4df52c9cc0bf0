#pragma once

#include <string>

#include "core/random.hpp"
#include "tests/sharding/meshes.hpp"
#include "tests/simulation/scripted_job.hpp"

namespace troupe::tests {

/// Three units of unequal parameters, and one that stays; gradients that no two places share; eight lanes.
inline actors::Script unit_script(const ShardingMesh& mesh) {
  actors::Script script;
  script.parameters = {{"stays", {11}}, {"a", {7, 9}}, {"b", {31}}, {"c", {5, 5, 5}}, {"d", {13}}};
  for (std::uint32_t p = 1; p < 5; ++p) script.parameters[p].unit = core::UnitIndex{p < 3 ? 0 : p - 2};
  script.parameters[2].weight_decay = false;
  script.steps = 4;
  script.learning_rate = 0.01;
  auto& training = script.session.training;
  training.strategy = mesh.strategy;
  training.optimizer_instances = mesh.outer;
  training.lanes = 8;
  training.bucket_elements = 50;
  script.initial = [](std::uint32_t p, std::size_t i) { return core::CounterRandom(p, "initial").normal(i); };
  script.gradient = [](const actors::GradientPlace& place) {
    return core::CounterRandom(place.parameter, "gradient", place.step, place.lane).normal(place.element);
  };
  return script;
}

inline actors::JobOutcome<actors::ScriptResult> run(const ShardingMesh& mesh, const actors::Script& script,
                                                    actors::Storage* disk = nullptr) {
  actors::SimulationOptions simulation;
  simulation.ranks = {mesh.ranks()};
  simulation.seed = static_cast<std::uint64_t>(mesh.ranks());
  simulation.storage = disk;
  return actors::simulate_script(std::move(simulation), script);
}

/// Those of one rank that keeps everything, of two, and all strategies on two and four.
inline std::vector<ShardingMesh> some_meshes() {
  std::vector<ShardingMesh> some;
  for (const auto& mesh : sharding_meshes()) {
    if (mesh.ranks() == 2 || mesh.ranks() == 4 || mesh.name() == "ddpOn1" || mesh.name() == "zero3On3") {
      some.push_back(mesh);
    }
  }
  return some;
}

}  // namespace troupe::tests
