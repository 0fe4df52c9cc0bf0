#include <cstdio>

#include "tests/apps_gpt/masked_text.hpp"
#include "tests/gpt_pipeline/pipeline_job.hpp"
#include "tests/simulation/swarm_of_cuts.hpp"
#include "tests/support/environment.hpp"

namespace troupe::apps::gpt {
namespace {

using core::ScheduleKind;
using core::Strategy;

TrainerOptions axes_options(const Cut& axes) {
  auto options = trainer_options(axes);
  options.model.layers = 4;
  options.model.heads = 4;
  options.model.query_key_norm = true;
  options.model.vocabulary = 128;
  auto& training = options.session.training;
  training.lanes = 4;
  return options;
}

const std::vector<std::pair<ScheduleKind, int>> kSchedules = {{ScheduleKind::gpipe, 1},
                                                              {ScheduleKind::one_f_one_b, 1},
                                                              {ScheduleKind::interleaved, 2},
                                                              {ScheduleKind::zero_bubble, 1}};

constexpr Strategy kStrategies[] = {Strategy::ddp,   Strategy::zero1, Strategy::zero2,
                                    Strategy::zero3, Strategy::hsdp,  Strategy::hfsdp};

/// Gradients wait for their lane, which those of experts that ranks share cannot.
bool has_to_wait(Strategy strategy, int chunks) {
  return chunks > 1 && (strategy == Strategy::ddp || strategy == Strategy::zero1);
}

void add(std::vector<Cut>& all, Cut axes, int data_parallel) {
  axes.ranks = axes.tensor * axes.stages * axes.context * data_parallel;
  axes.sequence = axes.tensor > 1;
  const bool has_copies = axes.strategy == Strategy::hsdp || axes.strategy == Strategy::hfsdp;
  const int copies = has_copies ? 2 : 1;
  const int etp = axes.expert_tensor > 0 ? axes.expert_tensor : axes.tensor;
  const int experts_over = axes.expert_parallel * etp / axes.tensor;
  if (data_parallel * axes.context % (experts_over * copies) != 0 || data_parallel % copies != 0) return;
  axes.copies = copies;
  all.push_back(axes);
}

/// Meshes of a model with experts, whose layers are cut in two: all of them have the bits of one rank that
/// computes in two slices.
std::vector<Cut> meshes_with_experts() {
  std::vector<Cut> all;
  for (const auto strategy : kStrategies) {
    for (const int data_parallel : {1, 2, 4}) {
      for (const int experts_over : {1, 2}) {
        if (data_parallel % experts_over != 0) continue;
        Cut axes;
        axes.experts = true;
        axes.slices = 2;
        axes.tensor = data_parallel < 4 ? 2 : 1;
        axes.strategy = strategy;
        axes.expert_parallel = experts_over;
        add(all, axes, data_parallel);
        if (data_parallel == 4) continue;
        for (const auto& [schedule, chunks] : kSchedules) {
          if (has_to_wait(strategy, chunks) && experts_over > 1) continue;
          axes.stages = 2;
          axes.schedule = schedule;
          axes.chunks = chunks;
          add(all, axes, data_parallel);
        }
      }
    }
  }
  return all;
}

/// Meshes of a model whose layers and sequences are cut in two, both pieces of these on one rank or on two,
/// dense or with experts, that all ranks have, or some of them each: those that share a sequence, or those of
/// several sequences.
std::vector<Cut> meshes_with_context(bool experts, int context) {
  std::vector<Cut> all;
  for (const auto strategy : kStrategies) {
    for (const int data_parallel : {1, 2, 4}) {
      for (const int experts_over : {1, 2, 4}) {
        if (experts_over > 1 && (!experts || data_parallel * context % experts_over != 0)) continue;
        Cut axes;
        axes.tied = false;
        axes.experts = axes.capacity = experts;
        axes.expert_parallel = experts_over;
        axes.context = context;
        axes.pieces = 2;
        axes.strategy = strategy;
        axes.slices = 2;
        add(all, axes, data_parallel);
        axes.tensor = 2;
        add(all, axes, data_parallel);
        if (data_parallel == 4) continue;
        for (const auto& [schedule, chunks] : kSchedules) {
          if (has_to_wait(strategy, chunks) && experts_over > 1) continue;
          axes.stages = 2;
          axes.schedule = schedule;
          axes.chunks = chunks;
          add(all, axes, data_parallel);
        }
      }
    }
  }
  return all;
}

/// Meshes of a model whose experts are cut over another number of ranks than its layers: these in two and
/// each expert whole, or the other way round.
std::vector<Cut> meshes_with_parts(int tensor) {
  std::vector<Cut> all;
  const int least = 3 - tensor;  // data-parallel ranks
  for (const auto strategy : kStrategies) {
    for (const int data_parallel : {least, 2 * least}) {
      for (const int experts_over : {tensor, 2 * tensor}) {
        if (data_parallel * tensor % experts_over != 0) continue;
        Cut axes;
        axes.experts = true;
        axes.tensor = tensor;
        axes.strategy = strategy;
        axes.expert_parallel = experts_over;
        axes.expert_tensor = 3 - tensor;
        add(all, axes, data_parallel);
        for (const auto& [schedule, chunks] : kSchedules) {
          if (has_to_wait(strategy, chunks)) continue;
          axes.stages = 2;
          axes.schedule = schedule;
          axes.chunks = chunks;
          add(all, axes, data_parallel);
        }
      }
    }
  }
  return all;
}

/// Meshes of a dense model with nothing cut but its stages, in every schedule.
std::vector<Cut> meshes_with_stages() {
  std::vector<Cut> all;
  for (const auto strategy : kStrategies) {
    for (const int data_parallel : {1, 2}) {
      for (const int stages : {1, 2, 4}) {
        for (const auto& [schedule, chunks] : kSchedules) {
          Cut axes;
          axes.stages = stages;
          axes.schedule = schedule;
          axes.chunks = chunks;
          axes.strategy = strategy;
          if (stages * chunks <= 4) add(all, axes, data_parallel);
        }
      }
    }
  }
  return all;
}

core::Result<Trained> train_axes(actors::SimulatedRank& rank, const Cut& axes, const Corpus& corpus,
                                 int until, const std::function<void()>& pass_time) {
  auto trainer = TRY(DistributedTrainer::create(rank, axes_options(axes), corpus));
  if (rank.storage() != nullptr) TRY(trainer->resume({}));
  Trained trained;
  while (trainer->session().next_step().value < until) {
    pass_time();
    const auto outcome = TRY(trainer->step());
    trained.losses.push_back(outcome.loss);
    trained.norms.push_back(outcome.gradient_norm);
    if (rank.storage() != nullptr) TRY(trainer->save());
  }
  if (rank.storage() != nullptr) TRY(trainer->session().wait_saves());
  trained.parameters = TRY(trainer->parameter_hash());
  TRY(trainer->session().leave());
  return trained;
}

struct Family {
  const char* name;
  std::vector<Cut> meshes;
  Cut alone;  ///< whose bits the meshes have

