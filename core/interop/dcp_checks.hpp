#pragma once

#include <string_view>

#include "core/interop/dcp_metadata.hpp"

namespace troupe::core {

/// Errc::corrupt for a name that is empty or absolute, or contains a part "..", or a NUL.
Result<void> check_dcp_file_name(std::string_view name);

/// Consistency of a tensor's shape, chunks and places; files are not examined.
Result<void> check_dcp_tensor(const DcpTensor& tensor);

}  // namespace troupe::core
