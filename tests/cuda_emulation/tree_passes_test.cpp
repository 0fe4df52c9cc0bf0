#include "gpu/cuda/tree_passes.hpp"

#include <gtest/gtest.h>

#include <string>

namespace troupe::gpu {
namespace {

/// "((0+1)+2)": which additions the steps make, in which order.
std::string text_of(std::vector<std::string> slots, std::span<const core::TreeStep> steps) {
  for (const auto& [destination, source] : steps) {
    auto& left = slots[static_cast<std::size_t>(destination)];
    left = "(" + left + "+" + slots[static_cast<std::size_t>(source)] + ")";
  }
  return slots[0];
}

std::vector<std::string> names(int slots) {
  std::vector<std::string> found;
  for (int slot = 0; slot < slots; ++slot) found.push_back(std::to_string(slot));
  return found;
}

/// What the passes make; each has at most `most` slots.
std::string text_of_passes(int slots, std::span<const core::TreeStep> steps, std::size_t most) {
  auto sums = names(slots);
  for (const TreePass& pass : passes_of(slots, steps, most)) {
    EXPECT_LE(pass.slots.size(), most);
    std::vector<std::string> taken;
    for (const int slot : pass.slots) taken.push_back(sums.at(static_cast<std::size_t>(slot)));
    sums.push_back(text_of(taken, pass.steps));
  }
  return sums.back();
}

TEST(TreePasses, MakeTheTreesAdditionsForAnyNumberOfSlots) {
  for (int slots = 1; slots <= 40; ++slots) {
    const auto steps = core::finishing_program(core::split_lanes(slots, {slots}).value());
    for (const std::size_t most : {2U, 3U, 4U, 7U, 16U})
      EXPECT_EQ(text_of_passes(slots, steps, most), text_of(names(slots), steps)) << slots << " by " << most;
  }
}

TEST(TreePasses, MakeTheAdditionsOfAChain) {
  const std::vector<core::TreeStep> steps = {{0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 5}, {0, 6}};

  for (const std::size_t most : {2U, 3U, 4U, 7U})
    EXPECT_EQ(text_of_passes(7, steps, most), text_of(names(7), steps)) << most;
}

TEST(TreePasses, AreOneForEach128SlotsAtMost) {
  const auto passes_for = [](int slots) {
    return passes_of(slots, core::finishing_program(core::split_lanes(slots, {slots}).value()), 256).size();
  };

  EXPECT_EQ(passes_for(256), 1U);
  EXPECT_EQ(passes_for(257), 2U);
  EXPECT_EQ(passes_for(512), 3U);
  EXPECT_LE(passes_for(4096), 33U);
}

}  // namespace
}  // namespace troupe::gpu
