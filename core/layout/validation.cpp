#include "core/layout/validation.hpp"

#include "core/errors.hpp"

namespace troupe::core {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 50;
constexpr int kMostShards = 1 << 20;

}  // namespace

Result<void> validate(const std::vector<LayoutParameter>& parameters, const LayoutOptions& options) {
  if (options.shards < 1 || options.shards > kMostShards) {
    return fail(Errc::invalid_argument, "a buffer is sharded over 1 to {} ranks, not over {}", kMostShards,
                options.shards);
  }
  if (options.part_multiple < 1 || options.part_multiple > kMostShards) {
    return fail(Errc::invalid_argument, "shards are multiples of 1 to {} elements, not of {}", kMostShards,
                options.part_multiple);
  }
  if (options.bucket_size && (*options.bucket_size < 1 || *options.bucket_size > kMostElements)) {
    return fail(Errc::invalid_argument,
                "a bucket size is 1 to {} elements, not {}; leave it out to have one bucket", kMostElements,
                *options.bucket_size);
  }
  std::int64_t total = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const LayoutParameter& parameter = parameters[i];
    if (parameter.elements < 0 || parameter.elements > kMostElements - total) {
      return fail(Errc::invalid_argument,
                  "parameter {} has {} elements; sizes are at least 0, and {} together at most", i,
                  parameter.elements, kMostElements);
    }
    total += parameter.elements;
    const bool is_matrix = parameter.rows > 0 && parameter.columns > 0;
    if (is_matrix && (parameter.elements % parameter.rows != 0 ||
                      parameter.elements / parameter.rows != parameter.columns)) {
      return fail(Errc::invalid_argument, "parameter {} has {} elements, which are not {} rows of {}", i,
                  parameter.elements, parameter.rows, parameter.columns);
    }
    if (parameter.row_shards < 1 || parameter.row_shards > kMostShards) {
      return fail(Errc::invalid_argument, "the rows of parameter {} are cut into 1 to {} parts, not {}", i,
                  kMostShards, parameter.row_shards);
    }
  }
  return {};
}

}  // namespace troupe::core
