#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::core {

/// tests/golden/interop/NAME, which make_dcp.py wrote.
std::filesystem::path golden_path(std::string_view name);
std::vector<std::byte> golden_bytes(std::string_view name);
nlohmann::json golden_json(std::string_view name);

std::vector<std::byte> bytes_of(std::string_view text);
std::vector<std::byte> bytes_of(std::initializer_list<int> values);
std::vector<std::byte> bytes_of_hex(std::string_view hex);
std::string hex_of(std::span<const std::byte> bytes);
std::string_view text_of(std::span<const std::byte> bytes);

}  // namespace troupe::core
