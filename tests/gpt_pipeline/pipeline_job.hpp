#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "actors/simulation/simulation.hpp"
#include "actors/world/simulation/storage.hpp"
#include "apps/gpt/distributed_trainer.hpp"
#include "core/errors.hpp"
#include "tests/apps_gpt/text_file.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::apps::gpt {

/// How a job is cut.
struct Cut {
  int ranks = 1;
  int stages = 1;
  core::ScheduleKind schedule = core::ScheduleKind::one_f_one_b;
  int chunks = 1;
  bool tied = true;
  core::Strategy strategy = core::Strategy::zero1;
  int copies = 1;         ///< of a sharded optimizer, of strategies of two axes
  bool experts = false;   ///< in all layers but the first
  bool capacity = false;  ///< which drops what is too much for an expert
  int expert_parallel = 1;

  std::string name() const {
    return fmt::format("{}{}x{}on{}{}{}{}", core::name_of(schedule), stages, chunks, ranks,
                       tied ? "tied" : "untied", core::name_of(strategy), capacity ? "capacity" : "") +
           (expert_parallel > 1 ? fmt::format("ep{}", expert_parallel) : "");
  }
};

/// Tiny, but deep enough for every cut.
inline TrainerOptions trainer_options(const Cut& cut) {
  TrainerOptions options;
  options.model = preset("tiny").value();
  options.model.layers = 8;
  options.model.tied_embeddings = cut.tied;
  if (cut.experts) {
    options.model.experts = {.count = 4,
                             .choices = 2,
                             .feed_forward = 24,
                             .shared_feed_forward = 16,
                             .balance = 0.01,
                             .z_loss = 0.001,
                             .dense_layers = {0}};
    if (cut.capacity) options.model.experts.capacity_factor = 1.0;
  }
  options.microbatch = {2, options.model.context};
  options.schedule = {.peak = 3e-3, .floor = 3e-4, .warmup = core::Step{5}, .total = core::Step{20}};
  options.pipeline = {cut.schedule, cut.chunks};
  auto& training = options.session.training;
  training.strategy = cut.strategy;
  training.pipeline_parallel = cut.stages;
  training.optimizer_instances = cut.copies;
  training.expert_parallel = cut.expert_parallel;
  training.lanes = 8;
  training.bucket_elements = 3000;
  training.clip_norm = 1;
  training.optimizer.weight_decay = 0.1;
  return options;
}

/// The same text on every call.
class TrainingText {
 public:
  TrainingText() : path_(folder_.path("text")) {
    std::ofstream(path_, std::ios::binary) << some_text(4000);
    corpus_.emplace(Corpus::open(path_, 16).value());
  }
  const Corpus& corpus() const { return *corpus_; }

 private:
  tests::ScratchFolder folder_;
  std::string path_;
  std::optional<Corpus> corpus_;
};

/// What a rank saw.
struct Trained {
  std::vector<double> losses;
  std::vector<double> norms;
  std::uint64_t parameters = 0;  ///< a hash of all of them
  ExpertTally load;              ///< of all ranks, of models with experts
};

using Training = std::function<core::Result<Trained>(actors::SimulatedRank&)>;

inline std::vector<Trained> simulate(const Cut& cut, const Training& train,
                                     actors::Storage* storage = nullptr) {
  actors::SimulationOptions options;
  options.ranks = {cut.ranks};
  options.seed = static_cast<std::uint64_t>(cut.ranks);
  options.storage = storage;
  std::vector<Trained> trained(static_cast<std::size_t>(cut.ranks));
  actors::Simulation simulation(options);
  const auto report = simulation.run([&](actors::SimulatedRank& rank) -> core::Result<void> {
    trained[static_cast<std::size_t>(rank.rank().value)] = TRY(train(rank));
    return {};
  });
  for (const auto& violation : report.violations) ADD_FAILURE() << violation;
  for (const auto& result : report.results) EXPECT_TRUE(result) << result.error().message;
  return trained;
}

/// From the newest checkpoint, where there is one, to the end of step `until` - 1.
inline core::Result<Trained> train_until(actors::SimulatedRank& rank, const TrainerOptions& options,
                                         const Corpus& corpus, int until) {
  auto trainer = TRY(DistributedTrainer::create(rank, options, corpus));
  if (rank.storage() != nullptr) TRY(trainer->resume({}));
  Trained trained;
  while (trainer->session().next_step().value < until) {
    const auto outcome = TRY(trainer->step());
    CHECK(outcome.committed, "nothing refuses a step here");
    trained.losses.push_back(outcome.loss);
    trained.norms.push_back(outcome.gradient_norm);
  }
  if (rank.storage() != nullptr) {
    TRY(trainer->save());
    TRY(trainer->session().wait_saves());
  }
  if (options.model.experts.count > 0) trained.load = TRY(trainer->take_expert_load());
  trained.parameters = TRY(trainer->parameter_hash());
  TRY(trainer->session().leave());
  return trained;
}

}  // namespace troupe::apps::gpt
