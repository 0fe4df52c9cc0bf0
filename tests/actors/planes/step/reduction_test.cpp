#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/dtype.hpp"
#include "core/random.hpp"
#include "tests/actors/planes/step/planes.hpp"

namespace troupe::actors {
namespace {

constexpr std::int64_t kElements = 1024;

TrainingPlan narrow_job(int ranks, core::Strategy strategy, bool average) {
  core::TrainingOptions options;
  options.strategy = strategy;
  options.numerics = core::Numerics::fast;
  options.gradients_in_parameter_dtype = true;
  options.average = average;
  return plan_training({{"w", {kElements}, core::DType::bf16}}, options, {ranks}).value();
}

float narrow(float value) {
  return core::bf16_to_float(core::float_to_bf16(value));
}

float gradient_of(int rank, std::size_t element) {
  return narrow(core::CounterRandom(5, "gradient", {0}, {rank}).uniform(element));
}

/// Low precision on the wire, one rounding of the sum.
// Covers reduce-2.
TEST(NarrowGradients, AreSummedInFp32AndRoundedOnce) {
  for (int ranks : {3, 4, 8}) {
    for (auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
      Planes planes(narrow_job(ranks, strategy, false));
      for (int rank = 0; rank < ranks; ++rank) {
        auto gradient = planes[rank].tensors().gradient({0}, {rank}).as<std::uint16_t>();
        for (std::size_t i = 0; i < gradient.size(); ++i)
          gradient[i] = core::float_to_bf16(gradient_of(rank, i));
      }

      planes.reduce();

      int differ_from_chain = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        auto shard = core::even_part({0, kElements}, ranks, rank);
        if (strategy == core::Strategy::ddp) shard = {0, kElements};
        if (strategy == core::Strategy::zero1)
          shard = planes.plan.held(core::TensorRole::optimizer, {0}, {rank});
        auto found = planes[rank].tensors().reduced_gradient({0}).memory.as<std::uint16_t>();
        for (auto i = shard.start; i < std::min(shard.end, kElements); ++i) {
          const auto element = static_cast<std::size_t>(i);
          float exact = 0;
          float chain = 0;
          for (int peer = 0; peer < ranks; ++peer) {
            exact += gradient_of(peer, element);
            chain = narrow(chain + gradient_of(peer, element));
          }
          ASSERT_EQ(core::bf16_to_float(found[element]), narrow(exact));
          differ_from_chain += chain != narrow(exact) ? 1 : 0;
        }
      }
      EXPECT_GT(differ_from_chain, 100) << "otherwise this test could not tell";
    }
  }
}

// Covers reduce-3.
TEST(NarrowGradients, PrescaledByPowersOfTwoScaleTheSumExactly) {
  for (int ranks : {2, 4, 8}) {
    Planes planes(narrow_job(ranks, core::Strategy::ddp, true));
    for (int rank = 0; rank < ranks; ++rank) {
      auto gradient = planes[rank].tensors().gradient({0}, {rank}).as<std::uint16_t>();
      for (std::size_t i = 0; i < gradient.size(); ++i)
        gradient[i] = core::float_to_bf16(gradient_of(rank, i));
    }

    planes.reduce();

    for (std::size_t i = 0; i < kElements; ++i) {
      float sum = 0;
      for (int rank = 0; rank < ranks; ++rank) sum += gradient_of(rank, i);
      auto found = planes[0].tensors().reduced_gradient({0}).memory.as<std::uint16_t>()[i];
      ASSERT_EQ(core::bf16_to_float(found), narrow(sum / static_cast<float>(ranks)));
    }
  }
}

/// grad_sync of Megatron-Core's matrix: ones become one where the gradient is reduced.
// Covers buffer-3.
TEST(GradientSync, SumsOnlyAtTheOwner) {
  core::TrainingOptions options;
  options.numerics = core::Numerics::fast;
  for (auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
    options.strategy = strategy;
    Planes planes(plan_training({{"w", {kElements}}}, options, {4}).value());
    for (int rank = 0; rank < 4; ++rank) {
      std::ranges::fill(planes[rank].tensors().gradient({0}, {rank}).as<float>(), 1.0F);
    }

    planes.reduce();

    for (int rank = 0; rank < 4; ++rank) {
      bool owns = strategy == core::Strategy::ddp || rank == 0;
      EXPECT_EQ(planes[rank].tensors().reduced_gradient({0}).memory.as<float>()[0], owns ? 1.0F : 0.25F)
          << rank;
    }
    EXPECT_EQ(planes.said.size(), 4u) << "each Conductor hears once that it is done";
  }
}

/// What other buckets bring waits for its place until slow sums have read what came there before.
TEST(OrderedGradients, AreSummedAsTheyCameHoweverLongSumsTake) {
  constexpr std::uint32_t kBucketCount = 6;
  core::TrainingOptions options;
  options.strategy = core::Strategy::zero1;
  options.average = false;
  options.bucket_elements = kElements;
  std::vector<core::ParameterSpec> parameters;
  for (std::uint32_t p = 0; p < kBucketCount; ++p) parameters.push_back({fmt::format("w{}", p), {kElements}});
  const auto gradient_at = [](int rank, std::uint32_t parameter, std::int64_t element) {
    return gradient_of(rank, static_cast<std::size_t>(kElements * parameter + element));
  };
  Planes planes(plan_training(parameters, options, {4}).value(), nullptr, {.bytes_per_second = 1e6});
  ASSERT_EQ(planes.plan.buckets.size(), kBucketCount);
  for (int rank = 0; rank < 4; ++rank) {
    for (std::uint32_t p = 0; p < kBucketCount; ++p) {
      const auto gradient = planes[rank].tensors().gradient({p}, {rank}).as<float>();
      for (std::int64_t i = 0; i < kElements; ++i)
        gradient[static_cast<std::size_t>(i)] = gradient_at(rank, p, i);
    }
  }

  planes.reduce();

  std::int64_t seen = 0;
  for (int rank = 0; rank < 4; ++rank) {
    for (std::uint32_t p = 0; p < kBucketCount; ++p) {
      const auto& whole = planes.plan.parameters[{p}].range;
      const auto held =
          planes.plan.held(core::TensorRole::optimizer, planes.plan.parameters[{p}].bucket, {rank});
      const auto found = planes[rank].tensors().reduced_gradient({p}).memory.as<float>();
      for (auto at = held.start; at < std::min(held.end, whole.end); ++at, ++seen) {
        const auto i = at - whole.start;
        const float sum =
            (gradient_at(0, p, i) + gradient_at(1, p, i)) + (gradient_at(2, p, i) + gradient_at(3, p, i));
        ASSERT_EQ(found[static_cast<std::size_t>(i)], sum) << "rank " << rank << ", " << p << ", " << i;
      }
    }
  }
  EXPECT_EQ(seen, kBucketCount * kElements);
}

// Covers buffer-4.
TEST(GradientSync, NothingMovesBeforeItIsLaunched) {
  Planes planes(plan_training({{"w", {kElements}}}, {}, {2}).value());
  std::ranges::fill(planes[0].tensors().gradient({0}, {0}).as<float>(), 1.0F);

  planes[0].perform(PrepareBucket{{0}, {0}, {0}, true});

  EXPECT_EQ(planes[0].tensors().reduced_gradient({0}).memory.as<float>()[0], 1.0F);
  EXPECT_TRUE(planes.said.empty());
}

}  // namespace
}  // namespace troupe::actors
