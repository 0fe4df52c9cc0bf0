#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/exact_sum.hpp"
#include "core/ids.hpp"
#include "gpu/buffer.hpp"
#include "messages/step.hpp"

namespace troupe::actors {

/// The number of words in the step's one small reduction, an i64 sum over all ranks, the same for any job:
/// the exact square sum's limbs and its count of NaN and Inf; the exact sum of the losses; how many ranks
/// refuse the step; whether a number is the same on all ranks; how many ranks have each wish; the exact sum
/// of the lanes' weights, and how many lanes have one. A job's program has more words where there are layers
/// of experts (TrainingOptions::experts): their counts follow these.
std::size_t verdict_words();

/// Where the exact square sum is among the words.
gpu::BufferView squares_of_verdict(gpu::BufferView words);

/// Writes all words but the square sum, which is zero and is added where the gradients are. `losses` are
/// those of the lanes that this rank plays; `alike` must be the same on all ranks.
void write_verdict(std::span<const messages::LaneLoss> losses, bool refuse, std::uint32_t wishes,
                   std::uint64_t alike, std::span<std::int64_t> words);

/// How a job averages, by its options.
struct Averaging {
  int lanes = 1, microbatches = 1;
  bool average = true;
  double loss_divisor = 1;
};

/// The same on every rank: it depends only on the reduced words. Gradients have been divided by lanes and
/// microbatches, if the job averages; where lanes have weights, `gradient_factor` makes this a division by
/// their sum. It is exactly 1 if that sum is the number of lanes times microbatches times `loss_divisor`.
messages::Verdict read_verdict(std::span<const std::int64_t> words, const Averaging& averaging);

}  // namespace troupe::actors
