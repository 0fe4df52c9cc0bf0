#pragma once

#include <cstdint>
#include <vector>

#include "apps/gpt/run/distributed_trainer.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

/// What a rank saw.
struct Trained {
  std::uint64_t initial = 0;  ///< a hash of the parameters, before the first step
  std::vector<double> losses, norms;
  ExpertTally load{};  ///< of experts, by the tokens of all ranks
  double evaluation = 0;
  std::vector<float> logits;
  std::uint64_t parameters = 0;  ///< a hash, at the end
  friend bool operator==(const Trained&, const Trained&) = default;
};

/// Steps from the checkpoint that is there, and saves one more, where there is storage.
inline core::Result<Trained> train_shared(actors::RankWorld& world, const TrainerOptions& options,
                                          const Corpus& corpus, int steps) {
  const auto trainer = TRY(DistributedTrainer::create(world, options, corpus));
  if (world.storage() != nullptr) TRY(trainer->resume({}));
  Trained trained;
  trained.initial = TRY(trainer->parameter_hash());
  for (int step = 0; step < steps; ++step) {
    const auto outcome = TRY(trainer->step());
    trained.losses.push_back(outcome.loss);
    trained.norms.push_back(outcome.gradient_norm);
  }
  trained.load = TRY(trainer->take_expert_load());
  trained.evaluation = TRY(trainer->evaluate(2)).value();
  const std::int32_t tokens[] = {'t', 'h', 'e'};
  const auto logits = TRY(trainer->logits(tokens));
  trained.logits.assign(logits.begin(), logits.end());
  trained.parameters = TRY(trainer->parameter_hash());
  if (world.storage() != nullptr) {
    TRY(trainer->save());
    TRY(trainer->session().wait_saves());
    for (const auto& save : trainer->session().take_saves()) TRY(save.committed);
  }
  TRY(trainer->session().leave());
  return trained;
}

}  // namespace troupe::apps::gpt
