#include "actors/session/trainer_group.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "actors/session/session.hpp"
#include "gpu/kernels.hpp"
#include "tests/gpu_session/company.hpp"

namespace troupe::actors {
namespace {

constexpr std::size_t kElements = 64;
constexpr std::size_t kBytes = kElements * sizeof(float);
constexpr std::uint32_t kUnits = 3;
constexpr int kSteps = 3;

/// Sums of the trainer's own over memory of its device, one for each pass over a unit, on the compute stream.
class Sums {
 public:
  static core::Result<Sums> create(RankWorld& world, Session& session) {
    Sums sums;
    sums.compute_ = TRY(session.compute_stream());
    sums.group_ = TRY(session.group("all"));
    sums.own_ = TRY(world.device().allocate_staging(kBytes));
    const auto own = sums.own_.view().as<float>();
    std::fill(own.begin(), own.end(), static_cast<float>(world.rank().value + 1));
    sums.values_ = TRY(world.device().allocate(kBytes));
    sums.results_ = TRY(world.device().allocate_staging(kBytes * 2 * kUnits * kSteps * 4));
    return sums;
  }

  core::Result<void> add() { return wait(TRY(post())); }

  core::Result<TrainerGroup::Posted> post() {
    gpu::copy(own_.view(), values_.view(), compute_);
    return group_->all_reduce(values_.view(), core::DType::f32);
  }

  core::Result<void> wait(TrainerGroup::Posted posted) {
    TRY(group_->wait(posted));
    gpu::copy(values_.view(), results_.view().subview(kBytes * count_++, kBytes), compute_);
    return {};
  }

  core::Result<std::vector<float>> results() {
    TRY(compute_->synchronize(std::chrono::seconds(60)));
    const auto all = results_.view().subview(0, kBytes * count_).as<float>();
    return std::vector<float>(all.begin(), all.end());
  }

 private:
  gpu::StreamView compute_ = nullptr;
  TrainerGroup* group_ = nullptr;
  gpu::Buffer own_;
  gpu::Buffer values_;
  gpu::Buffer results_;
  std::size_t count_ = 0;
};

core::Result<std::vector<float>> train(RankWorld& world, core::Strategy strategy) {
  SessionOptions options;
  options.training.strategy = strategy;
  options.training.lanes = 4;
  options.training.bucket_elements = kElements;
  options.training.unused_parameters = core::UnusedParameters::zeros;
  std::vector<core::Rank> all;
  for (std::int32_t rank = 0; rank < world.world_size().value; ++rank) all.push_back({rank});
  options.groups = {{"all", {all}}};
  std::vector<core::ParameterSpec> parameters;
  for (std::uint32_t unit = 0; unit < kUnits; ++unit) {
    parameters.push_back({"w" + std::to_string(unit), {kElements}});
    parameters.back().unit = core::UnitIndex{unit};
  }
  auto session = TRY(Session::join(world, options, std::move(parameters)));
  auto sums = TRY(Sums::create(world, *session));
  for (int step = 0; step < kSteps; ++step) {
    TRY(session->begin_step(0.1));
    for (const core::Lane lane : session->lanes()) {
      TRY(session->begin_lane(lane));
      for (std::uint32_t unit = 0; unit < kUnits; ++unit) {
        TRY(session->before_use({unit}));
        TRY(sums.add());
      }
      TRY(session->begin_backward());
      for (std::uint32_t unit = kUnits; unit-- > 0;) {
        TRY(session->before_use({unit}));
        TRY(sums.add());
        TRY(session->gradient_ready({unit}));
      }
      TRY(session->end_lane(0));
    }
    TRY(session->finish_step());
  }
  auto results = TRY(sums.results());
  TRY(session->leave());
  return results;
}

/// Kernels of the emulated device run one after another, as on one that is full: ranks that launch in
/// different orders wait until their deadlines.
TEST(TrainerGroupsOnGpus, SumBesideTheSessionsCollectives) {
  EmulatedCompany company;
  for (const int ranks : {2, 4}) {
    for (const auto strategy : {core::Strategy::ddp, core::Strategy::zero1, core::Strategy::zero3}) {
      const auto outcome =
          company.run<std::vector<float>>(ranks, [&](RankWorld& world) { return train(world, strategy); });
      for (const auto& result : outcome) {
        ASSERT_TRUE(result) << result.error().message;
        ASSERT_EQ(result->size(), kElements * 2 * kUnits * kSteps * 4 / static_cast<std::size_t>(ranks));
        for (const float sum : *result) {
          ASSERT_EQ(sum, static_cast<float>(ranks * (ranks + 1) / 2)) << core::name_of(strategy);
        }
      }
    }
  }
  EXPECT_EQ(company.violations(), std::vector<std::string>{});
}

/// Two of them, waited for in the other order.
core::Result<std::vector<float>> sum_twice(RankWorld& world) {
  SessionOptions options;
  options.groups = {{"all", {{{0}, {1}}}}};
  auto session = TRY(Session::join(world, options, {{"w", {kElements}}}));
  auto first = TRY(Sums::create(world, *session));
  auto second = TRY(Sums::create(world, *session));
  const auto earlier = TRY(first.post()), later = TRY(second.post());
  TRY(second.wait(later));
  TRY(first.wait(earlier));
  auto results = TRY(first.results());
  TRY(session->leave());
  return results;
}

TEST(TrainerGroupsOnGpus, EndAnOperationOnceALaterOneIsAwaited) {
  EmulatedCompany company;

  for (const auto& result : company.run<std::vector<float>>(2, sum_twice)) {
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(*result, std::vector<float>(kElements, 3));
  }
  EXPECT_EQ(company.violations(), std::vector<std::string>{});
}

}  // namespace
}  // namespace troupe::actors
