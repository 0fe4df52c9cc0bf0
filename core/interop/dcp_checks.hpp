#pragma once

#include <cstddef>
#include <string_view>

#include "core/interop/dcp_metadata.hpp"

namespace troupe::core {

/// Bytes of the name of a tensor or a file. A small pickle can refer to the same long text very often.
inline constexpr std::size_t kLongestDcpName = 2048;

/// Errc::corrupt for a name that is empty or absolute, or contains a part "..", or a NUL.
Result<void> check_dcp_file_name(std::string_view name);

/// Consistency of a tensor's shape, chunks and places; files are not examined.
Result<void> check_dcp_tensor(const DcpTensor& tensor);

}  // namespace troupe::core
