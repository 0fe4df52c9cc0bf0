#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "apps/gpt/model/expert_exchange.hpp"
#include "apps/gpt/model/expert_peers.hpp"
#include "core/random.hpp"
#include "tests/apps_gpt/tensors.hpp"
#include "tests/apps_gpt/typed_model.hpp"

namespace troupe::apps::gpt {
namespace {

constexpr BatchShape kShape{.batch = 2, .length = 5};
constexpr std::uint64_t kSeed = 7;

/// Ranks as threads, which find what the others give in each other's memory. Nothing moves before wait().
struct Meeting {
  explicit Meeting(std::size_t ranks)
      : barrier(static_cast<std::ptrdiff_t>(ranks)), counts(ranks), inputs(ranks), moves(ranks) {}

  std::barrier<> barrier;
  std::vector<std::vector<std::int64_t>> counts;
  std::vector<std::span<const std::byte>> inputs;
  std::vector<core::RowMove> moves;
};

/// Which row comes i-th.
std::size_t row_of(const std::optional<std::vector<std::int64_t>>& list, std::size_t i) {
  return list ? static_cast<std::size_t>((*list)[i]) : i;
}

class ThreadPeers final : public ExpertPeers {
 public:
  ThreadPeers(Meeting& meeting, std::size_t place, std::int64_t most_rows,
              std::vector<Tensors<float>>& gradients)
      : meeting_(meeting), place_(place), most_rows_(most_rows), gradients_(gradients) {}

  core::Result<PlannedRows> plan(std::size_t, const core::Dispatch& dispatch) override {
    std::vector<std::int64_t> own;
    for (std::size_t e = 0; e < dispatch.experts(); ++e) own.push_back(dispatch.count(e));
    meeting_.counts[place_] = own;
    meeting_.barrier.arrive_and_wait();
    const auto all = meeting_.counts;
    meeting_.barrier.arrive_and_wait();
    const core::ExpertOwners owners{own.size(), all.size()};
    auto exchange = TRY(core::plan_exchange(owners, place_, all, most_rows_));
    return PlannedRows{1, std::move(exchange)};
  }

  core::Result<void> begin_exchange(const RowsOfExchange&, std::span<const std::byte> input,
                                    std::span<std::byte> output, const core::RowMove& move,
                                    std::size_t row_bytes) override {
    meeting_.inputs[place_] = input;
    meeting_.moves[place_] = move;
    output_ = output;
    row_bytes_ = row_bytes;
    return {};
  }

  core::Result<void> wait() override {
    meeting_.barrier.arrive_and_wait();
    const core::RowMove own = meeting_.moves[place_];
    std::size_t to = 0;
    for (std::size_t other = 0; other < meeting_.moves.size(); ++other) {
      const core::RowMove& move = meeting_.moves[other];
      EXPECT_EQ(move.sent[place_], own.taken[other]);
      std::size_t from = 0;
      for (std::size_t i = 0; i < place_; ++i) from += static_cast<std::size_t>(move.sent[i]);
      for (std::int64_t i = 0; i < own.taken[other]; ++i, ++from, ++to) {
        const auto row = meeting_.inputs[other].subspan(row_of(move.input, from) * row_bytes_, row_bytes_);
        const auto place = output_.subspan(row_of(own.output, to) * row_bytes_, row_bytes_);
        std::copy(row.begin(), row.end(), place.begin());
      }
    }
    meeting_.barrier.arrive_and_wait();
    return {};
  }

  void* gradient(std::size_t parameter, std::size_t source) override {
    return gradients_[source].tensors[parameter].data();
  }

