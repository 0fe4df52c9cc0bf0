#pragma once

#include <variant>
#include <vector>

#include "actors/roles/machine.hpp"

namespace troupe::actors {

/// The works of type Kind for the checkpoint plane among the effects.
template <class Kind>
std::vector<Kind> asked(const std::vector<Effect>& effects) {
  std::vector<Kind> found;
  for (const auto& effect : effects) {
    const auto* perform = std::get_if<Perform>(&effect);
    const auto* work = perform != nullptr ? std::get_if<CheckpointWork>(&perform->work) : nullptr;
    if (work != nullptr && std::holds_alternative<Kind>(*work)) found.push_back(std::get<Kind>(*work));
  }
  return found;
}

/// Appends, for what several messages bring about.
inline void operator+=(std::vector<Effect>& all, std::vector<Effect> more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace troupe::actors
