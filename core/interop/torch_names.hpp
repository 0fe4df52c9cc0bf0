#pragma once

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

/// "FloatStorage", ...: the class of typed storages in the torch module. Empty for newer dtypes, which are
/// kept in an UntypedStorage.
std::string_view torch_storage_class(DType dtype) noexcept;
Result<DType> dtype_from_torch_storage(std::string_view name);

/// Extents or offsets from a tuple, a list or a torch.Size of non-negative integers.
Result<Shape> shape_from_pickle(const PickleNode& node);

}  // namespace troupe::core
