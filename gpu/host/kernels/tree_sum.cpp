#include <algorithm>
#include <span>
#include <vector>

#include "core/check.hpp"
#include "gpu/host/kernels/arithmetic.hpp"
#include "gpu/host/kernels/blocks.hpp"
#include "gpu/kernels.hpp"

namespace troupe::gpu {
namespace {

void check_arguments(const TreeSum& sum) {
  const auto slots = static_cast<int>(sum.slots.size());
  CHECK(slots > 0, "a tree sum has at least one slot");
  for (const ConstBufferView slot : sum.slots) {
    CHECK(ConstElements(slot, sum.dtype).count() == sum.output.count(),
          "every slot of a tree sum has as many elements as the output");
  }
  for (const auto [destination, source] : sum.steps) {
    CHECK(destination >= 0 && destination < slots && source >= 0 && source < slots && destination != source,
          "a step of a tree sum joins two of its slots");
  }
}

/// One block of every slot: where it lies now, and where it may be written.
class BlockOfSlots {
 public:
  explicit BlockOfSlots(const TreeSum& sum)
      : steps_(sum.steps), current_(sum.slots.size()), own_(sum.slots.size() * kBlockElements) {
    for (const ConstBufferView slot : sum.slots) readers_.emplace_back(ConstElements(slot, sum.dtype));
  }

  /// Runs the steps and returns the block of slot 0.
  const float* run(std::size_t first, std::size_t length) {
    for (std::size_t slot = 0; slot < readers_.size(); ++slot) {
      current_[slot] = readers_[slot].read(first, length, own(slot));
    }
    for (const auto step : steps_) {
      const auto destination = static_cast<std::size_t>(step.destination);
      const float* before = current_[destination];
      const float* more = current_[static_cast<std::size_t>(step.source)];
      float* target = own(destination);
      add(before, more, target, length);
      current_[destination] = target;
    }
    return current_[0];
  }

 private:
  float* own(std::size_t slot) { return own_.data() + slot * kBlockElements; }

  std::span<const core::TreeStep> steps_;
  std::vector<Reader> readers_;
  std::vector<const float*> current_;
  std::vector<float> own_;
};

}  // namespace

void tree_sum(const TreeSum& sum) {
  check_arguments(sum);
  BlockOfSlots slots(sum);
  const Writer writer(sum.output);
  Block block;
  for_each_block(sum.output.count(), [&](std::size_t first, std::size_t length) {
    const float* root = slots.run(first, length);
    float* target = writer.target(first, block.data());
    multiply(root, sum.factor, target, length);
    writer.commit(first, length, target);
  });
}

}  // namespace troupe::gpu
