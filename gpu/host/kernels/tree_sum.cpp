#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "gpu/host/kernels/arithmetic.hpp"
#include "gpu/host/kernels/blocks.hpp"
#include "gpu/kernel_checks.hpp"
#include "gpu/kernels.hpp"
#include "gpu/slots.hpp"

namespace troupe::gpu {
namespace {

/// One block of every slot: as stored in the slot, or a partial sum of the steps so far.
class BlockOfSlots {
 public:
  explicit BlockOfSlots(const TreeSum& sum)
      : steps_(sum.steps),
        slots_(sum.slots),
        slot_elements_(sum.output.count()),
        partial_(sum.slots.size()),
        row_elements_(std::min(kBlockElements, sum.output.count())),
        own_(std::make_unique_for_overwrite<float[]>(sum.slots.size() * row_elements_)) {
    readers_.reserve(sum.slots.runs().size());
    for (const auto& run : sum.slots.runs()) readers_.emplace_back(run.all);
  }

  /// Runs the steps and stores slot 0, multiplied by `factor`, in `target`.
  void run(std::size_t first, std::size_t length, float factor, float* target) {
    std::fill(partial_.begin(), partial_.end(), nullptr);
    // The last step of a tree produces its root, which need not be stored before it is multiplied.
    const bool ends_in_root = !steps_.empty() && steps_.back().destination == 0;
    for (const auto step : ends_in_root ? steps_.first(steps_.size() - 1) : steps_) {
      const auto destination = static_cast<std::size_t>(step.destination);
      const auto source = static_cast<std::size_t>(step.source);
      const Stored left = stored(destination), right = stored(source);
      if (partial_[destination] == nullptr && partial_[source] == nullptr &&
          left.reader.has_dtype_of(right.reader)) {
        left.reader.add(left.first + first, right.reader, right.first + first, length, own(destination));
      } else {
        add(value(destination, first, length), value(source, first, length), own(destination), length);
      }
      partial_[destination] = own(destination);
    }
    const float* root = value(0, first, length);
    if (!ends_in_root) return multiply(root, factor, target, length);
    const auto source = static_cast<std::size_t>(steps_.back().source);
    add_and_multiply(root, value(source, first, length), factor, target, length);
  }

 private:
  /// A slot as one of those of its run, which have one reader.
  struct Stored {
    const Reader& reader;
    std::size_t first;  ///< element of the run
  };
  Stored stored(std::size_t slot) const {
    const auto& run = slots_.run_of(slot);
    const auto number = static_cast<std::size_t>(&run - slots_.runs().data());
    return {readers_[number], (slot - run.first) * slot_elements_};
  }

  float* own(std::size_t slot) { return own_.get() + slot * row_elements_; }

  const float* value(std::size_t slot, std::size_t first, std::size_t length) {
    if (partial_[slot] != nullptr) return partial_[slot];
    const Stored found = stored(slot);
    return partial_[slot] = found.reader.read(found.first + first, length, own(slot));
  }

  std::span<const core::TreeStep> steps_;
  const Slots& slots_;
  std::size_t slot_elements_;
  std::vector<Reader> readers_;  ///< one for each run
  std::vector<const float*> partial_;
  std::size_t row_elements_;
  std::unique_ptr<float[]> own_;  ///< a row for each slot, so that short sums of many slots stay small
};

}  // namespace

void tree_sum(const TreeSum& sum) {
  check_tree_sum(sum);
  BlockOfSlots slots(sum);
  const Writer writer(sum.output);
  Block block;
  for_each_block(sum.output.count(), [&](std::size_t first, std::size_t length) {
    float* target = writer.target(first, block.data());
    slots.run(first, length, sum.factor, target);
    writer.commit(first, length, target);
  });
}

}  // namespace troupe::gpu
