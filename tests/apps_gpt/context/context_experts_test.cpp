#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "apps/gpt/layers/cross_entropy.hpp"
#include "apps/gpt/model/expert_tally.hpp"
#include "apps/gpt/model/sequences.hpp"
#include "apps/gpt/model/share.hpp"
#include "apps/gpt/stage/context_stage.hpp"
#include "apps/gpt/stage/host_stage.hpp"
#include "core/random.hpp"
#include "tests/apps_gpt/gradient_check.hpp"
#include "tests/apps_gpt/tensor/members.hpp"
#include "tests/apps_gpt/tensors.hpp"
#include "tests/apps_gpt/typed_model.hpp"
#include "tests/apps_gpt/uncut_model.hpp"

// Routers decide about all rows of a microbatch, of which each member of a group that shares sequences has
// some.

namespace troupe::apps::gpt {
namespace {

constexpr BatchShape kWholeBatch{2, 16};

struct RoutedFamily {
  const char* name;
  ExpertConfig experts;

  friend std::ostream& operator<<(std::ostream& out, const RoutedFamily& of) { return out << of.name; }
};

ExpertConfig biased(std::size_t layers) {
  ExpertConfig experts{.count = 4, .choices = 2, .feed_forward = 6, .capacity_factor = 0.8, .bias_rate = 0.1};
  const auto biases = some_values(layers * experts.count, 77);
  experts.biases = std::make_shared<const std::vector<float>>(biases.begin(), biases.end());
  return experts;
}

const RoutedFamily kRoutedFamilies[] = {
    {"Dropless", {.count = 4, .choices = 2, .feed_forward = 6}},
    {"Balanced", {.count = 5, .choices = 2, .feed_forward = 4, .balance = 0.3}},
    {"MoreExpertsThanKeyElements", {.count = 12, .choices = 2, .feed_forward = 2, .balance = 0.1}},
    {"ZLoss", {.count = 4, .choices = 1, .feed_forward = 6, .z_loss = 0.1}},
    {"SharedExpertWithDrops",
     {.count = 3,
      .choices = 2,
      .feed_forward = 4,
      .shared_feed_forward = 8,
      .shared_gate = true,
      .score_before_choice = true,
      .capacity_factor = 0.7,
      .balance = 0.2,
      .z_loss = 0.05,
      .dense_layers = {0}}},
    {"BiasesWithDrops", biased(2)},
};

ModelConfig config_with(const ExpertConfig& experts) {
  ModelConfig config{
      .layers = 2, .heads = 4, .width = 8, .feed_forward = 12, .context = 16, .vocabulary = 12};
  config.experts = experts;
  return config;
}

std::vector<std::int32_t> some_tokens(std::uint64_t seed) {
  core::CounterRandom random(seed, "tokens", {}, {});
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < kWholeBatch.rows(); ++i)
    tokens.push_back(static_cast<std::int32_t>(random.below(12, i)));
  return tokens;
}

/// What one rank with whole sequences computes.
struct WholeRun {
  explicit WholeRun(const ModelConfig& config)
      : tokens(some_tokens(1)),
        targets(some_tokens(2)),
        model(BasicModel<double>::create(config, kWholeBatch).value()),
        values(model.table().specs),
        gradients(model.table().specs) {
    // Members have differently many rows that are learned.
    for (const std::size_t place : {0, 1, 2, 17, 31}) targets[place] = kNoTarget;
    for (std::size_t i = 0; i < values.tensors.size(); ++i)
      values.tensors[i] = some_values(values.tensors[i].size(), static_cast<unsigned>(i + 1));
    loss = model.forward_backward(values.constant(), gradients.pointers(), tokens, targets).value();
  }

  std::vector<std::int32_t> tokens, targets;
  BasicModel<double> model;
  Tensors<double> values, gradients;
  double loss = 0;
};

/// Ranks that share each sequence, those that share each layer, and whether these share rows.
struct Members {
  std::size_t context, tensor = 1;
  bool sequence = false;

  friend std::ostream& operator<<(std::ostream& out, const Members& of) {
    return out << of.context << "x" << of.tensor << (of.sequence ? "ByRows" : "");
  }
};

void take_part_of(const PartLayout& layout, const std::vector<double>& whole, std::vector<double>& part) {
  for (std::int64_t run = 0; run < layout.runs; ++run)
    std::copy_n(whole.begin() + layout.first + run * layout.stride, layout.run,
                part.begin() + run * layout.run);
}

/// One member's step, against the whole's.
class MemberRun {
 public:
  MemberRun(WholeRun& whole, const Members& members, TensorGroup<double>& layers,
            TensorGroup<double>& context)
      : whole_(whole),
        layers_(layers),
        context_(context),
        part_(kWholeBatch, {members.context, context.index()}),
        table_(whole.model.config(), {members.tensor, layers.index(), members.sequence}),
        model_(BasicModel<double>::create(
                   config_of_share(whole.model.config(), members.tensor),
                   {kWholeBatch.batch, kWholeBatch.length / members.context}, Keep::activations,
                   {members.tensor > 1 ? &layers : nullptr, members.sequence, &context})
                   .value()),
        values_(table_.part().specs),
        gradients_(table_.part().specs) {
    for (std::size_t i = 0; i < table_.size(); ++i)
      take_part_of(table_.layout(i, layers.index()), whole.values.tensors[i], values_.tensors[i]);
  }

