#include "apps/gpt/model/weight_work.hpp"

namespace troupe::apps::gpt {

core::Result<void> check_split(bool is_split, Keep keep) {
  if (!is_split || keep != Keep::inputs) return {};
  return core::fail(core::Errc::unavailable,
                    "the weights' half of a backward reads activations that --recompute does not keep; leave "
                    "out --recompute, or use --pipeline-schedule 1f1b");
}

}  // namespace troupe::apps::gpt
