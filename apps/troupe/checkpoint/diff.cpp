#include "apps/troupe/checkpoint/diff.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "apps/files/meter.hpp"
#include "apps/files/text.hpp"
#include "core/convert.hpp"
#include "core/element_range.hpp"
#include "core/errors.hpp"
#include "core/values/tree.hpp"
#include "core/values/value.hpp"

namespace troupe::apps {

namespace {

using core::DType;
using core::Result;
using core::Value;

template <class Integer>
Integer integer_at(const std::byte* at) {
  Integer value{};
  std::memcpy(&value, at, sizeof value);
  return value;
}

double number_at(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::i64:
      return static_cast<double>(integer_at<std::int64_t>(at));
    case DType::i32:
      return integer_at<std::int32_t>(at);
    case DType::i16:
      return integer_at<std::int16_t>(at);
    case DType::i8:
      return integer_at<std::int8_t>(at);
    case DType::u64:
      return static_cast<double>(integer_at<std::uint64_t>(at));
    case DType::u32:
      return integer_at<std::uint32_t>(at);
    case DType::u16:
      return integer_at<std::uint16_t>(at);
    case DType::u8:
    case DType::boolean:
      return integer_at<std::uint8_t>(at);
    default:
      break;
  }
  double number = 0;
  core::convert_elements(dtype, at, DType::f64, reinterpret_cast<std::byte*>(&number), 1);
  return number;
}

/// 64-bit integers are too large for a difference of doubles.
double distance(DType dtype, const std::byte* left, const std::byte* right) {
  if (dtype == DType::i64 || dtype == DType::u64) {
    const auto a = integer_at<std::uint64_t>(left);
    const auto b = integer_at<std::uint64_t>(right);
    const bool less =
        dtype == DType::u64 ? a < b : static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b);
    return static_cast<double>(less ? b - a : a - b);
  }
  const double a = number_at(dtype, left);
  const double b = number_at(dtype, right);
  // Two infinities of one sign, and two NaNs of other bits, are no distance apart.
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  return std::abs(a - b);
}

core::Shape index_of(const core::Shape& shape, std::int64_t element) {
  core::Shape index(shape.size());
  for (auto axis = shape.size(); axis-- > 0;) {
    index[axis] = element % shape[axis];
    element /= shape[axis];
  }
  return index;
}

class Comparison {
 public:
  Comparison(DType dtype, const core::Shape& shape) : dtype_(dtype), shape_(shape) {
    values_.elements = core::elements_of(shape);
  }

  /// The next elements of both sides.
  void add(std::span<const std::byte> left, std::span<const std::byte> right) {
    const auto width = core::size_of(dtype_);
    const bool equal = std::memcmp(left.data(), right.data(), left.size()) == 0;
    for (std::size_t at = 0; at < left.size() && !equal; at += width) {
      if (std::memcmp(&left[at], &right[at], width) == 0) continue;
      note(&left[at], &right[at], seen_ + static_cast<std::int64_t>(at / width));
    }
    seen_ += static_cast<std::int64_t>(left.size() / width);
  }

  const TensorDifference::Values& values() const { return values_; }

 private:
  void note(const std::byte* left, const std::byte* right, std::int64_t element) {
    if (values_.differing++ == 0) {
      values_.first = index_of(shape_, element);
      values_.left = number_at(dtype_, left);
      values_.right = number_at(dtype_, right);
    }
    for (std::size_t i = 0; i < core::size_of(dtype_); ++i)
      values_.bits +=
          static_cast<std::uint64_t>(std::popcount(static_cast<std::uint8_t>(left[i] ^ right[i])));
    const double apart = distance(dtype_, left, right);
    // NaN is the largest of all.
    if (!std::isnan(values_.max_difference) && !(apart <= values_.max_difference))
      values_.max_difference = apart;
  }

  DType dtype_;
  const core::Shape& shape_;
  std::int64_t seen_ = 0;
  TensorDifference::Values values_;
};

/// The dtype in which two tensors are compared.
std::optional<DType> common_dtype(DType left, DType right) {
  if (left == right) return left;
  if (!core::is_floating(left) || !core::is_floating(right)) return std::nullopt;
  const bool has_double = left == DType::f64 || right == DType::f64;
  return has_double ? DType::f64 : DType::f32;
}