  void run() {
    const double weight = part_.weight(whole_.targets);
    const StepHooks hooks{.loss_scale = weight, .router_scale = 1};
    std::vector<double> loss{weight * model_
                                          .forward_backward(values_.constant(), gradients_.pointers(),
                                                            part_.own(whole_.tokens),
                                                            part_.own(whole_.targets), hooks)
                                          .value()};
    for (const ExpertRoutes& routes : model_.routes()) loss[0] += routes.loss;
    EXPECT_TRUE(context_.sum(loss));
    EXPECT_NEAR(loss[0], whole_.loss, 1e-13 * whole_.loss);
  }

  /// All that the members do together, before any of them gives up.
  void add_up() {
    for (std::size_t i = 0; i < table_.size(); ++i) EXPECT_TRUE(context_.sum(gradients_.tensors[i]));
    ExpertTally own = empty_tally();
    add_pass(own, model_.routes());
    const auto counts = own.counts();
    counts_.assign(counts.begin(), counts.end());
    EXPECT_TRUE(context_.sum(counts_));
  }

  void expect_gradients() const {
    for (std::size_t i = 0; i < table_.size(); ++i) {
      const auto& gradient = gradients_.tensors[i];
      std::vector<double> wanted(gradient.size());
      take_part_of(table_.layout(i, layers_.index()), whole_.gradients.tensors[i], wanted);
      for (std::size_t e = 0; e < gradient.size(); ++e) {
        ASSERT_NEAR(gradient[e], wanted[e], 1e-12 + 1e-10 * std::abs(wanted[e]))
            << table_.part().specs[i].name << " element " << e;
      }
    }
  }

  /// Own rows go where one rank sends them, drops included, and each is counted once.
  void expect_decisions() const {
    const std::size_t K = whole_.model.config().experts.choices;
    for (std::size_t layer = 0; layer < model_.routes().size(); ++layer) {
      const ExpertRoutes &own = model_.routes()[layer], &all = whole_.model.routes()[layer];
      EXPECT_EQ(own.load.counts, all.load.counts) << "of the whole microbatch";
      EXPECT_EQ(own.load.tokens, all.load.tokens);
      for (std::size_t choice = 0; choice < own.experts.size(); ++choice) {
        const std::size_t of_all = row_of_all(choice / K) * K + choice % K;
        ASSERT_EQ(own.experts[choice], all.experts[of_all]);
        const auto slot = own.dispatch.slot_of_choice[choice];
        ASSERT_EQ(slot == core::Dispatch::kDropped,
                  all.dispatch.slot_of_choice[of_all] == core::Dispatch::kDropped)
            << "row " << choice / K;
        if (slot == core::Dispatch::kDropped) continue;
        ASSERT_EQ(own.dispatch.choice_of_slot[static_cast<std::size_t>(slot)],
                  static_cast<std::int64_t>(choice));
      }
    }
    ExpertTally together = empty_tally();
    add_pass(together, whole_.model.routes());
    EXPECT_EQ(std::vector<std::int64_t>(counts_.begin(), counts_.end()), together.counts());
  }

 private:
  ExpertTally empty_tally() const {
    const auto& config = whole_.model.config();
    return {config.layers, config.experts.count};
  }
  std::size_t row_of_all(std::size_t row) const {
    const auto positions = positions_of_member(kWholeBatch.length, context_.size(), context_.index());
    return row / positions.size() * kWholeBatch.length + positions[row % positions.size()];
  }

  WholeRun& whole_;
  TensorGroup<double>&layers_, &context_;
  SequencePart part_;
  SharedTable table_;
  BasicModel<double> model_;
  Tensors<double> values_, gradients_;
  std::vector<double> counts_;  ///< of all members
};

class ContextOfExperts : public testing::TestWithParam<std::tuple<RoutedFamily, Members>> {};

TEST_P(ContextOfExperts, DecidesAsOneRankAndSplitsItsGradients) {
  const auto& [family, mesh] = GetParam();
  const Members members = mesh;
  WholeRun whole(config_with(family.experts));
  if (family.experts.capacity_factor) {
    const auto& dropped = whole.model.routes()[1].dispatch.dropped;
    ASSERT_GT(std::accumulate(dropped.begin(), dropped.end(), std::int64_t{0}), 2);
  }
  using Room = SliceGroup<double>::Room;
  std::vector<std::unique_ptr<Room>> layer_rooms, context_rooms;
  for (std::size_t piece = 0; piece < members.context; ++piece)
    layer_rooms.push_back(std::make_unique<Room>(members.tensor));
  for (std::size_t part = 0; part < members.tensor; ++part)
    context_rooms.push_back(std::make_unique<Room>(members.context));

  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < members.tensor * members.context; ++rank) {
    threads.emplace_back([&, rank] {
      const std::size_t part = rank % members.tensor, piece = rank / members.tensor;
      SliceGroup<double> layers(*layer_rooms[piece], part), context(*context_rooms[part], piece);
      MemberRun member(whole, members, layers, context);
      member.run();
      member.add_up();
      member.expect_gradients();
      member.expect_decisions();
    });
  }
}

