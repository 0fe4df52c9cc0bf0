#pragma once

#include <cstddef>
#include <string_view>

#include "core/boxes/box.hpp"
#include "core/dtype.hpp"
#include "core/interop/pickle.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// "float32", "bfloat16", "float8_e4m3fn", ...: the name in the torch module.
std::string_view torch_name(DType dtype) noexcept;
/// Errc::unavailable for dtypes that this library lacks, such as complex64.
Result<DType> dtype_from_torch(std::string_view name);

/// A dtype of PyTorch. The elements of one that Troupe lacks are carried: as u8, with the bytes of an element
/// as one more axis, the last, if there are several.
struct TorchDType {
  DType dtype = DType::u8;   ///< of the elements here
  std::size_t bytes = 1;     ///< of an element in PyTorch
  std::string_view carried;  ///< "complex64", a literal; empty for a dtype that Troupe has

  bool has_axis() const { return !carried.empty() && bytes > 1; }
  friend bool operator==(const TorchDType&, const TorchDType&) = default;
};

TorchDType torch_dtype(DType dtype) noexcept;
/// Errc::unavailable for a name that is neither of a dtype of Troupe nor of one that is carried.
Result<TorchDType> torch_dtype_from(std::string_view name);
/// By the class of a typed storage.
Result<TorchDType> torch_dtype_from_storage(std::string_view name);
/// "complex64", "float32", ...
std::string_view torch_name(const TorchDType& dtype) noexcept;
std::string_view torch_storage_class(const TorchDType& dtype) noexcept;

/// "FloatStorage", ...: the class of typed storages in the torch module. Empty for newer dtypes, which are
/// kept in an UntypedStorage.
std::string_view torch_storage_class(DType dtype) noexcept;
Result<DType> dtype_from_torch_storage(std::string_view name);

/// Extents or offsets from a tuple, a list or a torch.Size of non-negative integers.
Result<Shape> shape_from_pickle(const PickleNode& node);

}  // namespace troupe::core
