#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "actors/simulation/simulation.hpp"
#include "actors/world/simulation/storage.hpp"
#include "apps/gpt/run/distributed_trainer.hpp"
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
  int tensor = 1;         ///< ranks that share each layer
  bool sequence = false;  ///< and its rows
  int slices = 0;         ///< of each layer; 0: as many as ranks share it
  int copies = 1;         ///< of a sharded optimizer, of strategies of two axes
  bool experts = false;   ///< in all layers but the first
  bool capacity = false;  ///< which drops what is too much for an expert
  int expert_parallel = 1;
  int context = 1;        ///< ranks that share each sequence
  int pieces = 0;         ///< of each sequence; 0: one for each of these
  int expert_tensor = 0;  ///< ranks that each expert is cut over; 0: as layers

  int all_pieces() const { return pieces == 0 ? context : pieces; }
  int all_slices() const { return slices == 0 ? tensor : slices; }
  std::string name() const {
    const auto parts = fmt::format("{}parts{}{}", tensor, sequence ? "byrows" : "",
                                   slices > 0 ? fmt::format("of{}", slices) : "");
    return fmt::format("{}{}x{}on{}{}{}{}{}{}{}{}", core::name_of(schedule), stages, chunks, ranks,
                       tied ? "tied" : "untied", core::name_of(strategy), all_slices() > 1 ? parts : "",
                       capacity  ? "capacity"
                       : experts ? "experts"
                                 : "",
                       expert_parallel > 1 ? fmt::format("ep{}", expert_parallel) : "",
                       all_pieces() > 1 ? fmt::format("cp{}of{}", context, all_pieces()) : "",
                       expert_tensor > 0 ? fmt::format("etp{}", expert_tensor) : "");
  }

  friend std::ostream& operator<<(std::ostream& out, const Cut& of) { return out << of.name(); }
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
  options.tensor = {.sequence_parallel = cut.sequence, .slices = cut.slices};
  auto& training = options.session.training;
  training.strategy = cut.strategy;
  training.pipeline_parallel = cut.stages;
  training.tensor_parallel = cut.tensor;
  training.optimizer_instances = cut.copies;
  training.expert_parallel = cut.expert_parallel;
  training.context_parallel = cut.context;
  training.context_pieces = cut.pieces;
  training.expert_tensor_parallel = cut.expert_tensor;
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
  std::vector<double> targets;   ///< tokens that steps learned
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
    trained.targets.push_back(outcome.weight);
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

/// What is computed between steps.
struct Said {
  double evaluation = 0;
  std::vector<float> logits;
  std::string exported;
  std::uint64_t parameters = 0;  ///< a hash of all of them, after that
};

/// Every rank's answers; rank 0 exports into a folder that does not stay.
inline std::vector<Said> ask(const Cut& cut, const TrainerOptions& options, const Corpus& corpus,
                             const std::string& folder) {
  std::vector<Said> said(static_cast<std::size_t>(cut.ranks));
  simulate(cut, [&](actors::SimulatedRank& rank) -> core::Result<Trained> {
    auto trainer = TRY(DistributedTrainer::create(rank, options, corpus));
    Said& own = said[static_cast<std::size_t>(rank.rank().value)];
    const std::vector<std::int32_t> tokens{116, 104, 101, 32, 113};
    const bool is_first = rank.rank().value == 0;
    TRY(trainer->evaluate(2));
    TRY(trainer->step());
    own.evaluation = TRY(trainer->evaluate(3)).value();
    const auto logits = TRY(trainer->logits(tokens));
    own.logits.assign(logits.begin(), logits.end());
    TRY(trainer->step());
    const auto later = TRY(trainer->logits(std::span(tokens).first(1)));
    own.logits.insert(own.logits.end(), later.begin(), later.end());
    if (is_first) {
      TRY(trainer->export_model({.directory = folder}));
      std::ifstream file(folder + "/model.safetensors", std::ios::binary);
      own.exported.assign(std::istreambuf_iterator<char>(file), {});
    } else {
      TRY(trainer->hand_over_parameters());
    }
    own.parameters = TRY(trainer->parameter_hash());
    TRY(trainer->session().leave());
    return Trained{};
  });
  std::filesystem::remove_all(folder);
  return said;
}

}  // namespace troupe::apps::gpt
