#pragma once

#include <string_view>

#include "core/boxes/box.hpp"
#include "core/dtype.hpp"
#include "core/interop/pickle.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// "float32", "bfloat16", "float8_e4m3fn", ...: the name in the module torch.
std::string_view torch_name(DType dtype) noexcept;
/// Errc::unavailable for what this library has no dtype for, such as complex64.
Result<DType> dtype_from_torch(std::string_view name);

/// "FloatStorage", ...: the class of typed storages in the module torch. Empty for the younger dtypes, which
/// are kept in an UntypedStorage.
std::string_view torch_storage_class(DType dtype) noexcept;
Result<DType> dtype_from_torch_storage(std::string_view name);

/// Extents or offsets from a tuple, a list or a torch.Size of integers that are not negative.
Result<Shape> shape_from_pickle(const PickleNode& node);

}  // namespace troupe::core