Result<TensorDifference> compare(const Source& left, const core::ManifestTensor& a, const Source& right,
                                 const core::ManifestTensor& b, std::size_t chunk_bytes, Meter& meter) {
  TensorDifference result{a.key, a.dtype, b.dtype, a.shape, b.shape, {}};
  const auto dtype = common_dtype(a.dtype, b.dtype);
  if (a.shape != b.shape || !dtype) return result;
  Comparison comparison(*dtype, a.shape);
  const auto width = core::size_of(*dtype);
  const auto window = static_cast<std::int64_t>(std::max<std::size_t>(chunk_bytes / width, 1));
  const auto elements = core::elements_of(a.shape);
  std::vector<std::byte> sides[2];
  for (std::int64_t first = 0; first < elements; first += window) {
    const core::ElementRange range{first, std::min(first + window, elements)};
    for (auto& side : sides) side.clear();
    for (const auto& box : core::boxes_of_range(a.shape, range)) {
      auto into = [&](std::vector<std::byte>& side) {
        return [&side](std::span<const std::byte> bytes) -> Result<void> {
          side.insert(side.end(), bytes.begin(), bytes.end());
          return {};
        };
      };
      TRY(stream_box(left, a, *dtype, box, chunk_bytes, into(sides[0])));
      TRY(stream_box(right, b, *dtype, box, chunk_bytes, into(sides[1])));
    }
    comparison.add(sides[0], sides[1]);
    meter.add(sides[0].size());
  }
  result.values = comparison.values();
  return result;
}

const Value* value_at(const Value& root, const core::KeyPath& path) {
  const Value* at = &root;
  for (const auto& key : path) {
    const auto* list = at->as_list();
    const auto* index = std::get_if<std::int64_t>(&key);
    if (at->as_map() != nullptr) {
      at = at->as_map()->find(key);
    } else if (list != nullptr && index != nullptr && *index >= 0 && *index < std::ssize(*list)) {
      at = &(*list)[static_cast<std::size_t>(*index)];
    } else {
      return nullptr;
    }
    if (at == nullptr) return nullptr;
  }
  return at;
}

std::string path_text(const core::KeyPath& path) {
  std::string text;
  for (const auto& key : path) {
    if (!text.empty()) text += ".";
    const auto* name = std::get_if<std::string>(&key);
    text += name != nullptr ? *name : core::to_string(key);
  }
  return text;
}

/// What is neither tensor nor about who saved: one tree of values.
Value values_of(const core::Manifest& manifest) {
  Value::Map objects;
  for (const auto& object : manifest.objects)
    objects.set(object.key + core::to_string(object.cell) + " of " + core::to_string(object.grid),
                object.value);
  return Value::Map{{"step", manifest.step.value}, {"common", manifest.common}, {"objects", objects}};
}

void compare_values(const core::Manifest& left, const core::Manifest& right, CheckpointDifference& result) {
  const auto a = values_of(left);
  const auto b = values_of(right);
  auto note = [&](const core::KeyPath& path) {
    const auto* one = value_at(a, path);
    const auto* other = value_at(b, path);
    result.values.push_back({path_text(path), one != nullptr ? value_line(*one) : "",
                             other != nullptr ? value_line(*other) : ""});
  };
  const auto difference = core::diff(a, b);
  for (const auto& path : difference.only_left) note(path);
  for (const auto& path : difference.only_right) note(path);
  for (const auto& mismatch : difference.mismatches) note(mismatch.path);
}

}  // namespace

Result<CheckpointDifference> diff_checkpoints(const Source& left, const Source& right,
                                              std::size_t chunk_bytes) {
  CheckpointDifference result;
  Meter meter("comparing", left.manifest.tensor_bytes());
  for (const auto& tensor : left.manifest.tensors) {
    const auto* other = right.manifest.find(tensor.key);
    if (other == nullptr) {
      result.only_left.push_back(tensor.key);
      continue;
    }
    ++result.common_tensors;
    auto difference = TRY(compare(left, tensor, right, *other, chunk_bytes, meter));
    if (!difference.is_equal()) result.tensors.push_back(std::move(difference));
  }
  for (const auto& tensor : right.manifest.tensors) {
    if (left.manifest.find(tensor.key) == nullptr) result.only_right.push_back(tensor.key);
  }
  result.bytes = meter.bytes();
  result.compared_values = left.has_values && right.has_values;
  if (result.compared_values) compare_values(left.manifest, right.manifest, result);
  return result;
}

}  // namespace troupe::apps
