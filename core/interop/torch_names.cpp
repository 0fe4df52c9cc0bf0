#include "core/interop/torch_names.hpp"

#include <array>
#include <cstddef>

#include "core/errors.hpp"
#include "core/utf8.hpp"

namespace troupe::core {
namespace {

struct TorchNames {
  std::string_view dtype;
  std::string_view storage;
};

// In the order of the enumeration.
constexpr std::array<TorchNames, 15> kTorchNames{{
    {"float64", "DoubleStorage"},
    {"float32", "FloatStorage"},
    {"float16", "HalfStorage"},
    {"bfloat16", "BFloat16Storage"},
    {"float8_e4m3fn", ""},
    {"float8_e5m2", ""},
    {"int64", "LongStorage"},
    {"int32", "IntStorage"},
    {"int16", "ShortStorage"},
    {"int8", "CharStorage"},
    {"uint64", ""},
    {"uint32", ""},
    {"uint16", ""},
    {"uint8", "ByteStorage"},
    {"bool", "BoolStorage"},
}};

}  // namespace

std::string_view torch_name(DType dtype) noexcept {
  return kTorchNames[static_cast<std::size_t>(dtype)].dtype;
}

Result<DType> dtype_from_torch(std::string_view name) {
  for (std::size_t i = 0; i < kTorchNames.size(); ++i) {
    if (kTorchNames[i].dtype == name) return static_cast<DType>(i);
  }
  return fail(Errc::unavailable, "torch.{} is not a dtype that Troupe has; convert the tensor before saving",
              beginning_of(name));
}

std::string_view torch_storage_class(DType dtype) noexcept {
  return kTorchNames[static_cast<std::size_t>(dtype)].storage;
}

Result<DType> dtype_from_torch_storage(std::string_view name) {
  for (std::size_t i = 0; i < kTorchNames.size(); ++i) {
    if (!name.empty() && kTorchNames[i].storage == name) return static_cast<DType>(i);
  }
  return fail(Errc::unavailable, "torch.{} is not a storage that Troupe reads; convert the tensor beforehand",
              beginning_of(name));
}

Result<Shape> shape_from_pickle(const PickleNode& node) {
  PickleNode numbers = node;
  if (node.is_object_of("torch", "Size") && node.arguments()->size() == 1)
    numbers = node.arguments()->item(0);
  if ((numbers.kind() != PickleKind::tuple && numbers.kind() != PickleKind::list) ||
      numbers.size() > kMaxAxes) {
    return fail(Errc::corrupt, "a size of at most {} axes was expected, found {} ({} items)", kMaxAxes,
                class_name(node), numbers.size());
  }
  Shape shape;
  shape.reserve(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto value = numbers.item(i).as_integer();
    if (!value || *value < 0) {
      return fail(Errc::corrupt, "axis {} of a size is a {} and not an integer >= 0", i,
                  name_of(numbers.item(i).kind()));
    }
    shape.push_back(*value);
  }
  return shape;
}

}  // namespace troupe::core