std::string name_of_members(const testing::TestParamInfo<std::tuple<RoutedFamily, Members>>& info) {
  const auto& [family, members] = info.param;
  return family.name + testing::PrintToString(members);
}

INSTANTIATE_TEST_SUITE_P(Meshes, ContextOfExperts,
                         testing::Combine(testing::ValuesIn(kRoutedFamilies),
                                          testing::Values(Members{1}, Members{2}, Members{4}, Members{2, 2},
                                                          Members{4, 2, true})),
                         name_of_members);

/// The model of one of two members that share the sequences.
UncutModel member_model(const ModelConfig& config, TensorGroup<float>& group) {
  const StageShape part{.batch = {2, 8}, .context_parallel = 2};
  const auto sum = [&group](std::span<float> values) { return group.sum(values); };
  return {config, kWholeBatch,
          std::make_unique<ContextStage>(
              kWholeBatch, 1, member_of(&group), sum,
              create_host_stage(config, uncut(config), part, {nullptr, &group}).value()),
          0};
}

/// The losses of routers take in all rows, whichever of them are learned.
TEST(ContextStage, AddsUpToOneRanksStepWhoeverLearnsRows) {
  const auto config = config_with({.count = 4, .choices = 2, .feed_forward = 6, .balance = 2, .z_loss = 0.5});
  const auto whole = create_host_model(config, kWholeBatch).value();
  auto values = initial_parameters(whole->table().specs, 3);
  for (auto& tensor : values.tensors) {
    for (float& value : tensor) value *= 10;
  }
  const auto parameters = values.constant();
  const auto tokens = some_tokens(5);
  auto targets = some_tokens(6);
  // The first member's rows, all but one.
  for (std::size_t row = 1; row < targets.size(); ++row) {
    if (row % 16 < 4 || row % 16 >= 12) targets[row] = kNoTarget;
  }
  Tensors<float> expected(whole->table().specs);
  ASSERT_TRUE(whole->forward_backward(parameters, expected.pointers(), tokens, targets, {.loss_scale = 2}));
  const double loss = whole->take_losses().value().front();

  play_members<float>(2, [&](TensorGroup<float>& group) {
    UncutModel member = member_model(config, group);
    Tensors<float> gradients(member.table().specs);
    EXPECT_TRUE(
        member.forward_backward(parameters, gradients.pointers(), tokens, targets, {.loss_scale = 2}));
    std::vector<float> found{static_cast<float>(member.take_losses().value().front())};
    EXPECT_TRUE(group.sum(found));
    for (auto& gradient : gradients.tensors) EXPECT_TRUE(group.sum(gradient));
    EXPECT_NEAR(found[0], loss, 1e-5 * loss);
    for (std::size_t i = 0; i < gradients.tensors.size(); ++i) {
      float largest = 0;
      for (const float value : expected.tensors[i]) largest = std::max(largest, std::abs(value));
      for (std::size_t e = 0; e < gradients.tensors[i].size(); ++e) {
        ASSERT_NEAR(gradients.tensors[i][e], expected.tensors[i][e], 1e-4F * largest)
            << member.table().specs[i].name << " element " << e;
      }
    }
  });
}

/// A sequence that is shorter than the context is filled up to be cut, and what it is filled with must not
/// take the room of its tokens.
TEST(ContextStage, AnswersAsOneRankWhereTokensAreDropped) {
  auto config = config_with({.count = 3, .choices = 2, .feed_forward = 6, .capacity_factor = 0.6});
  const auto whole = create_host_model(config, kWholeBatch).value();
  auto values = initial_parameters(whole->table().specs, 3);
  std::vector<const std::byte*> parameters;
  for (auto& tensor : values.tensors) {
    for (float& value : tensor) value *= 20;  // so that experts matter
    parameters.push_back(reinterpret_cast<const std::byte*>(tensor.data()));
  }
  const auto tokens = some_tokens(5);
  for (const std::size_t length : {1, 3, 6, 11, 16}) {
    const auto text = std::span(tokens).first(length);
    const auto found = whole->logits(parameters, text, {}).value();
    const std::vector<float> expected(found.begin(), found.end());
    float largest = 0;
    for (const float logit : expected) largest = std::max(largest, std::abs(logit));

    play_members<float>(2, [&](TensorGroup<float>& group) {
      UncutModel member = member_model(config, group);
      const auto logits = member.logits(parameters, text, {}).value();
      for (std::size_t v = 0; v < expected.size(); ++v)
        ASSERT_NEAR(logits[v], expected[v], 1e-5F * largest) << length << " tokens";
    });
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
