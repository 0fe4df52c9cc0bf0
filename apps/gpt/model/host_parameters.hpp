#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "apps/gpt/model/pass.hpp"
#include "core/errors.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// Parameters in host memory, as floats.
class HostParameters {
 public:
  using Bytes = std::span<const std::byte* const>;

  /// Valid until the next call.
  std::span<const float* const> floats(Bytes parameters) {
    values_.clear();
    for (const std::byte* parameter : parameters)
      values_.push_back(reinterpret_cast<const float*>(parameter));
    return values_;
  }

  /// The same hooks; a hook that moves parameters moves them here too. Both must outlive the result.
  StepHooks following(Bytes parameters, const StepHooks& hooks) {
    StepHooks own = hooks;
    if (!hooks.before_use) return own;
    own.before_use = [this, parameters, &hooks](std::size_t parameter) -> core::Result<void> {
      TRY(hooks.before_use(parameter));
      values_[parameter] = reinterpret_cast<const float*>(parameters[parameter]);
      return {};
    };
    return own;
  }

 private:
  std::vector<const float*> values_;
};

}  // namespace troupe::apps::gpt
