#include "core/options/options.hpp"

#include <functional>
#include <numeric>

#include "core/enum_names.hpp"
#include "core/errors.hpp"

namespace troupe::core {

std::int64_t ParameterSpec::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

Result<std::vector<ShardedTensor>> ParameterSpec::stored_parts() const {
  auto whole = TRY(ShardedTensor::from_rank_offsets(name, dtype, shape));
  whole.allow_shape_mismatch = allow_shape_mismatch;
  if (!global_shape.empty()) {
    whole.global_shape = global_shape;
    whole.global_offset = offset;
    whole.axis_fragmentations.reset();
    TRY(whole.check());
  }
  return stacked_parts(whole, stacking);
}

std::string_view name_of(LoadMode mode) noexcept {
  static constexpr auto kNames = enum_names<LoadMode>("automatic", "read", "exchange");
  return kNames[mode];
}

Result<void> LoadOptions::check() const {
  if (staging_bytes >= kLeastStagingBytes) return {};
  return fail(Errc::invalid_argument,
              "{} bytes are too few for what a restore stages on its way to a device; give at least {}",
              staging_bytes, kLeastStagingBytes);
}

std::string LoadOptions::configuration() const {
  return fmt::format("loads {} costs={:g},{:g},{:g} exchange_bytes={}", name_of(mode),
                     costs.rank_bytes_per_second, costs.storage_bytes_per_second,
                     costs.exchange_bytes_per_second, exchange_bytes);
}

}  // namespace troupe::core