  friend std::ostream& operator<<(std::ostream& out, const Family& of) { return out << of.name; }
};

std::vector<Family> families() {
  Cut experts;
  experts.experts = true;
  experts.slices = 2;
  Cut context;
  context.tied = false;
  context.pieces = 2;
  context.slices = 2;
  Cut parts;
  parts.experts = true;
  parts.ranks = parts.expert_tensor = 2;
  Cut columns;
  columns.experts = columns.sequence = true;
  columns.ranks = columns.tensor = columns.expert_parallel = 2;
  columns.expert_tensor = 1;
  Cut both = context;
  both.experts = both.capacity = true;
  const auto with_context = [](bool has_experts) {
    auto all = meshes_with_context(has_experts, 1);
    for (const auto& axes : meshes_with_context(has_experts, 2)) all.push_back(axes);
    return all;
  };
  return {
      {"Experts", meshes_with_experts(), experts},         {"Context", with_context(false), context},
      {"ContextOfExperts", with_context(true), both},      {"PartsOfExperts", meshes_with_parts(1), parts},
      {"ExpertsOfColumns", meshes_with_parts(2), columns}, {"Stages", meshes_with_stages(), {}}};
}

class AxesSwarm : public testing::TestWithParam<Family> {};

/// Meshes, moments and victims are drawn, and those that follow go on from what is on the disk. TROUPE_SEEDS
/// draws more of them.
// Covers beyond-4, model-2.
TEST_P(AxesSwarm, EndsWithOneRanksBitsWhateverFails) {
  constexpr int kUntil = 4;
  constexpr std::uint32_t kFaultsWithin = 20'000;  // microseconds; a step takes some 5,000
  // What counts are targets, of which lanes have different numbers.
  const tests::ScratchFolder folder;
  const Corpus corpus = open_chats(folder.path("chats.jsonl"), 16);
  const auto& [name, meshes, alone] = GetParam();
  const auto train = [&](actors::SimulatedRank& rank, const Cut& axes, int until,
                         const std::function<void()>& pass_time) {
    return train_axes(rank, axes, corpus, until, pass_time);
  };
  const auto expected =
      simulate(alone, [&](actors::SimulatedRank& rank) { return train(rank, alone, kUntil, [] {}); })[0]
          .parameters;
  const auto seeds = tests::number_in_environment("TROUPE_SEEDS", 20);

  const auto lives = actors::swarm_of_cuts<Trained>(
      name, seeds, meshes, kUntil, train,
      [](const auto& ranks) {
        for (const auto& rank : ranks) EXPECT_EQ(rank.parameters, ranks[0].parameters);
        return ranks[0].parameters;
      },
      expected, kFaultsWithin);

  std::printf("%s: %zu meshes, %d jobs of %d seeds, %d came to the end from a checkpoint\n", name,
              meshes.size(), lives.jobs, static_cast<int>(seeds), lives.resumed);
  EXPECT_GT(lives.jobs, static_cast<int>(seeds)) << "some jobs die";
  EXPECT_GT(lives.resumed, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, AxesSwarm, testing::ValuesIn(families()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace troupe::apps::gpt
