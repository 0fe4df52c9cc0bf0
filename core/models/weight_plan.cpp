#include "core/models/weight_plan.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

/// `place` moved as its box moves from `before` to `after`.
Shape moved(const Shape& place, const Shape& before, const Shape& after) {
  Shape result = place;
  for (std::size_t axis = 0; axis < place.size(); ++axis) result[axis] += after[axis] - before[axis];
  return result;
}

}  // namespace

Result<WeightPlan> compose(const WeightPlan& first, const WeightPlan& second) {
  std::map<std::string_view, const WeightPlan::Output*> middle;
  for (const auto& output : first.outputs) middle.emplace(output.tensor.name, &output);
  std::vector<const WeightPlan::Output*> joints;
  for (const auto& input : second.inputs) {
    const auto found = middle.find(input.name);
    if (found == middle.end()) return fail(Errc::mismatch, "nothing makes the tensor '{}'", input.name);
    const auto& shape = found->second->tensor.shape;
    if (shape != input.shape)
      return fail(Errc::mismatch, "tensor '{}' has the shape {}, expected {}", input.name, to_string(shape),
                  to_string(input.shape));
    joints.push_back(found->second);
  }
  WeightPlan plan;
  plan.inputs = first.inputs;
  plan.outputs.reserve(second.outputs.size());
  for (const auto& output : second.outputs) {
    auto& made = plan.outputs.emplace_back();
    made.tensor = output.tensor;
    for (const auto& piece : output.pieces) {
      for (const auto& inner : joints[piece.input]->pieces) {
        const auto common = intersection(piece.from, inner.target());
        if (!common) continue;
        made.pieces.push_back({inner.input,
                               {moved(inner.from.offset, inner.to, common->offset), common->extent},
                               moved(piece.to, piece.from.offset, common->offset)});
      }
    }
  }
  return plan;
}

WeightPlan invert(const WeightPlan& plan) {
  WeightPlan back;
  for (const auto& input : plan.inputs) back.outputs.push_back({input, {}});
  std::vector<std::set<Box>> known(plan.inputs.size());
  for (const auto& output : plan.outputs) {
    back.inputs.push_back(output.tensor);
    for (const auto& piece : output.pieces) {
      if (!known[piece.input].insert(piece.from).second) continue;
      back.outputs[piece.input].pieces.push_back({back.inputs.size() - 1, piece.target(), piece.from.offset});
    }
  }
  return back;
}

}  // namespace troupe::core
