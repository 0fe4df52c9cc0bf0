#include "apps/files/scaled_matrix.hpp"

#include <vector>

#include "actors/planes/checkpoint/reader.hpp"
#include "core/check.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

using core::Errc;
using core::Result;

Result<std::string> factors_of(const Source& source, const core::ScaledBlocks& blocks,
                               const core::ManifestTensor& matrix) {
  auto name = matrix.key + std::string(core::kFactorsSuffix);
  if (matrix.shape.size() != 2)
    return core::fail(Errc::mismatch, "tensor '{}' of shape {} is in fp8; expected a matrix", matrix.key,
                      core::to_string(matrix.shape));
  const auto* factors = source.manifest.find(name);
  const auto shape = core::factors_shape(blocks, matrix.shape);
  if (factors == nullptr)
    return core::fail(Errc::mismatch, "tensor '{}' is in fp8, and no file has its factors '{}' of shape {}",
                      matrix.key, name, core::to_string(shape));
  if (factors->shape != shape || !core::is_floating(factors->dtype))
    return core::fail(Errc::mismatch, "tensor '{}' is {} of shape {}, by the blocks of '{}' it has shape {}",
                      name, core::name_of(factors->dtype), core::to_string(factors->shape), matrix.key,
                      core::to_string(shape));
  return name;
}

Result<void> multiply_by_factors_of(const Source& source, const core::ScaledBlocks& blocks,
                                    const core::ManifestTensor& matrix, const core::Box& part,
                                    std::span<float> values) {
  const auto* stored = source.manifest.find(matrix.key + std::string(core::kFactorsSuffix));
  CHECK(stored != nullptr, "a matrix in fp8 was opened with its factors");
  std::vector<float> factors(static_cast<std::size_t>(core::elements_of(stored->shape)));
  const std::vector<core::LoadTarget> target{
      {stored->key, core::DType::f32, stored->shape, core::Box::whole(stored->shape), false}};
  const std::vector<std::span<std::byte>> place{std::as_writable_bytes(std::span(factors))};
  actors::ReadOptions options;
  options.verify = false;
  TRY(actors::read_tensors(*source.storage, "", source.manifest, target, place, options));
  core::multiply_by_factors(blocks, matrix.shape, part, factors, values);
  return {};
}

}  // namespace troupe::apps