 private:
  Meeting& meeting_;
  std::size_t place_;
  std::int64_t most_rows_;
  std::vector<Tensors<float>>& gradients_;
  std::span<std::byte> output_;
  std::size_t row_bytes_ = 0;
};

ModelConfig mixture(std::optional<double> capacity_factor = {}) {
  ModelConfig config{.layers = 2, .heads = 2, .width = 8, .feed_forward = 12, .context = 5, .vocabulary = 11};
  config.tied_embeddings = false;
  config.experts = {.count = 4, .choices = 2, .feed_forward = 6, .shared_feed_forward = 5};
  config.experts.capacity_factor = capacity_factor;
  config.experts.balance = 0.1;
  return config;
}

std::vector<std::int32_t> tokens_of(std::size_t source, std::size_t first) {
  const core::CounterRandom random(kSeed + source, "tokens");
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < kShape.rows(); ++i)
    tokens.push_back(static_cast<std::int32_t>(random.below(11, first + i)));
  return tokens;
}

/// What a pass over one source's tokens leaves: the loss, the gradients by name, and what was dropped.
struct Seen {
  float loss = 0;
  std::map<std::string, std::vector<float>> gradients;
  std::vector<std::int64_t> dropped;
};

using Values = std::function<void(const std::vector<ParameterSpec>&, Tensors<float>&)>;

std::vector<std::int64_t> drops(const Model& model) {
  std::vector<std::int64_t> dropped;
  for (const ExpertRoutes& routes : model.routes())
    dropped.insert(dropped.end(), routes.dispatch.dropped.begin(), routes.dispatch.dropped.end());
  return dropped;
}

Seen alone(const ModelConfig& config, std::size_t source, const Values& change) {
  auto model = Model::create(config, kShape).value();
  auto values = initial_parameters(model.table().specs, kSeed);
  change(model.table().specs, values);
  Tensors<float> gradients(model.table().specs);
  Seen seen;
  seen.loss = model
                  .forward_backward(values.constant(), gradients.pointers(), tokens_of(source, 0),
                                    tokens_of(source, 100))
                  .value();
  for (std::size_t p = 0; p < gradients.tensors.size(); ++p)
    seen.gradients[model.table().specs[p].name] = gradients.tensors[p];
  seen.dropped = drops(model);
  return seen;
}

/// The same for all sources when their experts are spread over as many ranks.
std::vector<Seen> together(ModelConfig config, std::size_t ranks, const Values& change) {
  Meeting meeting(ranks);
  std::vector<Seen> seen(ranks);
  std::mutex mutex;  // guards seen
  config.experts.ranks = ranks;
  {
    std::vector<std::jthread> threads;
    for (std::size_t place = 0; place < ranks; ++place) {
      threads.emplace_back([&, place] {
        ModelConfig own = config;
        own.experts.place = place;
        auto model = Model::create(own, kShape).value();
        const auto& specs = model.table().specs;
        auto values = initial_parameters(specs, kSeed);
        change(specs, values);
        Tensors<float> dense(specs);
        std::vector<Tensors<float>> experts(ranks, Tensors<float>(specs));
        const auto most = static_cast<std::int64_t>(own.experts.most_rows(kShape.rows()));
        ThreadPeers peers(meeting, place, most, experts);
        std::map<std::size_t, int> ready;
        StepHooks hooks{.before_use = {}, .gradient_ready = [&](std::size_t p) { ++ready[p]; }};
        hooks.peers = &peers;
        const auto loss = model.forward_backward(values.constant(), dense.pointers(), tokens_of(place, 0),
                                                 tokens_of(place, 100), hooks);
        const std::lock_guard lock(mutex);
        seen[place].loss = loss.value();
        seen[place].dropped = drops(model);
        for (std::size_t p = 0; p < specs.size(); ++p) {
          EXPECT_EQ(ready[p], 1) << specs[p].name;
          if (!specs[p].is_expert) seen[place].gradients[specs[p].name] = dense.tensors[p];
          for (std::size_t source = 0; specs[p].is_expert && source < ranks; ++source)
            seen[source].gradients[specs[p].name] = experts[source].tensors[p];
        }
      });
    }
  }
  return seen;
}

void expect_bits_of_one_rank(
    const ModelConfig& config, const Values& change = [](auto&, auto&) {}) {
  for (const std::size_t ranks : {2, 4}) {
    const auto found = together(config, ranks, change);
    for (std::size_t source = 0; source < ranks; ++source) {
      const auto expected = alone(config, source, change);
      EXPECT_EQ(found[source].loss, expected.loss);
      EXPECT_EQ(found[source].dropped, expected.dropped);
      EXPECT_EQ(found[source].gradients, expected.gradients) << "source " << source << " of " << ranks;
    }
  }
}

TEST(SpreadExperts, ComputeForEachRankItsOwnBits) {
  expect_bits_of_one_rank(mixture());
}

TEST(SpreadExperts, DropWhatTheirCapacityDropsOnOneRank) {
  const auto dropped = alone(mixture(0.6), 0, [](auto&, auto&) {}).dropped;
  EXPECT_GT(*std::max_element(dropped.begin(), dropped.end()), 0);
  expect_bits_of_one_rank(mixture(0.6));
}

/// Two experts of one rank have everything, so that the others compute with no rows at all.
TEST(SpreadExperts, MayAllGetNothingButTwo) {
  const auto to_two = [](const std::vector<ParameterSpec>& specs, Tensors<float>& values) {
    for (std::size_t p = 0; p < specs.size(); ++p) {
      if (specs[p].name.find("mlp.gate.weight") == std::string::npos) continue;
      // All logits are 0, and of those that are as good the first ones are chosen.
      std::fill(values.tensors[p].begin(), values.tensors[p].end(), 0.0F);
    }
  };
  const auto gradients = alone(mixture(), 0, to_two).gradients;
  EXPECT_THAT(gradients.at("model.layers.0.mlp.experts.2.up_proj.weight"), testing::Each(0.0F));
  EXPECT_THAT(gradients.at("model.layers.0.mlp.experts.0.up_proj.weight"), testing::Not(testing::Each(0.0F)));
  expect_bits_of_one_rank(mixture(), to_two);
}

/// Another order of rows, in forward the same products, in backward other sums.
TEST(SpreadExperts, InOneProductComeCloseToEachRanksOwn) {
  auto config = mixture(0.9);
  config.experts.grouped = true;
  const Values nothing = [](auto&, auto&) {};
  constexpr std::size_t kRanks = 2;  // each with two experts, whose rows change places
  const auto found = together(config, kRanks, nothing);
  std::map<std::string, std::vector<float>> of_experts;
  for (std::size_t source = 0; source < kRanks; ++source) {
    const auto expected = alone(mixture(0.9), source, nothing);
    EXPECT_NEAR(found[source].loss, expected.loss, 1e-6 * expected.loss);
    EXPECT_EQ(found[source].dropped, expected.dropped);
    for (const auto& [name, values] : expected.gradients) {
      if (name.find(".experts.") == std::string::npos) {
        for (std::size_t i = 0; i < values.size(); ++i)
          EXPECT_NEAR(found[source].gradients.at(name)[i], values[i], 1e-6) << name;
        continue;
      }
      auto& sum = of_experts.try_emplace(name, values.size()).first->second;
      for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
    }
  }
  for (const auto& [name, sum] : of_experts) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      EXPECT_NEAR(found[0].gradients.at(name)[i], sum[i], 1e-6) << name << ": source 0 has those of all";
      EXPECT_EQ(found[1].gradients.at(name)[i], 0.0F);
    }
  }
}

