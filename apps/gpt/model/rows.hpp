#pragma once

#include <cstddef>

#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/model/group.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// N rows of a pass, C width.

/// What a rank's layers have besides its part of them, if a group shares each layer. With sequence
/// parallelism each member also keeps only its own rows of the residual stream, and norms those: a
/// consecutive part of all N rows.
template <class T>
struct TensorParallel {
  TensorGroup<T>* group;
  bool sequence;
  T* gathered;  ///< (N, C), with sequence parallelism only
  T* partial;   ///< (N, C): this rank's contribution to a sum
  T* own;       ///< (the most rows of a member, C), with sequence parallelism only
  T* again;     ///< (N, C): besides `gathered`, with sequence parallelism and experts only
};

/// A rank's rows of the residual stream; all without a group (null), or without sequence parallelism.
template <class T>
std::size_t own_rows(const TensorParallel<T>* tensor, std::size_t rows);
/// The most rows that a member of a group of this size keeps.
std::size_t most_own_rows(std::size_t rows, std::size_t size);

/// (N, C) of all members, from each member's own rows. Valid until the next call.
template <class T>
core::Result<const T*> all_rows(const TensorParallel<T>* tensor, std::size_t rows, std::size_t width,
                                const T* own);

/// This rank's own rows of the sum of all members' `partial` (N, C), which is overwritten. Valid until the
/// next call, or as long as `partial`.
template <class T>
core::Result<const T*> summed_rows(const TensorParallel<T>* tensor, std::size_t rows, std::size_t width,
                                   T* partial);

/// What only sequence parallelism needs for layers of this configuration, between this many members; the
/// caller sets the group and `partial`.
template <class T>
TensorParallel<T> carve_tensor(Carver<T>& carver, std::size_t members, bool sequence, std::size_t rows,
                               const ModelConfig& config);

}  // namespace troupe::apps::gpt
