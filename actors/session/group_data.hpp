#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "actors/session/trainer_group.hpp"
#include "core/models/tensor_dict.hpp"
#include "core/models/vocab_parallel.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"
#include "gpu/device.hpp"
#include "gpu/stream.hpp"

namespace troupe::actors {

/// What trainers exchange among the members of a group besides gradients: dictionaries of tensors and of
/// values, and sums over a vocabulary or a batch that the group shares. All of it is in host memory, and goes
/// through the device's if collectives need that. Every call blocks; all members make the same calls. What
/// members disagree about is the same Error on all of them, and the group stays usable.
class GroupData {
 public:
  /// `compute` is the session's compute stream if the trainer has requested it; otherwise null. All must
  /// outlive this.
  GroupData(TrainerGroup& group, gpu::Device& device, gpu::StreamView compute = nullptr)
      : group_(group), device_(device), compute_(compute) {}

  /// What each member gave, in group order, of any length: lengths are sent first.
  core::Result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte> bytes);
  /// Like core::gather().
  core::Result<core::TensorDict> all_gather(const core::TensorDict& own);
  /// Like core::gather_values().
  core::Result<core::Value::Map> all_gather(const core::Value::Map& own, core::MissingNames missing);

  /// For logits whose columns the group shares.
  struct VocabResults {
    std::vector<float> max;  ///< by row, over the whole vocabulary, in the form that the gradients need
    core::VocabSums sums;    ///< as above
    std::vector<float> entropy;
    std::vector<float> log_probabilities;  ///< of the targets; empty without targets
  };
  /// Two reductions for all rows: MAX in f32, then SUM in f64. The logits are not changed. Gradients need no
  /// other member: core::vocab_entropy_gradient(). Errc::invalid_argument as from LogitsShard::check(), and
  /// unless there is one target per row.
  core::Result<VocabResults> vocab(const core::LogitsShard& logits, std::span<const std::int64_t> targets);

  struct Moments {
    double mean = 0;
    double variance = 0;
  };
  /// Mean and variance of the elements whose mask is not 0, on all members; added in group order, so all get
  /// the same bits.
  core::Result<Moments> masked_moments(std::span<const float> x, std::span<const float> mask, bool unbiased);

 private:
  core::Result<core::MaskedSum> sum(const core::MaskedSum& own);
  /// `counts` are bytes.
  core::Result<std::vector<std::byte>> gather(std::span<const std::byte> own, TrainerGroup::Counts counts);
  core::Result<void> reduce(std::span<std::byte> values, core::DType dtype,
                            TrainerGroup::Reduction reduction);
  /// Memory of `length` bytes that collectives can access, which begins with `bytes`.
  struct Carried;
  core::Result<Carried> carry(std::span<const std::byte> bytes, std::size_t length);
  core::Result<void> fetch(const Carried& carried, std::span<std::byte> bytes);

  TrainerGroup& group_;
  gpu::Device& device_;
  gpu::StreamView compute_;
};

}  // namespace troupe::actors
