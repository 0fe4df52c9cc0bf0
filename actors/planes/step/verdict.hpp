#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/exact_sum.hpp"
#include "core/ids.hpp"
#include "gpu/buffer.hpp"
#include "messages/step.hpp"

namespace troupe::actors {

/// The words of the step's one small reduction, an i64 sum over all ranks: the exact square sum's limbs and
/// its count of NaN and Inf, one word per lane (the loss's bits; only the rank that plays the lane writes it,
/// so the sum carries the bits over), one word per rank (bit 0: it refuses the step; above: its wishes).
std::size_t verdict_words(int lanes, core::WorldSize world);

/// Where the exact square sum stands among the words.
gpu::BufferView squares_of_verdict(gpu::BufferView words);

/// All words but the square sum, which is zero and is added where the gradients are.
void write_verdict(std::span<const messages::LaneLoss> losses, bool refuse, std::uint32_t wishes,
                   core::Rank rank, int lanes, std::span<std::int64_t> words);

/// The same on every rank: nothing but the reduced words goes in.
messages::Verdict read_verdict(std::span<const std::int64_t> words, int lanes, core::WorldSize world);

}  // namespace troupe::actors
