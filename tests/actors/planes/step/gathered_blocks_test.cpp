#include <gtest/gtest.h>

#include <cmath>

#include "core/random.hpp"
#include "tests/actors/planes/step/counting_backend.hpp"
#include "tests/actors/planes/step/planes.hpp"
#include "tests/support/mx_reference.hpp"

namespace troupe::actors {
namespace {

constexpr int kPublishers = 4;
constexpr std::uint32_t kPublishedBuckets = 3;
constexpr std::int64_t kBucketElements = 8 * 1024;  // of each bucket, without padding
constexpr auto kBlockElement = core::DType::f8_e4m3;

TrainingPlan plan_of_buckets(std::optional<core::DType> gathered) {
  core::TrainingOptions options;
  options.strategy = core::Strategy::zero1;
  options.bucket_elements = kBucketElements;
  std::vector<core::ParameterSpec> parameters;
  for (std::uint32_t p = 0; p < kPublishedBuckets; ++p) {
    parameters.push_back({.name = std::to_string(p), .shape = {kBucketElements}, .dtype = core::DType::bf16});
    parameters.back().gather_dtype = gathered;
  }
  return plan_training(std::move(parameters), options, {kPublishers}).value();
}

/// Rounded to blocks, as values are that were stepped.
std::vector<float> bucket_values(std::uint32_t parameter) {
  std::vector<float> values;
  for (std::size_t i = 0; i < kBucketElements; ++i)
    values.push_back(std::ldexp(core::CounterRandom(parameter, "values").normal(i), static_cast<int>(i % 9)));
  return tests::reference_mx(kBlockElement, values).values;
}

/// Each rank has what its optimizer stepped, and NaN in all else.
void write_stepped_parts(Planes& planes) {
  for (std::uint32_t p = 0; p < kPublishedBuckets; ++p) {
    const auto values = bucket_values(p);
    const auto bucket = planes.plan.parameters[{p}].bucket;
    const auto start = planes.plan.parameters[{p}].range.start;
    for (int rank = 0; rank < kPublishers; ++rank) {
      const auto held = planes.plan.held(core::TensorRole::optimizer, bucket, {rank});
      const auto memory = planes[rank].tensors().parameter({p}).as<std::uint16_t>();
      for (std::size_t i = 0; i < memory.size(); ++i) {
        const auto place = start + static_cast<std::int64_t>(i);
        const bool is_own = place >= held.start && place < held.end;
        memory[i] = is_own ? core::float_to_bf16(values[i]) : std::uint16_t{0x7fff};
      }
    }
  }
}

std::int64_t bytes_of_publishing(std::optional<core::DType> gathered, double device_bytes_per_second) {
  bytes_left.clear();
  Planes planes(plan_of_buckets(gathered), counting, {.bytes_per_second = device_bytes_per_second});
  write_stepped_parts(planes);

  planes.publish();

  for (std::uint32_t p = 0; p < kPublishedBuckets; ++p) {
    const auto expected = bucket_values(p);
    for (int rank = 0; rank < kPublishers; ++rank) {
      const auto memory = planes[rank].tensors().parameter({p}).as<std::uint16_t>();
      for (std::size_t i = 0; i < memory.size(); ++i) {
        EXPECT_EQ(core::bf16_to_float(memory[i]), expected[i]) << "rank " << rank << ", element " << i;
        if (testing::Test::HasFailure()) return 0;
      }
    }
  }
  return bytes_left[1];
}

// Covers shard-7.
TEST(GatheredBlocks, TakeThirtyThreeBytesForSixtyFourOfBf16) {
  const auto stored = bytes_of_publishing(std::nullopt, 1e12);
  const auto blocks = bytes_of_publishing(kBlockElement, 1e12);

  EXPECT_EQ(stored, kPublishedBuckets * (kBucketElements / kPublishers) * 2 * (kPublishers - 1));
  EXPECT_EQ(blocks * 64, stored * 33);
}

/// What one gather brought must be unpacked before the next one comes to its place.
TEST(GatheredBlocks, StayUntilASlowDeviceHasUnpackedThem) {
  EXPECT_GT(bytes_of_publishing(kBlockElement, 1e6), 0);
}

}  // namespace
}  // namespace troupe::actors
