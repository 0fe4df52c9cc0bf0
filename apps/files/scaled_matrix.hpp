#pragma once

#include <span>
#include <string>

#include "apps/files/source.hpp"
#include "core/boxes/box.hpp"
#include "core/models/block_scales.hpp"
#include "core/result.hpp"

namespace troupe::apps {

// Matrices in fp8 that have a factor for each block in another tensor (core/models/block_scales.hpp).

/// The name of the factors of `matrix`. Errc::mismatch for a tensor that is not a matrix, and for factors
/// that are missing or of another shape.
core::Result<std::string> factors_of(const Source& source, const core::ScaledBlocks& blocks,
                                     const core::ManifestTensor& matrix);

/// Multiplies `values`, the box `part` of such a matrix, by the factors, which are read.
core::Result<void> multiply_by_factors_of(const Source& source, const core::ScaledBlocks& blocks,
                                          const core::ManifestTensor& matrix, const core::Box& part,
                                          std::span<float> values);

}  // namespace troupe::apps
