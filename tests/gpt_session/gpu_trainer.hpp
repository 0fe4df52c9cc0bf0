#pragma once

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "apps/gpt/run/distributed_trainer.hpp"
#include "core/errors.hpp"
#include "tests/apps_gpt/text_file.hpp"
#include "tests/gpu_session/company.hpp"
#include "tests/support/environment.hpp"

namespace troupe::apps::gpt {

inline std::string text_to_learn() {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += i * i % 7 == 3 ? "to be " : "or not ";
  return text;
}

/// TROUPE_STEPS asks for longer jobs, and for all meshes where the suite has those of few ranks.
inline const int kSteps = static_cast<int>(tests::number_in_environment("TROUPE_STEPS", 3));

inline TrainerOptions trainer_options(core::DType dtype) {
  TrainerOptions options;
  options.model = {.layers = 1, .heads = 2, .width = 16, .feed_forward = 24, .context = 8, .vocabulary = 128};
  options.arithmetic.dtype = dtype;
  options.microbatch = {.batch = 1, .length = 8};
  options.session.training.lanes = 4;
  options.session.training.microbatches = 2;
  options.session.training.bucket_elements = 1500;
  options.session.training.clip_norm = 1;
  options.schedule = {.peak = 1e-2, .floor = 1e-3, .warmup = core::Step{1}, .total = core::Step{kSteps}};
  return options;
}

/// What a rank saw.
struct Seen {
  std::vector<double> losses;
  double evaluation = 0;
  std::uint64_t parameters = 0;
  ExpertTally load{};  ///< of experts, by all tokens since what was restored
  friend bool operator==(const Seen&, const Seen&) = default;
  friend void PrintTo(const Seen& seen, std::ostream* out) {
    *out << fmt::format("losses {}, evaluation {}, parameters {:016x}, experts' load {}", seen.losses,
                        seen.evaluation, seen.parameters, seen.load.counts());
  }
};

inline core::Result<Seen> train(actors::RankWorld& world, const TrainerOptions& options,
                                const Corpus& corpus) {
  const auto trainer = TRY(DistributedTrainer::create(world, options, corpus));
  Seen seen;
  for (int step = 0; step < kSteps; ++step) seen.losses.push_back(TRY(trainer->step()).loss);
  seen.load = TRY(trainer->take_expert_load());
  seen.evaluation = TRY(trainer->evaluate(2)).value();
  seen.parameters = TRY(trainer->parameter_hash());
  TRY(trainer->session().leave());
  return seen;
}

/// One step of a job that goes on where the newest checkpoint of its directory ends, and saves another.
inline core::Result<Seen> go_on(actors::RankWorld& world, const TrainerOptions& options,
                                const Corpus& corpus) {
  const auto trainer = TRY(DistributedTrainer::create(world, options, corpus));
  TRY(trainer->resume({}));
  Seen seen;
  seen.losses.push_back(TRY(trainer->step()).loss);
  seen.load = TRY(trainer->take_expert_load());
  TRY(trainer->save());
  TRY(trainer->session().wait_saves());
  for (const auto& save : trainer->session().take_saves()) TRY(save.committed);
  seen.parameters = TRY(trainer->parameter_hash());
  TRY(trainer->session().leave());
  return seen;
}

/// What a job of that many steps has seen after each of them, without a restore.
inline core::Result<std::vector<Seen>> watch(actors::RankWorld& world, const TrainerOptions& options,
                                             const Corpus& corpus, std::size_t steps) {
  const auto trainer = TRY(DistributedTrainer::create(world, options, corpus));
  std::vector<Seen> seen(steps);
  for (auto& each : seen) {
    each.losses.push_back(TRY(trainer->step()).loss);
    each.load = TRY(trainer->take_expert_load());
    each.parameters = TRY(trainer->parameter_hash());
  }
  TRY(trainer->session().leave());
  return seen;
}

/// What is computed between steps.
struct SaidOnGpus {
  std::vector<float> logits;
  std::string exported;  ///< by rank 0
};

/// After a step; rank 0 exports into a folder that does not stay.
inline core::Result<SaidOnGpus> ask(actors::RankWorld& world, const TrainerOptions& options,
                                    const Corpus& corpus, const std::string& folder) {
  const auto trainer = TRY(DistributedTrainer::create(world, options, corpus));
  const std::vector<std::int32_t> tokens{116, 104, 101, 32, 113};
  SaidOnGpus said;
  TRY(trainer->step());
  const auto logits = TRY(trainer->logits(tokens));
  said.logits.assign(logits.begin(), logits.end());
  if (world.rank().value == 0) {
    TRY(trainer->export_model({.directory = folder}));
    std::ifstream file(folder + "/model.safetensors", std::ios::binary);
    said.exported.assign(std::istreambuf_iterator<char>(file), {});
    std::filesystem::remove_all(folder);
  } else if (trainer->has_sharded_parameters()) {
    TRY(trainer->hand_over_parameters());
  }
  TRY(trainer->step());
  TRY(trainer->session().leave());
  return said;
}

class TrainerOnGpus : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(company_.violations(), std::vector<std::string>{}); }

  std::vector<core::Result<Seen>> train_all(int ranks, const TrainerOptions& options) {
    return company_.run<Seen>(ranks,
                              [&](actors::RankWorld& world) { return train(world, options, corpus_); });
  }
  std::vector<Seen> watch_one(const TrainerOptions& options, std::size_t steps) {
    const auto play = [&](actors::RankWorld& world) { return watch(world, options, corpus_, steps); };
    return company_.run<std::vector<Seen>>(1, play)[0].value();
  }
  std::vector<core::Result<SaidOnGpus>> ask_all(int ranks, const TrainerOptions& options,
                                                const std::string& folder) {
    return company_.run<SaidOnGpus>(
        ranks, [&](actors::RankWorld& world) { return ask(world, options, corpus_, folder); });
  }
  std::vector<core::Result<Seen>> go_on_all(int ranks, const TrainerOptions& options,
                                            const std::string& directory) {
    return company_.run<Seen>(
        ranks, [&](actors::RankWorld& world) { return go_on(world, options, corpus_); }, directory);
  }
  actors::EmulatedCompany& company() { return company_; }
  const Corpus& corpus() const { return corpus_; }

 private:
  actors::EmulatedCompany company_;
  const TextFile text_{text_to_learn()};
  const Corpus corpus_ = Corpus::open(text_.path(), 8).value();
};

}  // namespace troupe::apps::gpt
