#include "gpu/cuda/tree_passes.hpp"

#include <utility>

namespace troupe::gpu {

std::vector<TreePass> passes_of(int slots, std::span<const core::TreeStep> steps, std::size_t most) {
  std::vector<TreePass> passes;
  // By slot: the additions so far that are not in a pass yet.
  std::vector<TreePass> pending;
  for (int slot = 0; slot < slots; ++slot) pending.push_back({{slot}, {}});
  const auto end_pass = [&](TreePass& pass) {
    const int sum = slots + static_cast<int>(passes.size());
    passes.push_back(std::exchange(pass, {{sum}, {}}));
  };
  for (const auto& step : steps) {
    TreePass& left = pending[static_cast<std::size_t>(step.destination)];
    TreePass right = std::exchange(pending[static_cast<std::size_t>(step.source)], {});
    while (left.slots.size() + right.slots.size() > most)
      end_pass(left.slots.size() < right.slots.size() ? right : left);
    const int offset = static_cast<int>(left.slots.size());
    left.slots.insert(left.slots.end(), right.slots.begin(), right.slots.end());
    for (const auto& [destination, source] : right.steps)
      left.steps.push_back({destination + offset, source + offset});
    left.steps.push_back({0, offset});
  }
  passes.push_back(std::move(pending[0]));
  return passes;
}

}  // namespace troupe::gpu
