#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "apps/command_line/json_text.hpp"
#include "apps/files/text.hpp"
#include "apps/troupe/checkpoint/diff.hpp"

namespace troupe::apps {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostColumns = 60;

void append_tensor(const TensorDifference& tensor, std::string& text) {
  auto out = std::back_inserter(text);
  fmt::format_to(out, "{}\n", printable(tensor.key));
  if (tensor.left_dtype != tensor.right_dtype)
    fmt::format_to(out, "    dtype {} / {}\n", name_of(tensor.left_dtype), name_of(tensor.right_dtype));
  if (tensor.left_shape != tensor.right_shape)
    fmt::format_to(out, "    shape {} / {}\n", core::to_string(tensor.left_shape),
                   core::to_string(tensor.right_shape));
  if (!tensor.values) return;
  const auto& values = *tensor.values;
  if (values.differing == 0) {
    text += "    the same values\n";
    return;
  }
  fmt::format_to(out, "    {} of {} elements ({} bits), at most {:.6g} apart; first at {}: {:.9g} / {:.9g}\n",
                 values.differing, values.elements, values.bits, values.max_difference,
                 core::to_string(values.first), values.left, values.right);
}

/// JSON has no NaN and no infinity.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value));
}

Json tensor_json(const TensorDifference& tensor) {
  Json json{{"key", tensor.key},
            {"dtype", {name_of(tensor.left_dtype), name_of(tensor.right_dtype)}},
            {"shape", {tensor.left_shape, tensor.right_shape}}};
  json["values"] = nullptr;
  if (!tensor.values) return json;
  const auto& values = *tensor.values;
  json["values"] = {{"elements", values.elements},
                    {"differing", values.differing},
                    {"bits", values.bits},
                    {"max_difference", number(values.max_difference)}};
  if (values.differing > 0) {
    json["values"]["first"] = values.first;
    json["values"]["left"] = number(values.left);
    json["values"]["right"] = number(values.right);
  }
  return json;
}

}  // namespace

std::string difference_text(const CheckpointDifference& difference) {
  std::string text;
  auto out = std::back_inserter(text);
  for (const auto& key : difference.only_left) fmt::format_to(out, "only in A: {}\n", printable(key));
  for (const auto& key : difference.only_right) fmt::format_to(out, "only in B: {}\n", printable(key));
  for (const auto& tensor : difference.tensors) append_tensor(tensor, text);
  for (const auto& value : difference.values) {
    auto shown = [](const std::string& side) {
      return side.empty() ? "(nothing)" : shortened(side, kMostColumns);
    };
    fmt::format_to(out, "value {}: {} / {}\n", printable(value.path), shown(value.left), shown(value.right));
  }
  const auto equal = difference.common_tensors - difference.tensors.size();
  fmt::format_to(out, "{}: {} tensors are the same, {} differ, {} only in A, {} only in B; {}\n",
                 difference.is_equal() ? "equal" : "different", equal, difference.tensors.size(),
                 difference.only_left.size(), difference.only_right.size(),
                 !difference.compared_values ? "one side has no values to compare"
                 : difference.values.empty() ? "the values are the same"
                                             : fmt::format("{} values differ", difference.values.size()));
  return text;
}

std::string difference_json(const CheckpointDifference& difference) {
  Json json{{"equal", difference.is_equal()},
            {"tensors_in_both", difference.common_tensors},
            {"bytes", difference.bytes},
            {"only_in_a", difference.only_left},
            {"only_in_b", difference.only_right}};
  json["tensors"] = Json::array();
  for (const auto& tensor : difference.tensors) json["tensors"].push_back(tensor_json(tensor));
  json["compared_values"] = difference.compared_values;
  json["values"] = Json::array();
  for (const auto& value : difference.values)
    json["values"].push_back({{"path", value.path}, {"a", value.left}, {"b", value.right}});
  return json_text(json);
}

}  // namespace troupe::apps