TEST(SpreadExperts, TakeRoomForAllRowsThatMayCome) {
  auto config = mixture().experts;
  EXPECT_EQ(config.most_rows(10), 20U);
  config.ranks = 4;
  EXPECT_EQ(config.most_rows(10), 80U) << "all choices of all ranks";
  config.capacity_factor = 1.2;
  EXPECT_EQ(config.most_rows(10), 24U) << "6 of each rank for one expert";
  config.ranks = 2;
  EXPECT_EQ(config.most_rows(10), 24U);
  config.members = 2;
  EXPECT_EQ(config.most_rows(10), 24U) << "12 of both for each of two experts";
  config.members = 4;
  EXPECT_EQ(config.most_rows(10), 40U) << "24 for each, but the two have 20 rows of 2 choices";
  config.ranks = 4;
  EXPECT_EQ(config.most_rows(10), 24U);
  config.members = 2;
  EXPECT_EQ(config.most_rows(10), 24U);
  config.members_of_rank = 2;
  EXPECT_EQ(config.most_rows(10), 48U) << "12 of one of the two on each rank";
}

TEST(SpreadExperts, ThatDoNotDivideAreRefused) {
  auto config = mixture();
  config.experts.ranks = 3;
  EXPECT_THAT(Model::create(config, kShape).error().message,
              testing::HasSubstr("4 experts cannot be owned by 3 ranks alike"));
  config.experts.ranks = 2;
  config.experts.place = 2;
  EXPECT_THAT(Model::create(config, kShape).error().message,
              testing::HasSubstr(
                  "place 2 of the ranks that experts are distributed over is not below their number 2"));
}

}  // namespace
}  // namespace troupe::apps::gpt
