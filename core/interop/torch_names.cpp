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

struct CarriedNames {
  std::string_view dtype;
  std::size_t bytes;
  std::string_view storage;
};

constexpr std::array<CarriedNames, 12> kCarried{{
    {"complex64", 8, "ComplexFloatStorage"},
    {"complex128", 16, "ComplexDoubleStorage"},
    {"complex32", 4, ""},
    {"float8_e8m0fnu", 1, ""},
    {"float8_e4m3fnuz", 1, ""},
    {"float8_e5m2fnuz", 1, ""},
    {"float4_e2m1fn_x2", 1, ""},  // two in a byte, which PyTorch counts as one element
    {"bits8", 1, ""},
    {"bits16", 2, ""},
    {"bits1x8", 1, ""},
    {"bits2x4", 1, ""},
    {"bits4x2", 1, ""},
}};

TorchDType carried(const CarriedNames& names) {
  return {DType::u8, names.bytes, names.dtype};
}

}  // namespace

TorchDType torch_dtype(DType dtype) noexcept {
  return {dtype, size_of(dtype), {}};
}

Result<TorchDType> torch_dtype_from(std::string_view name) {
  for (const auto& names : kCarried) {
    if (names.dtype == name) return carried(names);
  }
  return torch_dtype(TRY(dtype_from_torch(name)));
}

Result<TorchDType> torch_dtype_from_storage(std::string_view name) {
  for (const auto& names : kCarried) {
    if (!name.empty() && names.storage == name) return carried(names);
  }
  return torch_dtype(TRY(dtype_from_torch_storage(name)));
}

std::string_view torch_name(const TorchDType& dtype) noexcept {
  return dtype.carried.empty() ? torch_name(dtype.dtype) : dtype.carried;
}

std::string_view torch_storage_class(const TorchDType& dtype) noexcept {
  for (const auto& names : kCarried) {
    if (names.dtype == dtype.carried) return names.storage;
  }
  return torch_storage_class(dtype.dtype);
}

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
