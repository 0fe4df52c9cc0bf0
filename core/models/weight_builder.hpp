#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/models/weight_map.hpp"

namespace troupe::core {

/// Collects the tensors of a model. Names are Megatron's without `prefix`, shapes those of whole tensors.
class WeightBuilder {
 public:
  WeightBuilder(WeightMap& map, std::string prefix) : map_(map), prefix_(std::move(prefix)) {}

  /// Tensors added from here on are in this stage.
  void stage(WeightStage stage) { at_.stage = stage; }
  void layer(std::int64_t layer) {
    at_.stage = WeightStage::layer;
    at_.layer = layer;
  }
  void of_expert(std::int64_t expert) { at_.expert = expert; }
  void prefix(std::string prefix) { prefix_ = std::move(prefix); }

  /// A Hugging Face tensor; the same number for the same name.
  std::size_t input(const std::string& name, const Shape& shape) {
    const auto [found, is_new] = inputs_.try_emplace(name, map_.plan.inputs.size());
    if (is_new) map_.plan.inputs.push_back({"", name, shape});
    return found->second;
  }

  /// Rows of an input, and their first row in the output.
  TensorPiece rows(std::size_t input, std::int64_t first, std::int64_t count, std::int64_t to) const {
    auto box = Box::whole(map_.plan.inputs[input].shape);
    Shape place(box.offset.size(), 0);
    box.offset[0] = first;
    box.extent[0] = count;
    place[0] = to;
    return {input, std::move(box), std::move(place)};
  }

  void output(const std::string& name, Shape shape, WeightSplit split, std::vector<TensorPiece> pieces) {
    auto weight = at_;
    weight.pattern = prefix_ + name;
    weight.split = split;
    map_.plan.outputs.push_back(
        {{"", weight.name(at_.layer, at_.expert), std::move(shape)}, std::move(pieces)});
    map_.weights.push_back(std::move(weight));
  }

  /// The same tensor under another name.
  void same(const std::string& name, const std::string& theirs, const Shape& shape,
            WeightSplit split = WeightSplit::copy) {
    const auto source = input(theirs, shape);
    output(name, shape, split, {{source, Box::whole(shape), Shape(shape.size(), 0)}});
  }

 private:
  WeightMap& map_;
  std::string prefix_;
  ModelWeight at_;
  std::map<std::string, std::size_t> inputs_;
};

/// The tower of Qwen2.5-VL; `theirs` is the prefix of its names in Hugging Face.
void add_vision_tower(WeightBuilder& add, const ModelConfig& model, const std::string& theirs);

}  // namespace troupe::core
